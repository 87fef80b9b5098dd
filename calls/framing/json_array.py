"""Read the elements of a JSON array, each as soon as it is complete (Gemini's streams without `alt=sse`).

Only brackets, commas and quotes are looked at: whether an element is JSON is for its reader to say.
"""

import re
from typing import Final

from calls.framing import Message

_MARK: Final = re.compile(rb'[\[\]{}",\\]')


def begins(head: bytes, media: str, *, ended: bool) -> bool | None:  # noqa: ARG001 # as the protocol has it
    """Whatever begins with a bracket, under any label."""
    return head[:1] == b"["


class Decoder:
    """Bytes in, elements out."""

    broken: Final = False

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._skip = 0
        """How many bytes of the next piece an escape has already spoken for."""
        self._element: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; give the elements that they complete."""
        found: list[bytes] = []
        start, skip = 0, self._skip
        for match in _MARK.finditer(data):
            at = match.start()
            if at < skip:
                continue
            if data[at] == ord("\\"):
                skip = at + 2 if self._quoted else skip
            elif self._ends_element(data[at]):
                found.append(self._whole(data[start:at]))
                start = at + 1
        self._skip = max(0, skip - len(data))
        self._element.append(data[start:])
        return [Message("", text.decode("utf-8", "replace")) for text in found if text]

    def finish(self) -> list[Message]:
        """What no comma and no bracket closed is no element."""
        return []

    def _ends_element(self, mark: int) -> bool:
        """Follow a mark; whether the element before it is whole. The array's own bracket ends nothing that is anything."""
        if mark == ord('"'):
            self._quoted = not self._quoted
        elif self._quoted:
            return False
        elif mark in b"[{":
            self._depth += 1
            return self._depth == 1
        elif mark in b"]}":
            self._depth -= 1
            return self._depth == 0
        return mark == ord(",") and self._depth == 1

    def _whole(self, rest: bytes) -> bytes:
        text = b"".join((*self._element, rest)).strip()
        self._element = []
        return text
