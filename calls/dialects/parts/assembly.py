"""Read the bytes of a response body into its answer, whether it was sent whole or streamed.

A request for a stream may be answered by a plain JSON error (labelled as a stream: Gemini's 400s), and a gateway may label
a stream as anything, so the first bytes decide before the media type. A dialect brings an `Accumulator` for its stream, and the framings
that its providers use; the rest is the same for all.
"""

from typing import Final, Protocol

from calls.codec.json import NotLossless, lenient
from calls.framing import DecoderInterface, Framing, Message, sse
from calls.model import Json


class Accumulator(Protocol):
    """A dialect's stream, message by message."""

    def take(self, event: str, data: str) -> None:
        """Take one message. What is not known passes."""

    @property
    def answer(self) -> Json:
        """The answer so far, in the shape of the API's own non-streamed response."""

    @property
    def complete(self) -> bool | None:
        """Whether the end marker has come; None where this stream has none and only HTTP can tell."""


SSE: Final[tuple[Framing, ...]] = (sse,)


class AccumulatorAssembly:
    """An `Assembly` over an accumulator."""

    def __init__(self, content_type: str, accumulator: Accumulator, framings: tuple[Framing, ...] = SSE) -> None:
        self._media = content_type
        self._accumulator = accumulator
        self._framings = framings
        self._held: list[bytes] = []
        self._size = self._ask_at = 0
        self._decoder: DecoderInterface | None = None
        self._decided = False
        self._answer: Json = None
        self._complete: bool | None = None

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._decoder:
            self._take(self._decoder.feed(data))
            return
        self._held.append(data)
        self._size += len(data)
        # Asked only when there is twice as much as at the last time, so that tiny pieces stay linear work.
        if not self._decided and self._size > self._ask_at:
            self._ask_at = 2 * self._size
            self._decide(ended=False)

    def finish(self) -> None:
        """No more bytes will come."""
        if not self._decided:
            self._decide(ended=True)
        if not self._decided and "event-stream" in self._media and sse in self._framings:
            self._decoder = sse.Decoder()  # a stream that ended before its first event is one all the same
        if self._decoder:
            self._take(self._decoder.finish())
        else:
            self._read(b"".join(self._held).lstrip())

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._accumulator.answer if self._decoder else self._answer

    @property
    def complete(self) -> bool | None:
        """Whether the answer is whole by the dialect's own mark, or as JSON; a page of HTML has no such mark."""
        if self._decoder:
            return self._accumulator.complete and not self._decoder.broken
        return self._complete

    @property
    def streamed(self) -> bool:
        """Whether the body is a stream of messages."""
        return self._decoder is not None

    def _decide(self, *, ended: bool) -> None:
        """Ask the framings in turn what these first bytes are; blanks before them are nothing in any form."""
        head = b"".join(self._held).lstrip()
        if not head:
            return
        for framing in self._framings:
            verdict = framing.begins(head, self._media, ended=ended)
            if verdict is None:
                return
            if verdict:
                self._decoder, self._held = framing.Decoder(), []
                self._take(self._decoder.feed(head))
                break
        self._decided = True

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._accumulator.take(message.event, message.data)

    def _read(self, data: bytes) -> None:
        try:
            self._answer, self._complete = lenient(data), True
        except NotLossless:
            self._complete = False if data[:1] in (b"{", b"[") else None
