"""Have a person answer the interrupts of LangGraph, as `effects.input` does: the program may end, and go on days later.

`langgraph.types.interrupt` stops a graph until it is invoked with `Command(resume=…)`. Here `invoke` and `ainvoke` ask what it was
interrupted with, and go on with the answers.
"""

from __future__ import annotations

import json
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final

from playhead.people import ask, stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WHERE: Final = "an interrupt of LangGraph"


@cache
def install() -> None:
    """Ask people from now on, where Playhead records or replays the program. Raises ImportError without langgraph."""
    from langgraph.pregel import Pregel
    from langgraph.types import Command

    invoke, ainvoke = Pregel.invoke, Pregel.ainvoke

    @wraps(invoke)
    def invoke_and_ask(graph: Any, *arguments: Any, **options: Any) -> Any:
        result = invoke(graph, *arguments, **options)
        while answers := _ask(_interrupts(result)):
            arguments, options = _arguments_with_input(Command(resume=answers), arguments, options)
            result = invoke(graph, *arguments, **options)
        return result

    @wraps(ainvoke)
    async def ainvoke_and_ask(graph: Any, *arguments: Any, **options: Any) -> Any:
        result = await ainvoke(graph, *arguments, **options)
        while answers := _ask(_interrupts(result)):
            arguments, options = _arguments_with_input(Command(resume=answers), arguments, options)
            result = await ainvoke(graph, *arguments, **options)
        return result

    Pregel.invoke, Pregel.ainvoke = invoke_and_ask, ainvoke_and_ask


def _arguments_with_input(
    command: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an invocation with other input."""
    return (command, *arguments[1:]), {name: value for name, value in options.items() if name != "input"}


def _interrupts(result: Any) -> Sequence[Any]:
    """Return what a graph was interrupted with. `version="v2"` has an object for it."""
    found = result.get("__interrupt__") if isinstance(result, dict) else getattr(result, "interrupts", None)
    return found or ()


def _ask(interrupts: Sequence[Any]) -> dict[str, Any]:
    """Return the answers by the ids of the interrupts; none where nothing keeps questions.

    Raises WaitingForAnswer until all are answered, and LookupError in a replay if one is not in the recording.
    """
    by_id = {one.id: ask(_prompt(one.value), _WHERE, "") for one in interrupts}
    known = {name: one for name, one in by_id.items() if one is not None}
    for one in known.values():
        if one.answer is None:
            raise stop(one)
    return {name: _value(one.answer.value) for name, one in known.items() if one.answer is not None}


def _prompt(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _value(answer: str) -> Any:
    """Return the answer's text, or what it says as a JSON object, list, true, false or null: approvals are often that."""
    if answer[:1] not in ("{", "[") and answer not in ("true", "false", "null"):
        return answer
    try:
        return json.loads(answer)
    except ValueError:
        return answer
