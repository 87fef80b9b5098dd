"""Cut what is said in a call to a size that a span may have. The newest messages are kept, and the span says what is missing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from calls.codec.json import dumps
from calls.model import Json
from store.otlp.spans.conversation import Message, Part

MAX_TEXT: Final = 64 << 10
"""Characters of one text, argument or result."""

MAX_MESSAGES: Final = 256 << 10
"""Characters of all messages of a span together."""

CUT: Final = "…"


def cut_text(text: str) -> str:
    """Cut a text that is too long."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + CUT


def json_text(value: Json) -> str:
    """Return the value as JSON, cut if it is too long; a text as it is."""
    return cut_text(value if isinstance(value, str) else dumps(value).decode("utf-8", "replace"))


def cut_value(value: Json) -> Json:
    """Return the value, or its text cut if it is too long."""
    text = json_text(value)
    return text if text.endswith(CUT) else value


def cut_messages(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """Return the newest messages, as many as a span may have, and whether any is missing or was cut."""
    found: list[Message] = []
    size, is_cut = 0, False
    for message in reversed(messages):
        short = replace(message, parts=tuple(map(_cut_part, message.parts)))
        size += sum(len(part.text) + len(json_text(part.value)) for part in short.parts)
        if found and size > MAX_MESSAGES:
            return found[::-1], True
        is_cut |= short != message
        found.append(short)
    return found[::-1], is_cut


def _cut_part(part: Part) -> Part:
    return replace(part, text=cut_text(part.text), value=cut_value(part.value))
