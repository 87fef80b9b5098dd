"""Digest the content of an answer without its ids, times and counts, to decide whether two answers are the same."""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from types import NoneType
from typing import Final

from msgspec.structs import replace

from calls.codec.canonical import digest
from calls.codec.json import InvalidJson, is_plain, make_writer, parse_json, write_plain_sorted
from calls.codec.lenient_json import as_object
from calls.comparison.answer_volatile import ignored_values as ignored_values
from calls.comparison.answer_volatile import without_ignored
from calls.keys.rules import Plan
from calls.model import Call, Exchange, Json, client_outcome, has_answer_ended

DOMAIN: Final = "answer/1"

_VOLATILE_MEMBERS: Final = frozenset(
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
"""Members of an answer with its id, time, model and cost, which do not count as content."""

_THOUGHT_MEMBERS: Final = frozenset(("reasoning", "reasoning_content", "thinking", "thought"))
_THOUGHT_VALUES: Final = frozenset((*_THOUGHT_MEMBERS, "reasoningContent"))
"""Members whose value, if it is no text, has the thoughts as texts: of Bedrock and Mistral."""

# Not a set: a member of a body may be a value that has no hash.
_THOUGHT_TYPES: Final = ("reasoning", "thinking", "thought")

# Numbers are written as they are: canonical numbers for a vector of a thousand decimals take longer than everything else.
_write: Final = make_writer(str, sorts=True, is_ascii=True)

_WORD: Final = re.compile(r"\w+")
_SCALARS: Final = (str, int, float, Decimal, NoneType)


def answer_meaning(call: Call, plan: Plan | None = None, *, has_all_thoughts: bool = False) -> Json:
    """Return the content of a call's answer without the fields that its profile ignores.

    With `has_all_thoughts` also with the thoughts that are texts of items and parts (OpenAI's Responses, Gemini, Bedrock). They are not
    in the digests that are stored, with which those of older calls are compared.
    """
    if call.kind == "model" and (call.text is not None or call.tool_calls):
        without = _ignoring(call.answer, plan)
        tool_calls: list[Json] = [{"name": tool.name, "arguments": without(tool.arguments)} for tool in call.tool_calls]
        content: dict[str, Json] = {
            "text": without(call.text),
            "tool_calls": tool_calls,
            "finish_reason": call.finish_reason,
        }
        read_thoughts = _all_thoughts if has_all_thoughts else _thoughts
        content["thoughts"] = list(read_thoughts(without_ignored(call.answer, plan)))
        return {name: value for name, value in content.items() if value not in (None, [])}
    return _without_members(
        without_ignored(call.answer, plan),
        names=_VOLATILE_MEMBERS if call.kind == "model" else _PROTOCOL_IDS.get(call.dialect, frozenset()),
    )


def _ignoring(answer: Json, plan: Plan | None) -> Callable[[Json], Json]:
    """Return a function that maps values which the profile ignores in this answer to None."""
    found = [value for _, value in ignored_values(answer, plan)]
    ignored = [
        *found,
        *(inner for value in found if isinstance(value, str) and (inner := _json_in_text(value)) is not None),
    ]
    return lambda value: None if value in ignored else value


def without_empty_text(call: Call) -> Call:
    """Return the call without an empty text beside tool calls.

    A stream of tool calls begins with one at many services; the same answer as a whole has none.
    """
    return replace(call, text=None) if call.text == "" and call.tool_calls else call


def answer_digest(exchange: Exchange, call: Call, plan: Plan | None = None, *, has_all_thoughts: bool = False) -> str:
    """Return the digest of an answer's content, its status and whether it is complete. Binary bodies count by their bytes."""
    response = exchange.response
    content = answer_meaning(without_empty_text(call), plan, has_all_thoughts=has_all_thoughts)
    if content is None and response is not None:
        content = {"bytes": digest(DOMAIN, response.body.data)}
    status = response.status if response else None
    end = client_outcome(exchange, answer_ended=has_answer_ended(call))
    return digest(DOMAIN, _write_answer([status, end, call.complete, content]))


def _write_answer(value: Json) -> bytes:
    if is_plain(value) and (text := write_plain_sorted(value)).isascii() and 0x7F not in text:
        return text
    return _write(value).encode()


def word_set(value: Json) -> set[str]:
    """Return the words in a value, without member names and punctuation."""
    words: set[str] = set()
    waiting = [value]
    while waiting:
        match waiting.pop():
            case Mapping() as members:
                waiting += members.values()
            case list() | tuple() as items:
                waiting += items
            case str(text):
                # Agents often pass a tool's result on as JSON within a text, formatted differently.
                if (inner := _json_in_text(text)) is not None:
                    waiting.append(inner)
                else:
                    words.update(word.casefold() for word in _WORD.findall(text))
            case None | bool():
                pass
            case number:
                words.update(_WORD.findall(str(number)))
    return words


_PROTOCOL_IDS: Final[Mapping[str, frozenset[str]]] = {"mcp": frozenset(("id",)), "a2a": frozenset(("id",))}
"""Members of answers that are not content, by dialect: a JSON-RPC message has the id of its request."""


def _json_in_text(text: str) -> Json:
    """Parse the object or array in a text; None if it contains none."""
    try:
        return parse_json(text.encode()) if text[:1] in ("{", "[") else None
    except (InvalidJson, UnicodeEncodeError):
        return None


def _without_members(answer: Json, *, names: frozenset[str]) -> Json:
    if isinstance(answer, list | tuple):
        return [_without_members(item, names=names) for item in answer]
    return (
        {name: value for name, value in answer.items() if name not in names} if isinstance(answer, Mapping) else answer
    )


def _thoughts(answer: Json) -> Iterator[Json]:
    waiting = [answer]
    while waiting:
        value = waiting.pop()
        if isinstance(value, _SCALARS):
            continue  # most values are, and the question whether they are mappings takes long
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if not isinstance(inner, _SCALARS):
                    waiting.append(inner)
                elif name in _THOUGHT_MEMBERS and isinstance(inner, str):
                    yield inner
        elif isinstance(value, list | tuple):
            waiting += value


def _all_thoughts(answer: Json, *, is_thought: bool = False) -> Iterator[Json]:
    if isinstance(answer, list | tuple):
        for item in answer:
            yield from _all_thoughts(item, is_thought=is_thought)
    elif isinstance(answer, Mapping):
        is_thought = is_thought or answer.get("thought") is True or answer.get("type") in _THOUGHT_TYPES
        for name, inner in answer.items():
            if not isinstance(inner, str):
                yield from _all_thoughts(inner, is_thought=is_thought or name in _THOUGHT_VALUES)
            elif name in _THOUGHT_MEMBERS or (is_thought and name == "text"):
                yield inner


def call_target(call: Call) -> Json:
    """Return what a call requests regardless of its arguments: the operation, and the names of called tools."""
    return [call.operation, *(tool.name for tool in call.tool_calls if call.kind == "tool")]


def new_input(key_selected: Json) -> Json:
    """Return the new part of a request's input: the last message of a conversation, else the whole body."""
    body = as_object(key_selected).get("body")
    for name in ("messages", "input", "contents"):
        if (value := as_object(body).get(name)) is not None:
            return value[-1] if isinstance(value, list | tuple) and value else value
    return body
