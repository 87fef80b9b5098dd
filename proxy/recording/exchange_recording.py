"""Record one exchange: redact it, and write its events to the spool.

External faults never raise here: the exchange continues, and what could not be recorded becomes a gap of the run or, by
policy, a refusal from `wait_until_recorded`. Times are arguments, in nanoseconds since the exchange began.

A complete message without anything to redact is written to the spool as one record, which costs a third of writing its
events one by one. Other messages (streamed, compressed, with a secret, or while the spool is in trouble) are written
event by event.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Final, Literal, NamedTuple, Protocol

from calls.events import Data, ExchangeClosed, MessageEnded, Record, RequestStarted, ResponseStarted, Side
from calls.model import ChunkKind, Headers, Outcome
from calls.redaction.body import DeferredBody, Piece
from calls.redaction.redactor import RedactedHead, Redactor
from calls.redaction.streams.streamed_body import StreamedBody, group_pieces, join_pieces
from calls.redaction.streams.streamed_messages import RedactedMessage
from proxy.recording.ordered_queue import OrderedQueue
from proxy.recording.recorded_message import MIN_TIMED, RecordedMessage
from proxy.recording.spool_outbox import Journal, SpoolOutbox
from store.spool import SpoolError

type Policy = Literal["gap", "refuse"]
"""What happens to a request that cannot be recorded: `gap` forwards it and records a gap, `refuse` refuses it."""

REDACT_INLINE_BYTES: Final = 32 << 10
"""Maximum decompressed size of a whole body with a secret that is redacted without a thread: others wait up to 10 µs for each byte."""
THREAD_BYTES: Final = 64 << 10
"""Bytes of an exchange waiting for the thread above which its senders should wait."""
MAX_THREAD_BYTES: Final = 256 << 10
"""Bytes of one body that may wait for the thread: the worker waits for it, where a sender does not."""
BEHIND_BYTES: Final = 1 << 20
"""Bytes waiting to be written above which fast senders should wait."""
SWITCHING_PROTOCOLS: Final = 101


class _End(NamedTuple):
    """The end of a message, in the queue. Its record is built when its turn comes, from the state of the message."""

    message: RecordedMessage
    at: int
    trailers: Headers = ()
    is_cut_off: bool = False
    """The message did not end by itself. The record is written only if bytes of it are missing."""


class RecordingContext(Protocol):
    """The part of `Recorder` that its recordings use."""

    spool: Journal
    redactor: Redactor
    outbox: SpoolOutbox
    counts: Counter[str]
    body_limit: int
    on_failure: Policy
    clean_reason: str
    """The last reason of a response in which no secret was found."""

    def reserve_memory(self, size: int) -> bool:
        """Reserve memory for a piece of a body that has to be held. Return False if there is not enough."""

    def release_memory(self, size: int) -> None:
        """Return reserved memory."""

    def run_on_thread(self, redact: Callable[[], list[Piece]]) -> "Future[list[Piece]]":
        """Redact a body, or a part of it, on a thread."""

    def add_redacting(self, recording: "ExchangeRecording") -> None:
        """Remember that a body of this recording is being redacted on a thread."""

    def remove_redacting(self, recording: "ExchangeRecording") -> None:
        """Forget it again."""


class ExchangeRecording:
    """Records one exchange. All methods but those that wait return at once, and external faults never raise."""

    __slots__ = (
        "_first_number",
        "_head",
        "_is_closed",
        "_is_start_lost",
        "_last_number",
        "_queue",
        "_recorder",
        "_request",
        "_request_pieces",
        "_response",
        "_run",
        "_started",
        "id",
        "loss_reason",
    )

    def __init__(self, recorder: RecordingContext, started: RequestStarted, head: RedactedHead) -> None:
        self.id = started.id
        self._recorder = recorder
        self._run = started.run
        self._started = started
        self._head = head
        self._request_pieces: list[tuple[int, bytes]] | None = []
        """The pieces of the request that have arrived while none of it is written; None once it is."""

        self._request: RecordedMessage | None = None
        """None while nothing of the request is written, or if it was written as one record."""

        self._response: RecordedMessage | None = None
        self._queue: OrderedQueue[Record | _End] | None = None
        """The items that wait for a body that is being redacted on a thread."""

        self._first_number = self._last_number = 0
        self._is_start_lost = False
        self.loss_reason = ""
        """Why part of the exchange was not recorded; empty if all of it was."""

        self._is_closed = False

    # -- events from the engine

    def record_data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None:
        """Record a piece of a body, or a WebSocket message."""
        if self._request_pieces is not None:
            if side == "request" and kind == "data":
                self._request_pieces.append((at, data))
                return
            self.flush_request()
        message = self._request if side == "request" else self._response
        if message is None or self._is_closed:
            return
        if kind == "data":
            self._record_pieces(message, ((at, data),))
        else:
            message.seen_bytes += len(data)
            self._record_message(message, data, at, kind)

    def record_response_pieces(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Record pieces of the response's body that follow one another, which costs less than one by one."""
        if self._request_pieces is not None:
            self.flush_request()
        if self._response is not None and not self._is_closed:
            self._record_pieces(self._response, pieces)

    def _record_pieces(self, message: RecordedMessage, pieces: Sequence[tuple[int, bytes]]) -> None:
        data = join_pieces(pieces)
        size = len(data)
        body = message.body
        if len(pieces) > 1 and (body.is_heavy or message.recorded_bytes + size > self._recorder.body_limit):
            for piece in pieces:
                self._record_pieces(message, (piece,))
            return
        message.seen_bytes += size
        if message.is_truncated or message.has_ended:
            message.is_truncated = True
        elif message.recorded_bytes + size > self._recorder.body_limit or (
            body.is_heavy and not self._reserve(message, size)
        ):
            self._record_last_piece(message, data, pieces[0][0])
        else:
            message.recorded_bytes += size
            if len(pieces) == 1:
                self._redact_pieces(message, pieces, data)
            for group in group_pieces(pieces, message.feed_size) if len(pieces) > 1 else ():
                self._redact_pieces(message, group, join_pieces(group))

    def _redact_pieces(self, message: RecordedMessage, pieces: Sequence[tuple[int, bytes]], data: bytes) -> None:
        """Redact pieces here, or on the thread if that may take so long that other connections would wait."""
        if message.is_truncated:
            return
        body, size = message.body, len(data)
        if message.is_better_on_thread(size) and self._feed_on_thread(message, pieces, size):
            return
        began = time.thread_time() if size >= MIN_TIMED else None
        if self._queue is None and body.try_pass(data):
            self._write_data([Data(self.id, at, message.side, data) for at, data in pieces])
        else:
            self._write_data([self._data_event(message, piece) for piece in body.feed_together(pieces)])
            if isinstance(body, StreamedBody) and not self._resize_reservation(message, body.waiting_size):
                self._finish_body(message)
                message.is_truncated = True
        if began is not None:
            message.note_duration(time.thread_time() - began, size)

    def _feed_on_thread(self, message: RecordedMessage, pieces: Sequence[tuple[int, bytes]], size: int) -> bool:
        """Have the thread redact pieces, in their turn. Return False if they have to be redacted here."""
        self._wait_for_thread(message, unless_below=MAX_THREAD_BYTES)
        if (queue := self._open_queue()) is None or not self._recorder.reserve_memory(size):
            self._wait_for_thread(message)
            return False
        message.thread_bytes += size
        body = message.body

        def redact_pieces() -> list[Piece]:
            began = time.thread_time()
            found = body.feed_together(pieces)
            message.note_duration(time.thread_time() - began, size)
            return found

        message.thread_work = work = self._recorder.run_on_thread(redact_pieces)

        def record_result() -> None:
            message.thread_bytes -= size
            self._recorder.release_memory(size)
            if message.has_fault:
                return  # its offsets would be wrong
            if work.exception() is not None:
                message.has_fault = message.is_finished = True
                self._record_redacted_body(message, work)
                return
            for piece in work.result():
                self._write(self._data_event(message, piece))
            if isinstance(body, StreamedBody) and not self._resize_reservation(message, body.waiting_size):
                message.is_truncated = True

        queue.append_work(work, record_result)
        return True

    def _wait_for_thread(self, message: RecordedMessage, *, unless_below: int = 0) -> None:
        """Let the worker wait for the thread if more of this body waits for it."""
        if message.thread_work is not None and message.thread_bytes > unless_below:
            wait([message.thread_work])

    def _open_queue(self) -> OrderedQueue[Record | _End] | None:
        """Return the queue behind a body that is being redacted on the thread; None if no event loop is running."""
        if self._queue is None:
            try:
                self._queue = OrderedQueue(self._write_item, self._drop_queue)
            except RuntimeError:
                return None
            self._recorder.add_redacting(self)
        return self._queue

    def record_response_head(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None:
        """Record the head of the response. Interim responses (1xx) are not recorded."""
        if self._is_closed or self._response is not None or (status < 200 and status != SWITCHING_PROTOCOLS):
            return
        self.flush_request()
        redactor = self._recorder.redactor
        head = redactor.redact_response_head(headers)
        self._response = RecordedMessage(
            "response", redactor.new_body_redactor(head.content_type, head.content_encoding, is_answer=True)
        )
        reason = redactor.redact_text(reason)
        self._enqueue(ResponseStarted(self.id, at, status, reason, http_version, head.headers, head.redactions))

    def record_end(self, side: Side, at: int, trailers: Headers = ()) -> None:
        """Record the end of one side's message."""
        if self._request_pieces is not None and side == "request":
            if not trailers and self._write_whole_request(self._request_pieces, at):
                return
            self.flush_request(is_whole=True)
        message = self._request if side == "request" else self._response
        if message is None or message.has_ended or self._is_closed:
            return
        message.has_ended = True
        self._finish_messages()
        self._finish_body(message)
        self._enqueue(_End(message, at, trailers))

    def record_truncation(self, side: Side) -> None:
        """Record that later bytes of one side are not reported."""
        self.flush_request()
        message = self._request if side == "request" else self._response
        if message is not None:
            message.is_truncated = True

    def record_close(self, at: int, outcome: Outcome, error: str | None = None) -> None:
        """Record the end of the exchange, whatever its outcome."""
        if self._is_closed:
            return
        self.flush_request()
        self._is_closed = True
        if outcome == "completed" and self.loss_reason and self._recorder.on_failure == "refuse":
            # `wait_until_recorded` returns False, so the engine breaks off the exchange before its client gets the end.
            outcome, error = "refused", f"not passed on, because it could not be recorded: {self.loss_reason}"
        self._finish_messages()
        self._recorder.counts[f"exchanges/{outcome}"] += 1
        for message in filter(None, (self._request, self._response)):
            if not message.has_ended:
                self._finish_body(message)
                self._enqueue(_End(message, at, is_cut_off=True))
        self._enqueue(
            ExchangeClosed(self.id, at, outcome, None if error is None else self._recorder.redactor.redact_text(error))
        )

    def record_request(self, body: bytes, at: int) -> None:
        """Record a complete request body."""
        if (
            self._request_pieces is None
            or self._request_pieces
            or not self._write_whole_request([(at, body)] if body else [], at)
        ):
            if body:
                self.record_data("request", body, at)
            self.record_end("request", at)

    def record_response(
        self,
        at: int,
        status: int,
        reason: str,
        http_version: str,
        headers: Headers,
        body: bytes,
        *,
        completes_exchange: bool,
    ) -> None:
        """Record a complete response and, with `completes_exchange`, the end of the exchange."""
        if not (completes_exchange and self._write_whole_response(at, status, reason, http_version, headers, body)):
            self.record_response_head(at, status, reason, http_version, headers)
            if message := self._response:
                message.is_whole = True
                if not message.body.is_heavy and self._is_better_deferred(len(body)):
                    message.body = DeferredBody(message.body)
            if body:
                self.record_data("response", body, at)
            self.record_end("response", at)
            if completes_exchange:
                self.record_close(at, "completed")

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that it would delay the next response of every exchange."""
        waiting = sum([message.thread_bytes for message in (self._request, self._response) if message is not None])
        return waiting > THREAD_BYTES or self._recorder.spool.queued_bytes > BEHIND_BYTES

    def is_recorded_now(self) -> bool:
        """Return whether everything so far is recorded, writing it now if possible. If False, use `wait_until_recorded`."""
        if self._request_pieces is not None:
            self.flush_request()
        return self._queue is None and not self.loss_reason and self._recorder.spool.write_now(self._last_number)

    async def wait_until_recorded(self) -> bool:
        """Wait until everything so far is recorded. Return False if it is not and the policy is to refuse."""
        self.flush_request()
        await self.wait_for_redaction()
        if not self.loss_reason:
            try:
                await self._recorder.spool.wait_until_durable(self._last_number, self._first_number)
            except SpoolError as error:
                self._note_loss(str(error))
        return not self.loss_reason or self._recorder.on_failure == "gap"

    async def wait_for_redaction(self) -> None:
        """Wait until no body is being redacted on a thread."""
        if self._queue is not None:
            await self._queue.wait_until_empty()

    # -- complete messages

    def _write_whole_request(self, pieces: Sequence[tuple[int, bytes]], at: int) -> bool:
        """Write the complete request as one record, if possible."""
        body = pieces[0][1] if len(pieces) == 1 else b"".join([data for _, data in pieces])
        recorder, name = self._recorder, self.id
        if not self._head.is_plain or len(body) > recorder.body_limit:
            return False
        if body and not recorder.redactor.is_clean(body):
            return False
        chunks = [Data(name, when, "request", data) for when, data in pieces]
        number = recorder.outbox.write_together([self._started, *chunks, MessageEnded(name, at, "request", len(body))])
        if number is None:
            return False
        self._request_pieces = None
        self._first_number = self._last_number = number
        return True

    def _write_whole_response(
        self, at: int, status: int, reason: str, version: str, headers: Headers, body: bytes
    ) -> bool:
        """Write the complete response and the end of the exchange as one record, if possible."""
        if self._request is not None or self._request_pieces is not None or self._response is not None:
            return False
        recorder, name = self._recorder, self.id
        if self._is_closed or self.loss_reason or len(body) > recorder.body_limit:
            return False
        head = recorder.redactor.redact_whole_response(headers, body)
        if head is None:
            return False
        if reason != recorder.clean_reason:
            redacted = recorder.redactor.redact_text(reason)
            if redacted == reason:
                recorder.clean_reason = reason
            reason = redacted
        started = ResponseStarted(name, at, status, reason, version, head.headers, head.redactions)
        message_end, exchange_end = MessageEnded(name, at, "response", len(body)), ExchangeClosed(name, at, "completed")
        together = (
            (started, Data(name, at, "response", body), message_end, exchange_end)
            if body
            else (started, message_end, exchange_end)
        )
        number = recorder.outbox.write_together(together)
        if number is None:
            return False
        self._last_number = number
        self._is_closed = True
        recorder.counts["exchanges/completed"] += 1
        return True

    def flush_request(self, *, is_whole: bool = False) -> None:
        """Write the events of the request that were held back, and later ones as they come. `is_whole`: there are none."""
        gathered, self._request_pieces = self._request_pieces, None
        if gathered is not None:
            body = self._head.new_body_redactor()
            if is_whole and not body.is_heavy and self._is_better_deferred(sum(len(data) for _, data in gathered)):
                body = DeferredBody(body)
            self._request = RecordedMessage("request", body, is_whole=is_whole)
            self._enqueue(self._started)
            self._first_number = self._last_number
            for at, data in gathered:
                self.record_data("request", data, at)

    # -- bodies

    def _is_better_deferred(self, size: int) -> bool:
        """Return whether a whole body of this size with a secret is redacted on the thread, where there is memory for it."""
        if not REDACT_INLINE_BYTES < size <= self._recorder.body_limit or not self._recorder.reserve_memory(size):
            return False
        self._recorder.release_memory(size)
        return True

    def _reserve(self, message: RecordedMessage, size: int) -> bool:
        """Reserve memory for a piece that has to be held."""
        if not self._recorder.reserve_memory(size):
            return False
        message.reserved_bytes += size
        return True

    def _resize_reservation(self, message: RecordedMessage, size: int) -> bool:
        """Reserve memory for the end of a stream that may still become a secret, in place of the previous reservation."""
        self._recorder.release_memory(message.reserved_bytes)
        message.reserved_bytes = 0
        return self._reserve(message, size)

    def _record_last_piece(self, message: RecordedMessage, data: bytes, at: int) -> None:
        """Record the piece that exceeds the size limit, up to the limit."""
        message.is_truncated = True
        self._wait_for_thread(message)
        if message.body.is_heavy:
            return
        # Redact the whole piece before truncating it, so that a secret is not split and missed.
        *pieces, last = [*message.body.feed(data, at), *message.body.finish()]
        message.is_finished = True
        self._recorder.release_memory(message.reserved_bytes)
        message.reserved_bytes = 0
        room = self._recorder.body_limit - message.recorded_bytes
        for piece in [*pieces, last._replace(data=last.data[:room], size=min(room, len(last.data)))]:
            self._enqueue(self._data_event(message, piece))

    def _finish_body(self, message: RecordedMessage) -> None:
        """Record the rest of a body, now or once the thread has redacted it."""
        if message.is_finished:
            return
        message.is_finished = True
        pieces = None if message.thread_bytes else message.body.finish_within(REDACT_INLINE_BYTES)
        if pieces is None and (queue := self._open_queue()) is not None:
            working = self._recorder.run_on_thread(message.body.finish)
            queue.append_work(working, lambda: self._record_redacted_body(message, working))
            return
        self._record_final_pieces(message, message.body.finish() if pieces is None else pieces, self._enqueue)

    def _record_final_pieces(
        self, message: RecordedMessage, pieces: list[Piece], write: Callable[[Data], None]
    ) -> None:
        self._recorder.release_memory(message.reserved_bytes)
        if message.body.withheld_reason:
            message.is_truncated = True
            self._recorder.outbox.record_gap(self._run, message.body.withheld_reason, self.id)
        events = [self._data_event(message, piece) for piece in pieces]
        if not self._write_together(events):
            for event in events:
                write(event)

    def _write_data(self, events: list[Data]) -> None:
        """Write pieces of a body in their turn."""
        if not self._write_together(events):
            for event in events:
                self._enqueue(event)

    def _write_together(self, events: list[Data]) -> bool:
        """Write events as one record, if possible now."""
        if len(events) < 2 or self._queue is not None or self._is_start_lost or self.loss_reason:
            return False
        number = self._recorder.outbox.write_together(events)
        if number is None:
            return False
        self._last_number = number
        return True

    def _data_event(self, message: RecordedMessage, piece: Piece) -> Data:
        at, data, redactions, size = piece
        original_size = None if size == len(data) else size
        return Data(self.id, at, message.side, data, "data", original_size, redactions, message.body.is_reencoded)

    def _record_message(self, message: RecordedMessage, data: bytes, at: int, kind: ChunkKind) -> None:
        """Record a WebSocket message, which is always complete."""
        if message.messages is None:
            message.messages = self._head.redactor.new_message_redactor()
        if message.recorded_bytes + len(data) > self._recorder.body_limit:
            if not message.is_truncated:
                self._recorder.outbox.record_gap(
                    self._run, f"the {message.side} messages went on beyond the limit", self.id
                )
            self._enqueue_messages(message, message.messages.finish())
            message.is_truncated = True
            self._enqueue(Data(self.id, at, message.side, b"", kind, len(data)))
            return
        message.recorded_bytes += len(data)
        self._enqueue_messages(message, message.messages.feed(data, at, kind))
        if message.messages.waiting_size > message.reserved_bytes and not self._resize_reservation(
            message, message.messages.waiting_size
        ):
            self._recorder.outbox.record_gap(
                self._run, f"there was no room to hold the {message.side} messages back", self.id
            )
            self._enqueue_messages(message, message.messages.finish())
            message.is_truncated = True
            message.recorded_bytes = self._recorder.body_limit

    def _enqueue_messages(self, message: RecordedMessage, redacted: list[RedactedMessage]) -> None:
        for at, kind, data, count, fault, size in redacted:
            if fault is None:
                self._enqueue(Data(self.id, at, message.side, data, kind, None, count))
                continue
            self._recorder.outbox.record_gap(self._run, f"a message could not be redacted ({fault})", self.id)
            message.is_truncated = True
            message.recorded_bytes -= size
            self._enqueue(Data(self.id, at, message.side, b"", kind, size))

    def _finish_messages(self) -> None:
        """Record what is still held of WebSocket messages."""
        for message in (self._request, self._response):
            if message is not None and message.messages is not None:
                self._enqueue_messages(message, message.messages.finish())
                self._resize_reservation(message, 0)

    # -- the queue

    def _enqueue(self, item: Record | _End) -> None:
        """Write an item in its turn, which is nearly always now."""
        if self._queue is None:
            self._write_item(item)
        else:
            self._queue.append(item)

    def _drop_queue(self) -> None:
        self._queue = None
        self._recorder.remove_redacting(self)

    def _record_redacted_body(self, message: RecordedMessage, pieces: "Future[list[Piece]]") -> None:
        mistake = pieces.exception()
        if mistake is None:
            self._record_final_pieces(message, pieces.result(), self._write)
            return
        # An internal error must neither keep the exchange open nor let an unredacted byte through.
        self._record_final_pieces(message, [], self._write)
        message.is_truncated = True
        self._recorder.outbox.record_gap(self._run, f"a body could not be redacted: {mistake!r}", self.id)

    def _write_item(self, item: Record | _End) -> None:
        if not isinstance(item, _End):
            self._write(item)
        elif not item.is_cut_off or item.message.is_truncated:
            message = item.message
            redactor = self._recorder.redactor
            redact = redactor.redact_request_headers if message.side == "request" else redactor.redact_response_headers
            trailers = redact(item.trailers)[0] if item.trailers else ()
            self._write(
                MessageEnded(self.id, item.at, message.side, message.seen_bytes, message.is_truncated, trailers)
            )

    def _write(self, record: Record) -> None:
        if self._is_start_lost or (
            self.loss_reason and isinstance(record, Data) and self._message(record.side).has_loss
        ):
            return
        result = self._recorder.outbox.write(record)
        if isinstance(result, int):
            self._last_number = result
            return
        if isinstance(record, RequestStarted):
            self._is_start_lost = True
        elif isinstance(record, Data):
            message = self._message(record.side)
            message.is_truncated = message.has_loss = True
        self._note_loss(result)

    def _message(self, side: Side) -> RecordedMessage:
        """Return the message of one side, of which a piece was already written."""
        message = self._request if side == "request" else self._response
        assert message is not None
        return message

    def _note_loss(self, reason: str) -> None:
        if not self.loss_reason:
            self.loss_reason = reason
            self._recorder.outbox.record_gap(self._run, reason, self.id)
