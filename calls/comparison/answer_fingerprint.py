"""Digest what an answer says without its ids, times and counts, to tell whether two answers are the same."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from calls.codec.canonical import digest
from calls.codec.json import NotLossless, parse
from calls.codec.lenient_json import members
from calls.comparison.answer_volatile import ignored as ignored_values
from calls.comparison.answer_volatile import without_ignored
from calls.keys.rules import Plan
from calls.model import Call, Exchange, Json, concluded, ended

DOMAIN: Final = "answer/1"

_ANEW: Final = frozenset(
    (
        *("id", "created", "created_at", "completed_at", "createTime", "responseId", "request_id"),
        *(
            "usage",
            "usageMetadata",
            "metrics",
            "timings",
            "model",
            "modelVersion",
            "system_fingerprint",
            "service_tier",
        ),
    )
)
"""Members of an answer that say when, by whom and for how much it was given."""

_THOUGHTS: Final = frozenset(("reasoning", "reasoning_content", "thinking", "thought"))

# Numbers count as they are written: to spell a thousand decimals of a vector canonically takes longer than all the rest.
_encoder: Final = json.JSONEncoder(check_circular=False, default=str, separators=(",", ":"), sort_keys=True)

_WORD: Final = re.compile(r"\w+")


def meaning(call: Call, ignored: Plan | None = None) -> Json:
    """What the answer of a call says, but for what its profile says to ignore."""
    if call.kind == "model" and (call.text is not None or call.tool_calls):
        without = _without(call.answer, ignored)
        asked: list[Json] = [{"name": tool.name, "arguments": without(tool.arguments)} for tool in call.tool_calls]
        said: dict[str, Json] = {"text": without(call.text), "tool_calls": asked, "finish_reason": call.finish_reason}
        said["thoughts"] = list(_thoughts(without_ignored(call.answer, ignored)))
        return {name: value for name, value in said.items() if value not in (None, [])}
    return _without_ids(
        without_ignored(call.answer, ignored),
        anew=_ANEW if call.kind == "model" else _BY_PROTOCOL.get(call.dialect, frozenset()),
    )


def _without(answer: Json, plan: Plan | None) -> Callable[[Json], Json]:
    """Nothing in place of a text or arguments that the profile says to ignore where they stand in the answer."""
    found = [value for _, value in ignored_values(answer, plan)]
    gone = [*found, *(inner for value in found if isinstance(value, str) and (inner := _json_in(value)) is not None)]
    return lambda value: None if value in gone else value


def meaning_digest(exchange: Exchange, call: Call, ignored: Plan | None = None) -> str:
    """The digest of an answer's meaning, its status, and whether it is whole. Bytes that are no text count as they are."""
    response = exchange.response
    said = meaning(call, ignored)
    if said is None and response is not None:
        said = {"bytes": digest(DOMAIN, response.body.data)}
    status = response.status if response else None
    end = ended(exchange, concluded=concluded(call))
    return digest(DOMAIN, _encoder.encode([status, end, call.complete, said]).encode())


def words(value: Json) -> set[str]:
    """The words of a value, whoever wrote it down and how: names and punctuation do not count."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        match waiting.pop():
            case Mapping() as named:
                waiting += named.values()
            case list() | tuple() as items:
                waiting += items
            case str(text):
                # A tool's result is often passed on as JSON within a text, spelled as the agent likes.
                if (inner := _json_in(text)) is not None:
                    waiting.append(inner)
                else:
                    found.update(word.casefold() for word in _WORD.findall(text))
            case None | bool():
                pass
            case number:
                found.update(_WORD.findall(str(number)))
    return found


_BY_PROTOCOL: Final[Mapping[str, frozenset[str]]] = {"mcp": frozenset(("id",)), "a2a": frozenset(("id",))}
"""A message of JSON-RPC has the number of the request that it answers."""


def _json_in(text: str) -> Json:
    """The object or array that a text holds, if it holds one."""
    try:
        return parse(text.encode()) if text[:1] in ("{", "[") else None
    except (NotLossless, UnicodeEncodeError):
        return None


def _without_ids(answer: Json, *, anew: frozenset[str]) -> Json:
    if isinstance(answer, list | tuple):
        return [_without_ids(item, anew=anew) for item in answer]
    return (
        {name: value for name, value in answer.items() if name not in anew} if isinstance(answer, Mapping) else answer
    )


def _thoughts(answer: Json) -> Iterator[Json]:
    waiting = [answer]
    while waiting:
        match waiting.pop():
            case Mapping() as inner:
                for name, value in inner.items():
                    if name in _THOUGHTS and isinstance(value, str):
                        yield value
                    else:
                        waiting.append(value)
            case list() | tuple() as items:
                waiting += items
            case _:
                pass


def place(call: Call) -> Json:
    """What a call asks for, in whichever words: the tools by name, else the operation."""
    return [call.operation, *(tool.name for tool in call.tool_calls if call.kind == "tool")]


def news(key_selected: Json) -> Json:
    """What a request brings that is new: of a conversation its last part, else all of the body."""
    body = members(key_selected).get("body")
    for name in ("messages", "input", "contents"):
        if (said := members(body).get(name)) is not None:
            return said[-1] if isinstance(said, list | tuple) and said else said
    return body
