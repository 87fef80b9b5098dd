"""Bytes of a response body to its answer, whichever way the provider chose to send it.

A request for a stream may be answered by a plain JSON error (labelled as a stream: Gemini's 400s), and a gateway may label
a stream as anything, so the first bytes decide and not the media type. A dialect brings an `Accumulator` for its stream; the rest is the same for all.
"""

import re
from typing import Final, Protocol

from calls.framing import sse
from calls.json import NotLossless, lenient
from calls.model import Json

_FIELD: Final = re.compile(rb"(data|event|id|retry)?:")
_FIELD_LENGTH: Final = len(b"event:")


class Accumulator(Protocol):
    """A dialect's stream, message by message."""

    def take(self, event: str, data: str) -> None:
        """Take one message. What is not known passes."""

    @property
    def answer(self) -> Json:
        """The answer so far, in the shape of the API's own non-streamed response."""

    @property
    def complete(self) -> bool:
        """Whether the end marker has come."""


class Reading:
    """An `Assembly` over an accumulator."""

    def __init__(self, content_type: str, accumulator: Accumulator) -> None:
        self._labelled = "event-stream" in content_type
        self._accumulator = accumulator
        self._head = b""
        self._decoder = sse.Decoder()
        self._whole: list[bytes] = []
        self._streamed: bool | None = None
        self._answer: Json = None
        self._complete: bool | None = None

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._streamed is None:
            data = self._begun(data)
        if self._streamed:
            self._take(self._decoder.feed(data))
        elif data:
            self._whole.append(data)

    def finish(self) -> None:
        """No more bytes will come."""
        if self._streamed is None:
            self._streamed = _FIELD.match(self._head) is not None
            self.feed(self._head)
        if self._streamed:
            self._take(self._decoder.finish())
        else:
            self._read(b"".join(self._whole))

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._accumulator.answer if self._streamed else self._answer

    @property
    def complete(self) -> bool | None:
        """Whether the answer is whole by the dialect's own mark, or as JSON; a page of HTML has no such mark."""
        return self._accumulator.complete if self._streamed else self._complete

    @property
    def streamed(self) -> bool:
        """Whether the body is a stream of messages."""
        return self._streamed is True

    def _begun(self, data: bytes) -> bytes:
        """Hold the first bytes until they tell what follows; blanks before them are nothing in either form."""
        head = (self._head + data).lstrip()
        if len(head) < _FIELD_LENGTH:
            self._head = head
            return b""
        self._streamed = head[:1] not in b"{[" and (self._labelled or _FIELD.match(head) is not None)
        return head

    def _take(self, messages: list[sse.Message]) -> None:
        for message in messages:
            self._accumulator.take(message.event, message.data)

    def _read(self, data: bytes) -> None:
        try:
            self._answer, self._complete = lenient(data), True
        except NotLossless:
            self._complete = False if data[:1] in (b"{", b"[") else None
