"""The questions that a program asked people, among the effects of a run.

They are effects of the process `PERSON`: one item for a question, one for its answer. `docs/trace-format.md` describes their members.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from calls.events import EffectBatch

PERSON: Final = "person"
"""The process of questions and answers. Programs have processes whose names are numbers."""

ASKED: Final = "person.asked"
ANSWERED: Final = "person.answered"
RECEIVED: Final = "person.received"
"""The program got the answer: until then it waits, or has stopped."""

MOST_TEXT: Final = 10_000
"""Characters of a question, and of an answer."""


class PersonAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person answered."""

    value: str
    by: str
    at: int
    """When, in nanoseconds since 1970."""


class PersonQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question, with its answer if it has one."""

    id: str
    run: str
    prompt: str
    asked_from: str
    """File and line of the program, as `agent.py:12`; empty if they are not known."""

    asked_at: int
    """When, in nanoseconds since 1970."""

    branch: str = ""
    """The branch of a workflow that asked."""

    number: int = 0
    """How often the same was asked before, in this branch."""

    answer: PersonAnswer | None = None
    is_received: bool = False
    """Whether the program got the answer."""


class _Arguments(msgspec.Struct):
    question: str
    prompt: str = ""
    branch: str = ""
    number: int = 0
    at: Annotated[str, msgspec.Meta(pattern=r"^\d{1,19}$")] = "0"


class _Item(msgspec.Struct):
    kind: str
    args: _Arguments
    results: list[str] = []
    at: str = ""
    by: str = ""


_decoder = msgspec.json.Decoder(list[_Item])


def _read_items(batch: EffectBatch) -> list[_Item]:
    """Return the items of a batch; none if they are something else. A bundle that was imported may say anything."""
    if batch.process != PERSON:
        return []
    try:
        return _decoder.decode(batch.items)
    except msgspec.ValidationError:
        return []


def read_questions(batches: Iterable[EffectBatch]) -> list[PersonQuestion]:
    """Return the questions among these batches with their answers, in the order of the batches. Those of other processes have none."""
    questions: dict[tuple[str, str], PersonQuestion] = {}
    answers: dict[tuple[str, str], PersonAnswer] = {}
    received: set[tuple[str, str]] = set()
    for batch in batches:
        for item in _read_items(batch):
            arguments = item.args
            key = batch.run, arguments.question
            if item.kind == ASKED:
                question = PersonQuestion(
                    id=arguments.question,
                    run=batch.run,
                    prompt=arguments.prompt,
                    asked_from=item.at,
                    asked_at=batch.observed_at,
                    branch=arguments.branch,
                    number=arguments.number,
                )
                questions.setdefault(key, question)
            elif item.kind == ANSWERED and item.results:
                # An answer that was given to a run that this one continues keeps its own time.
                answers.setdefault(key, PersonAnswer(value=item.results[0], by=item.by, at=int(arguments.at)))
            elif item.kind == RECEIVED:
                received.add(key)
    return [
        msgspec.structs.replace(question, answer=answers.get(key), is_received=key in received)
        for key, question in questions.items()
    ]


def questions_for_program(batches: Iterable[EffectBatch]) -> list[dict[str, Any]]:
    """Return the questions of a recording as `playhead.people` reads them: with `value`, `by`, `at` and `received` if they were answered.

    `at` is in nanoseconds since 1970, as text.
    """
    return [
        {"prompt": one.prompt, "branch": one.branch, "number": one.number}
        | (
            {"value": one.answer.value, "by": one.answer.by, "at": str(one.answer.at), "received": one.is_received}
            if one.answer
            else {}
        )
        for one in read_questions(sorted(batches, key=lambda one: (one.observed_at, one.number)))
    ]
