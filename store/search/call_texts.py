"""The texts of a call: what was asked, answered, passed to tools and returned by them.

The members of a request are told by their names, which are much the same in all APIs, so that a dialect needs no rules of its own.
"""

import logging
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from calls.codec.json import InvalidJson, parse_json
from calls.codec.json import dumps as dump_json
from calls.codec.lenient_json import as_object, as_text
from calls.model import Call, Json
from store.large.summary import CallSummary

log = logging.getLogger(__name__)

type Role = Literal["prompt", "answer", "arguments", "result"]

LONGEST_TEXT: Final = 16_384
"""Characters of a text that are indexed."""

MOST_TEXTS: Final = 200
"""Texts of a call that are indexed: the last ones, because a conversation grows at its end."""

MOST_CHARACTERS: Final = 512 * 1024
"""Characters of a call that are indexed."""

LONGEST_REMEMBERED: Final = 2048
MOST_REMEMBERED: Final = 2048
"""Arguments up to this length, and this many of them, are remembered with their texts: 8 MB at most."""

_TEXT_MEMBERS: Final = frozenset(
    """
    content contents text texts input inputs prompt prompts query queries instructions instruction system message messages
    systemInstruction system_instruction inputText question documents document title parts preamble chat_history history
    """.split()  # noqa: SIM905 - a line a word would be long
)
_ARGUMENT_MEMBERS: Final = frozenset(("arguments", "args"))
_RESULT_MEMBERS: Final = frozenset(
    ("output", "outputs", "functionResponse", "function_response", "toolResult", "result")
)
_RESULT_TYPES: Final = frozenset(
    ("tool_result", "function_call_output", "custom_tool_call_output", "mcp_call_output", "tool")
)
_ARGUMENT_TYPES: Final = frozenset(("tool_use", "function_call", "custom_tool_call", "tool-call"))
_WORD: Final = re.compile(r"[^\W_]")
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
"""Writes JSON as `calls.codec.json.dumps` does, in a fifth of the time."""
_ANSWER_ROLES: Final = frozenset(("assistant", "model", "CHATBOT"))


type Place = tuple[str, int]
"""A member of a request and, if it is an array, the number of the item in it; otherwise 0."""


class CallText(NamedTuple):
    """A text, and what it was in the call."""

    role: Role
    text: str


def call_texts(call: Call, known_places: Collection[Place] = ()) -> list[CallText]:
    """Return the texts of a call, each once. Those at `known_places` of its request may be missing."""
    try:
        return collect_texts(call, known_places)
    except Exception:  # a bug that one call shows must keep no other from being stored or found
        log.exception("the texts of a %s call could not be collected; search does not find it", call.dialect)
        return []


def collect_texts(call: Call, known_places: Collection[Place] = ()) -> list[CallText]:
    """Return the same, without a guard against bugs of this module."""
    found = dict.fromkeys([text for text in _all_texts(call, known_places) if _WORD.search(text.text)])
    texts: list[CallText] = []
    size = 0
    for one in reversed(list(found)[-MOST_TEXTS:]):
        size += len(one.text)
        if size > MOST_CHARACTERS:
            break
        texts.append(one if len(one.text) <= LONGEST_TEXT else CallText(one.role, one.text[:LONGEST_TEXT]))
    return texts[::-1]


def summary_texts(summary: CallSummary) -> list[CallText]:
    """Return the texts in the summary of a large call."""
    answers = [CallText("answer", summary.text)] if summary.text else []
    arguments = [CallText("arguments", f"{tool.name} {tool.arguments or ''}") for tool in summary.tool_calls]
    return [CallText(role, text[:LONGEST_TEXT]) for role, text in (*answers, *arguments)]


def _all_texts(call: Call, known_places: Collection[Place]) -> list[CallText]:
    if call.dialect == "generic":
        return [*_plain_texts("arguments", call.request), *_plain_texts("result", call.answer)]
    prompt_texts = _request_texts(_without_places(call.request, known_places))
    texts = list(prompt_texts)
    if call.operation == "embeddings":
        return texts
    if call.kind == "model":
        if call.text:
            texts.append(CallText("answer", call.text))
        texts += [CallText("arguments", f"{tool.name} {_value_text(tool.arguments)}") for tool in call.tool_calls]
    else:
        texts += _plain_texts("result", call.answer)
    if call.tool_results and not all(_is_among(result, prompt_texts) for result in call.tool_results):
        prompt_texts = _request_texts(call.request) if known_places else prompt_texts
        for result in call.tool_results:
            if not _is_among(result, prompt_texts):
                texts += _plain_texts("result", result)
    return texts


def _request_texts(request: Json) -> dict[CallText, None]:
    found: list[CallText] = []
    _add_texts(found, request, "prompt", is_text=False)
    return dict.fromkeys(found)


def _without_places(request: Json, places: Collection[Place]) -> Json:
    """Return a request without the members and items at these places."""
    if not places or not isinstance(request, Mapping):
        return request
    found: dict[str, Json] = {}
    for name, value in request.items():
        if isinstance(value, list):
            found[name] = [item for number, item in enumerate(value) if (name, number) not in places]
        elif (name, 0) not in places:
            found[name] = value
    return found


def _is_among(result: Json, texts: Collection[CallText]) -> bool:
    """Whether a tool's result has no text but these: most dialects find results in the messages of the request."""
    content = result.get("content") if isinstance(result, Mapping) else None
    parts = [as_object(part).get("text") for part in content] if isinstance(content, list) else [content]
    return bool(parts) and all(isinstance(part, str) and CallText("result", part) in texts for part in parts)


def _plain_texts(role: Role, value: Json) -> list[CallText]:
    return [] if value is None else [CallText(role, _value_text(value))]


def _value_text(value: Any) -> str:
    """Write a value as a person would type it: text as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return _encode(value).decode()
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError):
        return dump_json(value).decode()


def _add_texts(found: list[CallText], value: Json, role: Role, *, is_text: bool) -> None:
    """Add the texts in a part of a request. `is_text`: whether a text in its place is one that was written."""
    if isinstance(value, str):
        if is_text and not _is_data(value):
            found.append(CallText(role, value))
    elif isinstance(value, dict):
        _add_member_texts(found, value, _role_of(value, role))
    elif isinstance(value, list | tuple):
        for item in value:
            _add_texts(found, item, role, is_text=is_text)


def _add_member_texts(found: list[CallText], value: Mapping[str, Json], role: Role) -> None:
    for name, member in value.items():
        if name in _ARGUMENT_MEMBERS or (name == "input" and role == "arguments"):
            found.append(CallText("arguments", f"{value.get('name', '')} {_arguments_text(member)}"))
        elif name in _RESULT_MEMBERS:
            found += _plain_texts("result", member)
        elif name in _TEXT_MEMBERS:
            _add_texts(found, member, role, is_text=True)
        elif isinstance(member, dict | list) and name not in ("tools", "functions", "toolConfig", "source"):
            _add_texts(found, member, role, is_text=False)


def _arguments_text(value: Json) -> str:
    """Arguments in one form, whether they are sent as a value or as its text, so that they are indexed once."""
    if isinstance(value, str):
        return _parsed_arguments_text(value) if len(value) <= LONGEST_REMEMBERED else _uniform_arguments(value)
    return _value_text(value)


def _uniform_arguments(text: str) -> str:
    try:
        return _value_text(parse_json(text.encode()))
    except InvalidJson:
        return text


# A conversation sends all its tool calls again with every request.
_parsed_arguments_text: Final = lru_cache(MOST_REMEMBERED)(_uniform_arguments)


def _role_of(value: Mapping[str, Json], role: Role) -> Role:
    # A schema may have a property of this name, whose value is a schema.
    kind, speaker = as_text(value.get("type")), as_text(value.get("role"))
    if kind in _RESULT_TYPES or speaker in ("tool", "function", "TOOL"):
        return "result"
    if kind in _ARGUMENT_TYPES:
        return "arguments"
    return "answer" if speaker in _ANSWER_ROLES else role


def _is_data(text: str) -> bool:
    """Whether it is a file or an image rather than a text."""
    return text.startswith("data:") or (len(text) > 2000 and " " not in text[:2000] and "\n" not in text[:2000])
