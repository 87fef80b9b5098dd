"""The state of one side's message while it is being recorded."""

from concurrent.futures import Future
from typing import Final

import msgspec

from calls.events import Side
from calls.redaction.body import BodyRedactor, Piece
from calls.redaction.streams.streamed_messages import StreamedMessages

INLINE_FEED: Final = 4 << 10
"""Bytes of a streamed body that are redacted at once without the thread while it is not known to be fast: up to 20 ms."""

FAST_FEED: Final = 16 << 10
"""The same once it is known to be fast."""

SLOW_FEED: Final = 0.005
"""Seconds for `INLINE_FEED` bytes, in which a slow body is redacted."""

MIN_TIMED: Final = 1 << 10
"""Fewer bytes are not timed: reading the clock takes as long as searching them."""

MAX_SLOW: Final = 3
"""How often a body may be slow before the rest is redacted on the thread: once may be a collection of garbage."""


class RecordedMessage(msgspec.Struct, eq=False):
    """The message of one side while it is being recorded."""

    side: Side
    body: BodyRedactor
    seen_bytes: int = 0
    recorded_bytes: int = 0
    """Bytes passed on to be redacted and written."""

    reserved_bytes: int = 0
    is_whole: bool = False
    """Whether the message was complete before its body was recorded."""

    is_slow: bool | None = None
    """Whether the last pieces of its body took so long to redact that the thread does the next; None if that is not known."""

    slow_count: int = 0
    """How often they did."""

    thread_bytes: int = 0
    """Bytes that wait for the thread, or for their turn after it."""

    thread_work: "Future[list[Piece]] | None" = None
    """The last work of the thread for the body. Until it is done, nothing else may use the body redactor."""

    is_finished: bool = False
    """Whether the body redactor has returned its last piece."""

    has_ended: bool = False
    is_truncated: bool = False
    messages: StreamedMessages | None = None
    """The redactor of the messages if this is one side of a WebSocket."""

    has_fault: bool = False
    """Whether the redaction of a piece failed."""

    has_loss: bool = False
    """Whether a piece could not be written. Later pieces are not written either: their offsets would be wrong."""

    def is_better_on_thread(self, size: int) -> bool:
        """Return whether so many bytes of a streamed body are redacted on the thread, because others would wait too long."""
        if self.is_whole or self.body.is_heavy:
            return False
        if self.thread_bytes or self.is_slow or self.slow_count >= MAX_SLOW:
            return True
        return size > self.feed_size

    @property
    def feed_size(self) -> int:
        """The number of bytes of a streamed body that may be redacted at once without the thread."""
        return FAST_FEED if self.is_slow is False else INLINE_FEED

    def note_duration(self, seconds: float, size: int) -> None:
        """Note how long the redaction of so many bytes took, in seconds of the CPU."""
        self.is_slow = seconds > SLOW_FEED * max(1, size / INLINE_FEED)
        self.slow_count += self.is_slow
