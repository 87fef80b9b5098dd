"""Read the turns of a conversation in any dialect, to find which call continues which. Pure.

A chat without tools has no ids. Its next request repeats the user's question and the model's answer, so a digest of both
serves as an id that the answer produces and the request refers to.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.model import Call, Json

MIN_TURN_LENGTH: Final = 20
"""Characters of question and answer together at least; shorter ones (yes, no) occur in many conversations."""

MAX_MESSAGE_LENGTH: Final = 1 << 16
"""Characters of a message that are read."""

_MESSAGE_FIELDS: Final = ("messages", "input", "contents")
_USER_ROLES: Final = frozenset(("user", "human"))
_MODEL_ROLES: Final = frozenset(("assistant", "model", "ai"))


class Turn(NamedTuple):
    """A message of the user or of the model."""

    is_user: bool
    text: str


def read_turns(request: Json) -> Iterator[Turn]:
    """Read the messages of the user and the model in a request, newest first."""
    for name in _MESSAGE_FIELDS:
        value = as_object(request).get(name)
        if isinstance(value, str):
            yield Turn(True, value[:MAX_MESSAGE_LENGTH])
        for message in reversed(as_array(value)):
            role = as_text(as_object(message).get("role"))
            if role in _USER_ROLES or role in _MODEL_ROLES:
                yield Turn(role in _USER_ROLES, _message_text(message))


def first_question(request: Json) -> str:
    """The first message of the user."""
    question = ""
    for turn in read_turns(request):
        if turn.is_user and turn.text:
            question = turn.text
    return question


def produced_turn_id(call: Call) -> str | None:
    """The id of the last question and the answer of a call."""
    question = next((turn.text for turn in read_turns(call.request) if turn.is_user and turn.text), None)
    return _turn_id(question, call.text) if question and call.text else None


def referenced_turn_id(request: Json) -> str | None:
    """The id of the newest question and answer in a request that are followed by another message of the user."""
    turns = [turn for turn in read_turns(request) if turn.text]
    for after, turn, before in zip(turns, turns[1:], turns[2:], strict=False):
        if after.is_user and not turn.is_user and before.is_user:
            return _turn_id(before.text, turn.text)
    return None


def _turn_id(question: str, answer: str) -> str | None:
    question, answer = question.strip(), answer.strip()
    if len(question) + len(answer) < MIN_TURN_LENGTH:
        return None
    content = f"{len(question)}\0{question}{answer}".encode("utf-8", "surrogatepass")
    return "turn:" + hashlib.blake2b(content, digest_size=12).hexdigest()


def _message_text(message: Json) -> str:
    """The text of a message, which is a string or a list of parts with text."""
    content = as_object(message).get("content", as_object(message).get("parts"))
    if isinstance(content, str):
        return content[:MAX_MESSAGE_LENGTH]
    return "".join(_part_text(part) for part in as_array(content))[:MAX_MESSAGE_LENGTH]


def _part_text(part: Json) -> str:
    if isinstance(part, str):
        return part
    return (as_text_or_none(part.get("text")) or "") if isinstance(part, Mapping) else ""
