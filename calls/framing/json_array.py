"""Read the elements of a JSON array, each as soon as it is complete (Gemini's streams without `alt=sse`).

Only brackets, commas and quotes are examined; whether an element is JSON is left to its reader.
"""

import re
from typing import Final

from calls.framing import Message

_MARK: Final = re.compile(rb'[\[\]{}",\\]')


def matches(head: bytes, media: str, *, is_whole: bool) -> bool | None:  # noqa: ARG001 # required by the protocol
    """Match a body that begins with a bracket, with any media type."""
    return head[:1] == b"["


class Decoder:
    """Decodes the elements of an array."""

    is_broken: Final = False

    def __init__(self) -> None:
        self._depth = 0
        self._is_quoted = False
        self._escaped_bytes = 0
        """How many bytes at the start of the next piece belong to an escape."""
        self._element: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the elements that they complete."""
        texts: list[bytes] = []
        start, skip = 0, self._escaped_bytes
        for match in _MARK.finditer(data):
            at = match.start()
            if at < skip:
                continue
            if data[at] == ord("\\"):
                skip = at + 2 if self._is_quoted else skip
            elif self._follow_mark(data[at]):
                texts.append(self._take_element(data[start:at]))
                start = at + 1
        self._escaped_bytes = max(0, skip - len(data))
        self._element.append(data[start:])
        return [Message("", text.decode("utf-8", "replace")) for text in texts if text]

    def finish(self) -> list[Message]:
        """Return nothing: an element that no comma or bracket ends is incomplete."""
        return []

    def _follow_mark(self, mark: int) -> bool:
        """Process a mark and return whether it ends an element. The array's opening bracket ends an empty one."""
        if mark == ord('"'):
            self._is_quoted = not self._is_quoted
        elif self._is_quoted:
            return False
        elif mark in b"[{":
            self._depth += 1
            return self._depth == 1
        elif mark in b"]}":
            self._depth -= 1
            return self._depth == 0
        return mark == ord(",") and self._depth == 1

    def _take_element(self, rest: bytes) -> bytes:
        text = b"".join((*self._element, rest)).strip()
        self._element = []
        return text
