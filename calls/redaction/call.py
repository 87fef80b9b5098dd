"""Redact the secrets of a call that only its assembled text contains.

A model that outputs a key divides it over many events, none of which contains the whole secret, but their joined text does.
The exchange stays as it was recorded; the call that is derived from it is searched again.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from calls.model import Call, Json, ToolCall

type Clean = Callable[[str], str]
"""Replaces each secret in a text by a placeholder."""


def clean_member(name: str, value: str, clean: Clean) -> str:
    """Redact a value that has a name, such as a label of a run, by the name too."""
    before, after = f'{{"{name}":"', '"}'
    text = clean(f"{before}{value}{after}")
    if not (text.startswith(before) and text.endswith(after)):
        return clean(value)
    return text.removeprefix(before).removesuffix(after)


def clean_call(call: Call, clean: Clean) -> Call:
    """Replace the secrets in a call that was streamed. Other calls were searched completely when they were recorded."""
    if not call.streamed:
        return call
    found = "\n".join(_all_texts([call.text, call.answer, [tool.arguments for tool in call.tool_calls]]))
    # A single search for the whole call: hardly any call contains a secret.
    if clean(found) == found:
        return call
    text = None if call.text is None else clean(call.text)
    tool_calls = tuple(_clean_tool_call(tool, clean) for tool in call.tool_calls)
    return replace(call, text=text, answer=_clean_json(call.answer, clean), tool_calls=tool_calls)


def _clean_tool_call(tool: ToolCall, clean: Clean) -> ToolCall:
    return dataclasses.replace(tool, arguments=_clean_json(tool.arguments, clean))


def _all_texts(value: Json) -> Iterator[str]:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case Mapping() as members:
                waiting += members.values()
            case list() | tuple() as items:
                waiting += items


def _clean_json(value: Json, clean: Clean) -> Json:
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {name: _clean_json(member, clean) for name, member in value.items()}
        case list() | tuple():
            return [_clean_json(item, clean) for item in value]
        case _:
            return value
