"""Record one exchange: what an engine reports of it becomes redacted events in the spool.

External faults never raise here: the exchange continues, and what could not be recorded becomes a gap of the run or, by
policy, a refusal from `wait_until_recorded`. Times are arguments, in nanoseconds since the exchange began.

A complete message without anything to redact is written to the spool as one record, which costs a third of writing its
events one by one. `message_recording` records every other one: streamed, compressed, with a secret, or while the spool is
in trouble.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from calls.events import Data, ExchangeClosed, MessageEnded, RequestStarted, ResponseStarted, Side
from calls.model import ChunkKind, Headers, Outcome
from calls.redaction.redactor import RedactedHead
from proxy.recording.message_recording import MessageRecording
from proxy.recording.resources import RecordingResources
from proxy.recording.spool_outbox import RecordWriter
from proxy.recording.websocket_recording import WebsocketRecording

THREAD_BYTES: Final = 64 << 10
"""Bytes of an exchange waiting for the thread above which its senders should wait."""
BEHIND_BYTES: Final = 1 << 20
"""Bytes waiting to be written above which fast senders should wait."""
SWITCHING_PROTOCOLS: Final = 101


class ExchangeRecording(msgspec.Struct, eq=False):
    """Records one exchange. All methods but those that wait return at once, and external faults never raise."""

    id: str
    _resources: RecordingResources
    _writer: RecordWriter
    _started: RequestStarted
    _head: RedactedHead
    _request_pieces: list[tuple[int, bytes]] | None = []
    """The pieces of the request that have arrived while none of it is written; None once it is."""

    _request: MessageRecording | None = None
    """None while nothing of the request is written, or if it was written as one record."""

    _response: MessageRecording | None = None
    _websocket: WebsocketRecording | None = None
    _is_closed: bool = False

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
            message.record_pieces(((at, data),))
        else:
            self._websocket = self._websocket or WebsocketRecording(
                self._head.redactor, self._writer, self._resources.body_limit
            )
            self._websocket.record(message, data, at, kind)

    def record_response_pieces(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Record pieces of the response's body that follow one another, which costs less than one by one."""
        if self._request_pieces is not None:
            self.flush_request()
        if self._response is not None and not self._is_closed:
            self._response.record_pieces(pieces)

    def record_response_head(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None:
        """Record the head of the response. Interim responses (1xx) are not recorded."""
        if self._is_closed or self._response is not None or (status < 200 and status != SWITCHING_PROTOCOLS):
            return
        self.flush_request()
        redactor = self._resources.redactor
        head = redactor.redact_response_head(headers)
        body = redactor.new_body_redactor(head.content_type, head.content_encoding, is_answer=True)
        self._response = MessageRecording(self._resources, self._writer, self.id, "response", body)
        reason = redactor.redact_text(reason)
        self._writer.append(ResponseStarted(self.id, at, status, reason, http_version, head.headers, head.redactions))

    def record_end(self, side: Side, at: int, trailers: Headers = ()) -> None:
        """Record the end of one side's message."""
        if self._request_pieces is not None and side == "request":
            if not trailers and self._write_whole_request(self._request_pieces, at):
                return
            self.flush_request(is_whole=True)
        message = self._request if side == "request" else self._response
        if message is None or message.has_ended or self._is_closed:
            return
        if self._websocket is not None:
            self._websocket.finish()
        message.end(at, trailers)

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
        if outcome == "completed" and self.loss_reason and self._resources.on_failure == "refuse":
            # `wait_until_recorded` returns False, so the engine breaks off the exchange before its client gets the end.
            outcome, error = "refused", f"not passed on, because it could not be recorded: {self.loss_reason}"
        if self._websocket is not None:
            self._websocket.finish()
        self._resources.counts[f"exchanges/{outcome}"] += 1
        for message in (self._request, self._response):
            if message is not None and not message.has_ended:
                message.end(at, is_cut_off=True)
        error = None if error is None else self._resources.redactor.redact_text(error)
        self._writer.append(ExchangeClosed(self.id, at, outcome, error))

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
            if self._response is not None:
                self._response.expect_whole(len(body))
            if body:
                self.record_data("response", body, at)
            self.record_end("response", at)
            if completes_exchange:
                self.record_close(at, "completed")

    # -- what the engine waits for

    @property
    def loss_reason(self) -> str:
        """Why part of the exchange was not recorded; empty if all of it was."""
        return self._writer.loss_reason

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that it would delay the next response of every exchange."""
        waiting = sum([message.thread_bytes for message in (self._request, self._response) if message is not None])
        return waiting > THREAD_BYTES or self._resources.outbox.spool.queued_bytes > BEHIND_BYTES

    def is_recorded_now(self) -> bool:
        """Return whether everything so far is recorded, writing it now if possible. If False, use `wait_until_recorded`."""
        if self._request_pieces is not None:
            self.flush_request()
        return self._writer.is_written_now()

    async def wait_until_recorded(self) -> bool:
        """Wait until everything so far is recorded. Return False if it is not and the policy is to refuse."""
        self.flush_request()
        return await self._writer.wait_until_written() or self._resources.on_failure == "gap"

    # -- complete messages

    def _write_whole_request(self, pieces: Sequence[tuple[int, bytes]], at: int) -> bool:
        """Write the complete request as one record, if possible."""
        body = pieces[0][1] if len(pieces) == 1 else b"".join([data for _, data in pieces])
        resources, name = self._resources, self.id
        if not self._head.is_plain or len(body) > resources.body_limit:
            return False
        if body and not resources.redactor.is_clean(body):
            return False
        chunks = [Data(name, when, "request", data) for when, data in pieces]
        if not self._writer.write_together([self._started, *chunks, MessageEnded(name, at, "request", len(body))]):
            return False
        self._request_pieces = None
        return True

    def _write_whole_response(
        self, at: int, status: int, reason: str, version: str, headers: Headers, body: bytes
    ) -> bool:
        """Write the complete response and the end of the exchange as one record, if possible."""
        if self._request is not None or self._request_pieces is not None or self._response is not None:
            return False
        resources, name = self._resources, self.id
        if self._is_closed or len(body) > resources.body_limit:
            return False
        head = resources.redactor.redact_whole_response(headers, body)
        if head is None:
            return False
        if reason != resources.clean_reason:
            redacted = resources.redactor.redact_text(reason)
            if redacted == reason:
                resources.clean_reason = reason
            reason = redacted
        started = ResponseStarted(name, at, status, reason, version, head.headers, head.redactions)
        message_end, exchange_end = MessageEnded(name, at, "response", len(body)), ExchangeClosed(name, at, "completed")
        if not self._writer.write_together(
            (started, Data(name, at, "response", body), message_end, exchange_end)
            if body
            else (started, message_end, exchange_end)
        ):
            return False
        self._is_closed = True
        resources.counts["exchanges/completed"] += 1
        return True

    def flush_request(self, *, is_whole: bool = False) -> None:
        """Write the events of the request that were held back, and later ones as they come. `is_whole`: there are none."""
        gathered, self._request_pieces = self._request_pieces, None
        if gathered is None:
            return
        body = self._head.new_body_redactor()
        self._request = MessageRecording(self._resources, self._writer, self.id, "request", body)
        if is_whole:
            self._request.expect_whole(sum(len(data) for _, data in gathered))
        self._writer.append(self._started)
        for at, data in gathered:
            self._request.record_pieces(((at, data),))
