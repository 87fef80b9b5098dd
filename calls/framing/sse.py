"""Read server-sent events (WHATWG HTML 9.2.6).

The lines of a message's data are joined by newlines.
"""

import re
from typing import Final

from calls.framing import Message as Message

_BOM: Final = b"\xef\xbb\xbf"

_FIELD: Final = re.compile(rb"(data|event|id|retry)?:")
_FIELD_LENGTH: Final = len(b"event:")


def matches(head: bytes, media: str, *, is_whole: bool) -> bool | None:
    """Match a field, or the media type unless the body begins with a brace: errors are plain JSON with any media type."""
    if head[:1] in (b"{", b"["):
        return False
    if len(head) < _FIELD_LENGTH and not is_whole:
        return None
    is_labelled = "event-stream" in media and not is_whole
    return is_labelled or _FIELD.match(head) is not None


class Decoder:
    """Decodes server-sent events."""

    is_broken: Final = False

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._is_after_cr = False
        self._is_first_line = True
        self._event = ""
        self._id = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the messages that they complete."""
        messages = [self._process_line(line) for line in self._split_lines(data)]
        return [message for message in messages if message is not None]

    def finish(self) -> list[Message]:
        """Return the message at the end of the stream, even without a blank line after it.

        The standard drops such a message. Providers end streams this way (an OpenAI and three Gemini recordings), and
        clients that read line by line process it.
        """
        messages = [self._process_line(line) for line in (b"".join(self._tail), b"")]
        self._tail = []
        return [message for message in messages if message is not None]

    def _split_lines(self, data: bytes) -> list[bytes]:
        # The previous piece ended with a "\r"; a "\n" at the start of this one belongs to the same line end.
        if self._is_after_cr and data:
            data, self._is_after_cr = data.removeprefix(b"\n"), False
        if not data:
            return []
        self._is_after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        self._tail.append(lines[0])
        lines[0] = b"".join(self._tail)
        self._tail = [] if data.endswith((b"\r", b"\n")) else [lines.pop()]
        return lines

    def _process_line(self, line: bytes) -> Message | None:
        if self._is_first_line:
            line, self._is_first_line = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", "replace").partition(":")
        self._set_field(field, value.removeprefix(" "))
        return None

    def _set_field(self, field: str, value: str) -> None:
        match field:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
            case _:
                pass  # a comment (no field name), `retry`, or an unknown field

    def _dispatch(self) -> Message | None:
        message = Message(self._event, "\n".join(self._data), self._id) if self._data else None
        self._event, self._data = "", []
        return message
