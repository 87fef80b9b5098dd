"""Redact a call: secrets that only its assembled text shows.

A model that is asked for a key spells it out over many events, and a secret that is in none of them is in the text that
they make. The evidence stays as it passed; what is derived from it is searched again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from calls.model import Call, Json, ToolCall

type Clean = Callable[[str], str]
"""Puts a placeholder in place of each secret in a text."""


def clean_call(call: Call, clean: Clean) -> Call:
    """The call without such secrets. One that came in one piece has none: it was searched as it passed."""
    if not call.streamed:
        return call
    found = "\n".join(_texts([call.text, call.answer, [tool.arguments for tool in call.tool_calls]]))
    # One search for all of it: in hardly any call is there anything to find.
    if clean(found) == found:
        return call
    text = None if call.text is None else clean(call.text)
    tool_calls = tuple(_tool_call(tool, clean) for tool in call.tool_calls)
    return replace(call, text=text, answer=_json(call.answer, clean), tool_calls=tool_calls)


def _tool_call(tool: ToolCall, clean: Clean) -> ToolCall:
    return replace(tool, arguments=_json(tool.arguments, clean))


def _texts(value: Json) -> Iterator[str]:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case Mapping() as members:
                waiting += members.values()
            case list() | tuple() as items:
                waiting += items


def _json(value: Json, clean: Clean) -> Json:
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {name: _json(member, clean) for name, member in value.items()}
        case list() | tuple():
            return [_json(item, clean) for item in value]
        case _:
            return value
