"""Read the bytes of a response body into its answer, whether it was sent whole or streamed.

A request for a stream may be answered by a plain JSON error (labelled as a stream: Gemini's 400s), and a gateway may label
a stream as anything, so the first bytes decide before the media type. A dialect provides an `Accumulator` for its stream and the framings
that its providers use; the rest is the same for all.
"""

from typing import Final, Protocol

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.framing import Framing, Message, MessageDecoder, sse
from calls.model import Json


class Accumulator(Protocol):
    """A dialect's stream, message by message."""

    def add_message(self, event: str, data: str) -> None:
        """Add one message; ignore unknown ones."""

    @property
    def answer(self) -> Json:
        """The answer so far, in the shape of the API's response without streaming."""

    @property
    def is_complete(self) -> bool | None:
        """Whether the end marker has arrived; None where this stream has none and only HTTP can tell."""


SSE: Final[tuple[Framing, ...]] = (sse,)


class AccumulatorAssembly:
    """An `Assembly` over an accumulator."""

    def __init__(self, content_type: str, accumulator: Accumulator, framings: tuple[Framing, ...] = SSE) -> None:
        self._media = content_type
        self._accumulator = accumulator
        self._framings = framings
        self._pieces: list[bytes] = []
        self._size = self._next_detection_at = 0
        self._decoder: MessageDecoder | None = None
        self._is_decided = False
        self._answer: Json = None
        self._complete: bool | None = None

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._decoder:
            self._add_messages(self._decoder.feed(data))
            return
        self._pieces.append(data)
        self._size += len(data)
        # Only when the body has doubled since the last attempt, so that many tiny pieces take linear time.
        if not self._is_decided and self._size > self._next_detection_at:
            self._next_detection_at = 2 * self._size
            self._detect_framing(is_whole=False)

    def finish(self) -> None:
        """Note that the body has ended."""
        if not self._is_decided:
            self._detect_framing(is_whole=True)
        if not self._is_decided and "event-stream" in self._media and sse in self._framings:
            self._decoder = sse.Decoder()  # a stream that ended before its first event
        if self._decoder:
            self._add_messages(self._decoder.finish())
        else:
            self._read_whole_body(b"".join(self._pieces).lstrip())

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._accumulator.answer if self._decoder else self._answer

    @property
    def is_complete(self) -> bool | None:
        """Whether the answer has the dialect's end marker, or is whole JSON; None for a body without either, such as HTML."""
        if self._decoder:
            return self._accumulator.is_complete and not self._decoder.is_broken
        return self._complete

    @property
    def is_streamed(self) -> bool:
        """Whether the body is a stream of messages."""
        return self._decoder is not None

    def _detect_framing(self, *, is_whole: bool) -> None:
        """Ask the framings in turn whether these first bytes are theirs. Leading blanks have no meaning in any of them."""
        head = b"".join(self._pieces).lstrip()
        if not head:
            return
        for framing in self._framings:
            verdict = framing.matches(head, self._media, is_whole=is_whole)
            if verdict is None:
                return
            if verdict:
                self._decoder, self._pieces = framing.Decoder(), []
                self._add_messages(self._decoder.feed(head))
                break
        self._is_decided = True

    def _add_messages(self, messages: list[Message]) -> None:
        for message in messages:
            self._accumulator.add_message(message.event, message.data)

    def _read_whole_body(self, data: bytes) -> None:
        try:
            self._answer, self._complete = parse_json_leniently(data), True
        except InvalidJson:
            self._complete = False if data[:1] in (b"{", b"[") else None
