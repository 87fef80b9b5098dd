"""Divide the prompt of a request into parts that can be found again in later requests: tools, messages, blocks of messages. Pure.

Each part has a weight, its share of the prompt's tokens: its length in UTF-8. That is an estimate: only the provider's
tokenizer knows better. Markers of prompt caches are left out: clients move them from message to message.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from calls.model import Json

_PROMPT_MEMBERS: Final = frozenset(
    """
    messages input inputs prompt system instructions contents systemInstruction system_instruction tools functions query texts
    documents message chat_history preamble inputText toolConfig response_format question
    """.split()  # noqa: SIM905 - a line a word would be long
)
"""Members of a request, in all APIs, that are sent to the model."""

_NESTED: Final = ("content", "parts", "tools", "functionDeclarations", "function_declarations")
"""Members of a part whose elements are parts of their own."""

# Not a set: a member of a body may be a value that has no hash.
_TEXT_TYPES: Final = (None, "text", "input_text", "output_text")
_CACHE_MARKERS: Final = frozenset(("cache_control", "cachePoint"))

DATA_WEIGHT: Final = 4000
"""The weight of an image or another file, about 1,000 tokens: its characters say nothing of its tokens."""

_DATA: Final = re.compile(r"data:|[A-Za-z0-9+/_=-]{2000}")
"""The beginning of a file: a URL with data, or base64."""


class PromptPart(NamedTuple):
    """A part of a prompt."""

    hash: bytes
    weight: int


class PromptParts:
    """Divides the prompts of a run. What a request repeats byte by byte is looked up, and only what is new is parsed."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[PromptPart]] = {}

    def divide(self, body: bytes) -> list[PromptPart]:
        """Return the parts of the prompt in the body of a request; none if it has no prompt."""
        try:
            return [part for name, raw in _members.decode(body).items() for part in self._member_parts(name, raw)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    def _member_parts(self, name: str, raw: msgspec.Raw) -> Iterator[PromptPart]:
        if name not in _PROMPT_MEMBERS:
            return
        for item in _items.decode(raw) if bytes(raw).startswith(b"[") else [raw]:
            digest = hashlib.sha256(name.encode() + b"\0" + bytes(item)).digest()[:16]
            if (parts := self._known.get(digest)) is None:
                found = _value_parts(name, _value.decode(item))
                parts = [PromptPart(hashlib.sha256(text).digest()[:16], weight) for text, weight in found if weight]
                self._known[digest] = parts
            yield from parts


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_value: Final = msgspec.json.Decoder()


def _value_parts(place: str, value: Json) -> Iterator[tuple[bytes, int]]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _value_parts(place, item)
    elif isinstance(value, Mapping):
        yield from _member_parts(place, value)
    elif value is not None:
        yield _part(place, value)


def _member_parts(place: str, value: Mapping[str, Json]) -> Iterator[tuple[bytes, int]]:
    # The role is told of each block, so that an answer is not taken for a prompt with the same words.
    role = f"{place} {value['role']}" if "role" in value else place
    # A text is the same part whether a client sends it alone or as a block.
    nested = [name for name in _NESTED if isinstance(value.get(name), list | str)]
    if isinstance(value.get("text"), str) and value.get("type") in _TEXT_TYPES:
        nested = ["text"]
    own = {name: member for name, member in value.items() if name not in nested and name not in _CACHE_MARKERS}
    if own.keys() - {"role", "type"} or (own and not nested):
        yield _part(role, own)
    for name in nested:
        yield from _value_parts(role, value[name])


def _part(place: str, value: Any) -> tuple[bytes, int]:
    cleaned = _without_markers(value)
    return f"{place}\0".encode() + msgspec.json.encode(cleaned), _weight(cleaned)


def _without_markers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_markers(member) for name, member in value.items() if name not in _CACHE_MARKERS}
    return [_without_markers(item) for item in value] if isinstance(value, list | tuple) else value


def _weight(value: Any) -> int:
    if isinstance(value, str):
        return DATA_WEIGHT if _DATA.match(value) else len(value.encode())
    if isinstance(value, Mapping):
        return sum(len(name) + _weight(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_weight, value))
    return 0 if value is None else len(str(value))
