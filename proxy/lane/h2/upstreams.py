"""HTTP/2 connections to upstreams, and one request on them."""

import logging
import time
from collections.abc import Callable
from typing import Final

import ngh2

from calls.model import Headers, header
from proxy.lane.admission import LaneRequest
from proxy.lane.exchange import INTERNAL_ERROR
from proxy.lane.h2.heads import downstream_head, h2_trailers, text_fields
from proxy.lane.h2.wire import Flow, Wire
from proxy.lane.heads import Fields
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.upstream_http1 import ResponseSink
from proxy.wire.http1_heads import is_length

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 15.0
"""Seconds of silence during a request after which a connection may be dead, so that it gets no new requests."""

_REFUSED: Final = int(ngh2.ErrorCode.REFUSED_STREAM)
_MALFORMED: Final = int(ngh2.ErrorCode.PROTOCOL_ERROR)


class SharedConnection(Wire):
    """One connection to an upstream, shared by clients."""

    def __init__(self, call_last: Callable[[Callable[[], None]], None], receive_queue: ReceiveQueue) -> None:
        super().__init__(ngh2.Role.CLIENT, {ngh2.Setting.ENABLE_PUSH: 0}, call_last, receive_queue)
        self.stream_count = 0
        self.idle_since = self.last_heard_at = time.monotonic()
        self._max_streams = 100
        self._flows: dict[int, Http2Carrier]
        self._handlers |= {
            ngh2.SettingsReceived: self._on_settings,
            ngh2.InformationalResponseReceived: self._on_interim,
            ngh2.ResponseReceived: self._on_response,
            ngh2.DataReceived: self._on_data,
            ngh2.TrailersReceived: self._on_trailers,
            ngh2.StreamReset: self._on_reset,
            ngh2.StreamClosed: self._on_close,
            ngh2.GoAwayReceived: self._on_goaway,
        }

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened."""
        if self.is_retiring or len(self._flows) >= self._max_streams:
            return False
        return self.is_idle or time.monotonic() - self.last_heard_at < SILENT_SECONDS

    @property
    def is_idle(self) -> bool:
        """Whether there are no streams."""
        return not self._flows

    def new_carrier(self) -> "Http2Carrier":
        """Return the carrier of one more request."""
        return Http2Carrier(self)

    def open_stream(self, carrier: "Http2Carrier", fields: Fields, *, ends_stream: bool) -> bool:
        """Open a stream with a request. Return False if the connection takes no more."""
        try:
            carrier.number = self._session.send_request(fields, end_stream=ends_stream)
        except (ngh2.ConnectionClosingError, ngh2.ConnectionStateError, ngh2.NoAvailableStreamIDError):
            self.is_retiring = True
            return False
        self._flows[carrier.number] = carrier
        self.stream_count += 1
        return True

    def data_received(self, data: bytes) -> None:
        self.last_heard_at = time.monotonic()
        super().data_received(data)

    def handle_loss(self) -> None:
        carriers, self._flows = list(self._flows.values()), {}
        for carrier in carriers:
            carrier.handle_loss()

    def handle_fault(self, fault: BaseException, event: ngh2.Event | None = None) -> None:
        carrier = self._flows.get(getattr(event, "stream_id", 0))
        if carrier is not None:
            carrier.handle_fault(fault)
            return
        logger.error(
            "a connection to an upstream was closed after an internal error: %s", type(fault).__name__, exc_info=fault
        )
        self.abort()
        self.handle_loss()

    # Events of the session

    def _on_settings(self, event: ngh2.SettingsReceived) -> None:
        self._max_streams = event.settings.get(ngh2.Setting.MAX_CONCURRENT_STREAMS, self._max_streams)

    def _on_interim(self, event: ngh2.InformationalResponseReceived) -> None:
        if carrier := self._flows.get(event.stream_id):
            carrier.handle_interim(event)

    def _on_response(self, event: ngh2.ResponseReceived) -> None:
        if carrier := self._flows.get(event.stream_id):
            carrier.handle_response(event)

    def _on_data(self, event: ngh2.DataReceived) -> None:
        if carrier := self._flows.get(event.stream_id):
            carrier.handle_data(event)
        self.acknowledge(event.stream_id, len(event.data))

    def _on_trailers(self, event: ngh2.TrailersReceived) -> None:
        if carrier := self._flows.get(event.stream_id):
            carrier.handle_trailers(event)

    def _on_reset(self, event: ngh2.StreamReset) -> None:
        if carrier := self._flows.get(event.stream_id):
            carrier.reset_code = event.error_code

    def _on_close(self, event: ngh2.StreamClosed) -> None:
        if carrier := self._flows.get(event.stream_id):
            self.forget(carrier)
            self.idle_since = time.monotonic()
            carrier.handle_close(event)

    def _on_goaway(self, _: ngh2.GoAwayReceived) -> None:
        # libnghttp2 closes streams above the last processed one as refused (RFC 9113 6.8).
        self.is_retiring = True


class Http2Carrier(Flow):
    """One request on such a connection, and its response."""

    can_refuse = True
    is_spent = False
    """Always False: an upstream that needs no more of a request closes the stream."""

    def __init__(self, shared: SharedConnection) -> None:
        super().__init__(0)
        self._shared = shared
        self._is_fresh = shared.stream_count == 0
        self._sink: ResponseSink | None = None
        self.has_heard = self._has_head = False
        """Whether the head of a response was received."""

        self._is_request_sent = self._is_response_whole = False
        """Which of the two messages are complete."""

        self._remaining: int | None = None
        """The remaining length of the body, if the head has a Content-Length."""

        self._held_back = b""
        """The piece that completes that length, held back until the end of the stream."""

        self.reset_code: int | None = None
        """The error code with which the upstream reset the stream."""

    def send_request(self, sink: ResponseSink, request: LaneRequest, body: bytes | None, trailers: Headers) -> None:
        self._sink = sink
        if not self._shared.open_stream(self, request.h2_fields, ends_stream=body == b"" and not trailers):
            sink.handle_disconnect(INTERNAL_ERROR, is_refused=True)
        elif body is None:
            self._shared.push()
        elif body or trailers:
            self.send_end(body, trailers)
        else:
            self._is_request_sent = True
            self._shared.push()

    def send(self, data: bytes) -> None:
        self._shared.send(self, data)

    def send_end(self, data: bytes, trailers: Headers) -> None:
        self._is_request_sent = True
        self._shared.end(self, data, h2_trailers(trailers))

    def set_paused(self, *, is_paused: bool) -> None:
        self._shared.set_paused(self, is_paused=is_paused)

    def drop(self, code: int) -> None:
        self.finish()  # ends the reporting only, not the stream
        self._shared.reset(self, code)

    def finish(self) -> None:
        self._sink = None
        self._shared.set_paused(self, is_paused=False)

    def release(self) -> None:
        pass  # there is no stream yet

    def set_peer_full(self, *, is_full: bool) -> None:
        if self._sink is not None:
            self._sink.set_upstream_full(is_full=is_full)

    # Events of the connection

    def handle_interim(self, event: ngh2.InformationalResponseReceived) -> None:
        """Handle an interim response."""
        self.has_heard = self._has_head = True
        if self._sink is not None:
            self._sink.handle_interim(downstream_head(event.headers))

    def handle_response(self, event: ngh2.ResponseReceived) -> None:
        """Handle the head of the response."""
        self.has_heard = self._has_head = True
        self._is_response_whole = event.end_stream
        if self._sink is None:
            return
        head = downstream_head(event.headers)
        length = header(head.fields, "content-length")
        if length is not None and not is_length(length):
            sink = self._sink
            self.drop(_MALFORMED)
            sink.handle_malformed("its Content-Length is not a plain number")
            return
        if event.end_stream:
            self._sink.handle_whole_response(head, b"")
            return
        self._remaining = None if length is None else int(length)
        self._sink.handle_response(head, is_head_alone=self._remaining != 0)

    def handle_data(self, event: ngh2.DataReceived) -> None:
        """Handle a piece of the body."""
        data = event.data
        self.has_heard, self._is_response_whole = True, event.end_stream
        if self._sink is None:
            return
        if event.end_stream:
            self._sink.handle_end((data,), b"", self._held_back + data, ())
            return
        if self._remaining is not None:
            self._remaining -= len(data)
            if self._remaining <= 0:
                # A client that counts bytes would take the response for complete here, before its end is recorded.
                self._held_back += data
                self._sink.handle_data(b"", (data,))
                return
        self._sink.handle_data(data, (data,))

    def handle_trailers(self, event: ngh2.TrailersReceived) -> None:
        """Handle the trailers."""
        self.has_heard = self._is_response_whole = True
        if self._sink is not None:
            self._sink.handle_end((), b"", self._held_back, text_fields(event.headers))

    def handle_close(self, event: ngh2.StreamClosed) -> None:
        """Handle the end of the stream, closed by both sides or reset by one."""
        if self._is_response_whole and self._is_request_sent:
            return
        sink = self._sink
        if self.reset_code is None and event.error_code == _MALFORMED and sink is not None:
            # Forward the body received so far: its length may be what is wrong.
            if self._held_back:
                sink.handle_data(self._held_back, ())
            sink.handle_malformed("it is not a valid HTTP/2 message")
        else:
            self._report_disconnect(event.error_code, is_refused=event.error_code == _REFUSED and not self._has_head)

    def handle_fault(self, fault: BaseException) -> None:
        """Break off this request after an internal error."""
        sink = self._sink
        self.drop(INTERNAL_ERROR)
        if sink is not None:
            sink.handle_fault(fault)

    def handle_loss(self) -> None:
        """Handle the loss of the connection."""
        self._report_disconnect(INTERNAL_ERROR, is_unanswered=not (self._has_head or self._is_fresh))

    def _report_disconnect(self, code: int, *, is_refused: bool = False, is_unanswered: bool = False) -> None:
        if self._sink is None:
            return
        if self._held_back and not self._is_response_whole:
            self._sink.handle_data(self._held_back, ())
        self._sink.handle_disconnect(code, is_refused=is_refused, is_unanswered=is_unanswered)
