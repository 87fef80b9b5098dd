"""Record one side's message: redact its body, here or on the thread, within the limits of size and memory.

`websocket_recording` records the messages of a WebSocket instead of a body.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Final

from calls.events import Data, MessageEnded, Side
from calls.model import Headers
from calls.redaction.body import BodyRedactor, DeferredBody, Piece
from calls.redaction.streams.streamed_body import StreamedBody, group_pieces, join_pieces
from proxy.recording.redaction_speed import INLINE_FEED, MIN_TIMED, RedactionSpeed
from proxy.recording.resources import RecordingResources
from proxy.recording.spool_outbox import RecordWriter

REDACT_INLINE_BYTES: Final = 32 << 10
"""Maximum decompressed size of a whole body that is redacted without a thread."""

REDACT_INLINE_SECONDS: Final = 0.01
"""Seconds of the CPU after which the thread goes on with a whole body: a secret may begin everywhere, and each byte then takes up to 10 µs."""

MAX_THREAD_BYTES: Final = 2 << 20
"""Bytes of one body that may wait for the thread: beyond them the worker waits for it, and with it all other connections.

More than a paused sender may still send, which is the window of its stream in HTTP/2 (`proxy.lane.h2.wire.WINDOW`).
"""


class MessageRecording:
    """Records the message of one side of an exchange."""

    __slots__ = (
        "_body",
        "_has_fault",
        "_is_finished",
        "_is_whole",
        "_resources",
        "_speed",
        "_thread_work",
        "_writer",
        "exchange",
        "has_ended",
        "is_truncated",
        "recorded_bytes",
        "reserved_bytes",
        "seen_bytes",
        "side",
        "thread_bytes",
    )

    def __init__(
        self, resources: RecordingResources, writer: RecordWriter, exchange: str, side: Side, body: BodyRedactor
    ) -> None:
        self._resources = resources
        self._writer = writer
        self.exchange = exchange
        self.side: Side = side
        self._body = body
        self._speed = RedactionSpeed()
        self.seen_bytes = 0
        self.recorded_bytes = 0
        """Bytes passed on to be redacted and written."""

        self.reserved_bytes = 0
        """Memory reserved for what is held."""

        self.thread_bytes = 0
        """Bytes that wait for the thread, or for their turn after it."""

        self._thread_work: Future[list[Piece]] | None = None
        """The last work of the thread for the body. Until it is done, nothing else may use the body redactor."""

        self._is_whole = False
        """Whether the message was complete before its body was recorded."""

        self._is_finished = False
        """Whether the body redactor has returned its last piece."""

        self._has_fault = False
        """Whether the redaction of a piece failed."""

        self.has_ended = False
        self.is_truncated = False

    def expect_whole(self, size: int) -> None:
        """Note that the body is complete and comes next. With a secret in it, a large one is redacted on the thread."""
        self._is_whole = True
        if (
            not self._body.is_heavy
            and INLINE_FEED < size <= self._resources.body_limit
            and self._resources.reserve_memory(size)
        ):
            self._resources.release_memory(size)
            self._body = DeferredBody(self._body)

    def record_pieces(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Record pieces of the body that follow one another, each with its time."""
        data = join_pieces(pieces)
        size = len(data)
        is_heavy = self._body.is_heavy
        exceeds_limit = self.recorded_bytes + size > self._resources.body_limit
        if len(pieces) > 1 and (is_heavy or exceeds_limit):
            for piece in pieces:
                self.record_pieces((piece,))
            return
        self.seen_bytes += size
        if self.is_truncated or self.has_ended or self.side in self._writer.lost_sides:
            self.is_truncated = True
        elif exceeds_limit or (is_heavy and not self._reserve(size)):
            self._record_last_piece(data, pieces[0][0])
        else:
            self.recorded_bytes += size
            if len(pieces) == 1:
                self._redact_pieces(pieces, data)
            for group in group_pieces(pieces, self._speed.feed_size) if len(pieces) > 1 else ():
                self._redact_pieces(group, join_pieces(group))

    def end(self, at: int, trailers: Headers = (), *, is_cut_off: bool = False) -> None:
        """Record the end of the message. `is_cut_off`: it did not end by itself, which is recorded only if bytes are missing."""
        self.has_ended = True
        self._finish_body()
        self._writer.call_in_turn(partial(self._write_end, at, trailers, is_cut_off))

    def _write_end(self, at: int, trailers: Headers, is_cut_off: bool) -> None:
        is_truncated = self.is_truncated or self.side in self._writer.lost_sides
        if is_cut_off and not is_truncated:
            return
        redactor = self._resources.redactor
        redact = redactor.redact_request_headers if self.side == "request" else redactor.redact_response_headers
        redacted = redact(trailers)[0] if trailers else ()
        self._writer.write(MessageEnded(self.exchange, at, self.side, self.seen_bytes, is_truncated, redacted))

    # -- pieces of the body

    def _redact_pieces(self, pieces: Sequence[tuple[int, bytes]], data: bytes) -> None:
        """Redact pieces here, or on the thread if that may take so long that other connections would wait."""
        if self.is_truncated:
            return
        body, size = self._body, len(data)
        if self._is_better_on_thread(size) and self._feed_on_thread(pieces, size):
            return
        began = time.thread_time() if size >= MIN_TIMED else None
        if self._writer.queue is None and body.try_pass(data):
            exchange, side = self.exchange, self.side
            self._writer.append_data([Data(exchange, at, side, data) for at, data in pieces])
        else:
            self._writer.append_data([self._data_event(piece) for piece in body.feed_together(pieces)])
            if not self._reserve_waiting():
                self._finish_body()
                self.is_truncated = True
        if began is not None:
            self._speed.note_duration(time.thread_time() - began, size)

    def _is_better_on_thread(self, size: int) -> bool:
        if self._is_whole or self._body.is_heavy:
            return False
        if self.thread_bytes > 0:
            return True
        # What is held back is searched together with the piece that decides it.
        waiting_size = self._body.waiting_size if isinstance(self._body, StreamedBody) else 0
        return self._speed.is_too_slow_for(size + waiting_size)

    def _feed_on_thread(self, pieces: Sequence[tuple[int, bytes]], size: int) -> bool:
        """Have the thread redact pieces, in their turn. Return False if they have to be redacted here."""
        self._wait_for_thread(unless_below=MAX_THREAD_BYTES)
        # Memory first: a queue that is opened without work for the thread would never be emptied.
        has_memory = self._resources.reserve_memory(size)
        if not has_memory or (queue := self._writer.open_queue()) is None:
            self._resources.release_memory(size if has_memory else 0)
            self._wait_for_thread()
            return False
        self.thread_bytes += size

        def redact_pieces() -> list[Piece]:
            began = time.thread_time()
            redacted = self._body.feed_together(pieces)
            self._speed.note_duration(time.thread_time() - began, size)
            return redacted

        self._thread_work = work = self._resources.run_on_thread(redact_pieces)
        queue.append(lambda: self._write_fed(work, size), work)
        return True

    def _write_fed(self, work: "Future[list[Piece]]", size: int) -> None:
        """Write what the thread has made of pieces of this size."""
        self.thread_bytes -= size
        self._resources.release_memory(size)
        if self._has_fault:
            return  # its offsets would be wrong
        if (fault := work.exception()) is not None:
            self._has_fault = self._is_finished = True
            self._write_fault(fault)
            return
        for piece in work.result():
            self._writer.write(self._data_event(piece))
        if not self._reserve_waiting():
            self.is_truncated = True

    def _wait_for_thread(self, *, unless_below: int = 0) -> None:
        """Let the worker wait for the thread if more of this body waits for it."""
        if self._thread_work is not None and self.thread_bytes > unless_below:
            wait([self._thread_work])

    def _data_event(self, piece: Piece) -> Data:
        at, data, redactions, size = piece
        original_size = None if size == len(data) else size
        return Data(self.exchange, at, self.side, data, "data", original_size, redactions, self._body.is_reencoded)

    # -- memory

    def _reserve(self, size: int) -> bool:
        """Reserve memory for a piece that has to be held."""
        if not self._resources.reserve_memory(size):
            return False
        self.reserved_bytes += size
        return True

    def resize_reservation(self, size: int) -> bool:
        """Reserve memory for what is held now, in place of the previous reservation."""
        self._resources.release_memory(self.reserved_bytes)
        self.reserved_bytes = 0
        return self._reserve(size)

    def _reserve_waiting(self) -> bool:
        """Reserve memory for the end of a stream that may still become a secret."""
        return not isinstance(self._body, StreamedBody) or self.resize_reservation(self._body.waiting_size)

    # -- the end of the body

    def _record_last_piece(self, data: bytes, at: int) -> None:
        """Record the piece that exceeds the size limit, up to the limit."""
        self.is_truncated = True
        self._wait_for_thread()
        if self._body.is_heavy:
            return
        # Redact the whole piece before truncating it, so that a secret is not split and missed.
        *pieces, last = [*self._body.feed(data, at), *self._body.finish()]
        self._is_finished = True
        self.resize_reservation(0)
        room = self._resources.body_limit - self.recorded_bytes
        for piece in [*pieces, last._replace(data=last.data[:room], size=min(room, len(last.data)))]:
            self._writer.append(self._data_event(piece))

    def _finish_body(self) -> None:
        """Record the rest of the body, now or once the thread has redacted it."""
        if self._is_finished:
            return
        self._is_finished = True
        limit = time.thread_time() + REDACT_INLINE_SECONDS
        pieces = (
            None
            if self.thread_bytes
            else self._body.finish_within(REDACT_INLINE_BYTES, lambda: time.thread_time() < limit)
        )
        if pieces is None and (queue := self._writer.open_queue()) is not None:
            work = self._resources.run_on_thread(self._body.finish)
            queue.append(lambda: self._write_finished(work), work)
            return
        self._writer.append_data(self._final_events(self._body.finish() if pieces is None else pieces))

    def _write_finished(self, work: "Future[list[Piece]]") -> None:
        """Write what the thread has made of the rest of the body."""
        if (fault := work.exception()) is not None:
            self._write_fault(fault)
            return
        for event in self._final_events(work.result()):
            self._writer.write(event)

    def _write_fault(self, fault: BaseException) -> None:
        """Record that redaction failed, which must neither keep the exchange open nor let an unredacted byte through."""
        self._final_events([])
        self.is_truncated = True
        # Not its words: those of a UnicodeDecodeError have the whole body.
        self._writer.record_gap(f"a body could not be redacted: {type(fault).__name__}")

    def _final_events(self, pieces: Sequence[Piece]) -> list[Data]:
        """Return the last events of the body, for which no memory is needed any longer."""
        self.resize_reservation(0)
        if self._body.withheld_reason:
            self.is_truncated = True
            self._writer.record_gap(self._body.withheld_reason)
        return [self._data_event(piece) for piece in pieces]
