"""Read server-sent events (WHATWG HTML 9.2.6).

The lines of a message's data are joined by newlines.
"""

import re
from typing import Final

from calls.framing import Message as Message

_BOM: Final = b"\xef\xbb\xbf"

_FIELD: Final = re.compile(rb"(data|event|id|retry)?:")
_FIELD_LENGTH: Final = len(b"event:")


def begins(head: bytes, media: str, *, ended: bool) -> bool | None:
    """A field tells; else the label, but never against a brace: errors are plain JSON, whatever they are labelled."""
    if head[:1] in (b"{", b"["):
        return False
    if len(head) < _FIELD_LENGTH and not ended:
        return None
    labelled = "event-stream" in media and not ended
    return labelled or _FIELD.match(head) is not None


class Decoder:
    """Bytes in, messages out."""

    broken: Final = False

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._after_cr = False
        self._first = True
        self._event = ""
        self._id = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; give the messages that they complete."""
        messages = [self._line(line) for line in self._lines(data)]
        return [message for message in messages if message is not None]

    def finish(self) -> list[Message]:
        """Give what waits at the end of the stream.

        The standard drops a message that no blank line closes. Providers end streams that way (an OpenAI and
        three Gemini recordings), and clients that read line by line act on it; so do we.
        """
        messages = [self._line(line) for line in (b"".join(self._tail), b"")]
        self._tail = []
        return [message for message in messages if message is not None]

    def _lines(self, data: bytes) -> list[bytes]:
        # The line before ended with a "\r" at once; the "\n" that may follow it belongs to the same end.
        if self._after_cr and data:
            data, self._after_cr = data.removeprefix(b"\n"), False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        self._tail.append(lines[0])
        lines[0] = b"".join(self._tail)
        self._tail = [] if data.endswith((b"\r", b"\n")) else [lines.pop()]
        return lines

    def _line(self, line: bytes) -> Message | None:
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", "replace").partition(":")
        self._take(field, value.removeprefix(" "))
        return None

    def _take(self, field: str, value: str) -> None:
        match field:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
            case _:
                pass  # a comment (no field name), `retry`, or a field of the future

    def _dispatch(self) -> Message | None:
        message = Message(self._event, "\n".join(self._data), self._id) if self._data else None
        self._event, self._data = "", []
        return message
