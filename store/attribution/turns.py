"""Read who said what in a conversation, whatever its dialect, to tell which call continues which.

A chat without tools has no ids. Its next request sends along what the user said and what the model answered: a digest of
both is an id that the answer makes and the request hands back. Pure.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from calls.codec.lenient_json import elements, members, some
from calls.model import Call, Json

LONG_ENOUGH: Final = 20
"""Characters of question and answer together; shorter ones (yes, no) are said in many conversations."""

LONGEST: Final = 1 << 16
"""Characters of one message that are read."""

_MESSAGES: Final = ("messages", "input", "contents")
_USERS: Final = frozenset(("user", "human"))
_MODELS: Final = frozenset(("assistant", "model", "ai"))


class Turn(NamedTuple):
    """A message of the user or of the model."""

    is_users: bool
    text: str


def turns(request: Json) -> Iterator[Turn]:
    """The messages of a request, without the system's and those of tools, the newest first."""
    for name in _MESSAGES:
        value = members(request).get(name)
        if isinstance(value, str):
            yield Turn(True, value[:LONGEST])
        for message in reversed(elements(value)):
            role = members(message).get("role")
            if role in _USERS or role in _MODELS:
                yield Turn(role in _USERS, _text_of(message))


def first_question(request: Json) -> str:
    """What the user said first."""
    asked = ""
    for turn in turns(request):
        if turn.is_users and turn.text:
            asked = turn.text
    return asked


def turn_made(call: Call) -> str | None:
    """The digest of what was asked last and what the model answers."""
    asked = next((turn.text for turn in turns(call.request) if turn.is_users and turn.text), None)
    return _digest(asked, call.text) if asked and call.text else None


def turn_handed_back(request: Json) -> str | None:
    """The digest of the newest question and answer that a request sends along, if something follows the answer."""
    said = [turn for turn in turns(request) if turn.text]
    for after, turn, before in zip(said, said[1:], said[2:], strict=False):
        if after.is_users and not turn.is_users and before.is_users:
            return _digest(before.text, turn.text)
    return None


def _digest(asked: str, answered: str) -> str | None:
    asked, answered = asked.strip(), answered.strip()
    if len(asked) + len(answered) < LONG_ENOUGH:
        return None
    told = f"{len(asked)}\0{asked}{answered}".encode("utf-8", "surrogatepass")
    return "turn:" + hashlib.blake2b(told, digest_size=12).hexdigest()


def _text_of(message: Json) -> str:
    """The text of a message: a string, or parts with a text each."""
    content = members(message).get("content", members(message).get("parts"))
    if isinstance(content, str):
        return content[:LONGEST]
    return "".join(_part(part) for part in elements(content))[:LONGEST]


def _part(part: Json) -> str:
    if isinstance(part, str):
        return part
    return (some(part.get("text")) or "") if isinstance(part, Mapping) else ""
