"""The texts of a call: what was asked, answered, passed to tools and returned by them.

The members of a request are told by their names, which are much the same in all APIs, so that a dialect needs no rules of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from calls.codec.json import InvalidJson, parse_json
from calls.codec.json import dumps as dump_json
from calls.model import Call, Json
from store.large.summary import CallSummary

type Role = Literal["prompt", "answer", "arguments", "result"]

LONGEST_TEXT: Final = 16_384
"""Characters of a text that are indexed."""

MOST_TEXTS: Final = 200
"""Texts of a call that are indexed: the last ones, because a conversation grows at its end."""

MOST_CHARACTERS: Final = 512 * 1024
"""Characters of a call that are indexed."""

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
_ANSWER_ROLES: Final = frozenset(("assistant", "model", "CHATBOT"))


class CallText(NamedTuple):
    """A text, and what it was in the call."""

    role: Role
    text: str


def call_texts(call: Call) -> list[CallText]:
    """Return the texts of a call, each once."""
    found = dict.fromkeys(text for text in _all_texts(call) if any(letter.isalnum() for letter in text.text))
    texts: list[CallText] = []
    size = 0
    for role, text in reversed(list(found)[-MOST_TEXTS:]):
        size += len(text)
        if size > MOST_CHARACTERS:
            break
        texts.append(CallText(role, text[:LONGEST_TEXT]))
    return texts[::-1]


def summary_texts(summary: CallSummary) -> list[CallText]:
    """Return the texts in the summary of a large call."""
    answers = [CallText("answer", summary.text)] if summary.text else []
    arguments = [CallText("arguments", f"{tool.name} {tool.arguments or ''}") for tool in summary.tool_calls]
    return [CallText(role, text[:LONGEST_TEXT]) for role, text in (*answers, *arguments)]


def _all_texts(call: Call) -> Iterator[CallText]:
    if call.dialect == "generic":
        yield from _plain_texts("arguments", call.request)
        yield from _plain_texts("result", call.answer)
        return
    yield from _message_texts(call.request, "prompt", is_text=False)
    if call.operation == "embeddings":
        return
    if call.kind == "model":
        if call.text:
            yield CallText("answer", call.text)
        for tool in call.tool_calls:
            yield CallText("arguments", f"{tool.name} {_value_text(tool.arguments)}")
    else:
        yield from _plain_texts("result", call.answer)
    yield from (text for result in call.tool_results for text in _plain_texts("result", result))


def _plain_texts(role: Role, value: Json) -> Iterator[CallText]:
    if value is not None:
        yield CallText(role, _value_text(value))


def _value_text(value: Any) -> str:
    """Write a value as a person would type it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else dump_json(value).decode()


def _message_texts(value: Json, role: Role, *, is_text: bool) -> Iterator[CallText]:
    """Yield the texts in a part of a request. `is_text`: whether a text in its place is one that was written."""
    if isinstance(value, str):
        if is_text and not _is_data(value):
            yield CallText(role, value)
    elif isinstance(value, Mapping):
        yield from _member_texts(value, _role_of(value, role))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _message_texts(item, role, is_text=is_text)


def _member_texts(value: Mapping[str, Json], role: Role) -> Iterator[CallText]:
    for name, member in value.items():
        if name in _ARGUMENT_MEMBERS or (name == "input" and role == "arguments"):
            yield CallText("arguments", f"{value.get('name', '')} {_arguments_text(member)}")
        elif name in _RESULT_MEMBERS:
            yield from _plain_texts("result", member)
        elif name in _TEXT_MEMBERS:
            yield from _message_texts(member, role, is_text=True)
        elif isinstance(member, Mapping | list) and name not in ("tools", "functions", "toolConfig", "source"):
            yield from _message_texts(member, role, is_text=False)


def _arguments_text(value: Json) -> str:
    """Arguments in one form, whether they are sent as a value or as its text, so that they are indexed once."""
    if isinstance(value, str):
        try:
            return _value_text(parse_json(value.encode()))
        except InvalidJson:
            return value
    return _value_text(value)


def _role_of(value: Mapping[str, Json], role: Role) -> Role:
    kind, speaker = value.get("type"), value.get("role")
    if kind in _RESULT_TYPES or speaker in ("tool", "function", "TOOL"):
        return "result"
    if kind in _ARGUMENT_TYPES:
        return "arguments"
    return "answer" if speaker in _ANSWER_ROLES else role


def _is_data(text: str) -> bool:
    """Whether it is a file or an image rather than a text."""
    return text.startswith("data:") or (len(text) > 2000 and " " not in text[:2000] and "\n" not in text[:2000])
