"""mitmproxy's HTTP/2, with flow control: a slow reader slows its sender down instead of filling memory.

mitmproxy announces windows of 2 GiB, acknowledges all data at once, and buffers without limit what the other side does
not take. Here, the window of a stream is small, and data is not acknowledged while its reader's buffer is full.
"""

import asyncio
import re
import time
from typing import Any

import h2.config
import h2.errors
import h2.events
from hyperframe.frame import Frame, GoAwayFrame
from mitmproxy import http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import _http2, _http_h2
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseProtocolError,
    ResponseTrailers,
)

from proxy.mitm.layer_events import (
    Await,
    InterimResponse,
    PauseStream,
    PeerFull,
    PeerReady,
    ResumeStream,
    UpstreamMalformed,
    UpstreamReset,
)
from proxy.mitm.protocol.body_lengths import BodyLengths
from proxy.mitm.protocol.flood import FloodGuard
from proxy.wire.heads import fields_fault
from proxy.wire.trailers import is_sendable

WINDOW = 1 << 20
"""The receive window of one stream."""

_STATUS = re.compile(rb"[1-9][0-9][0-9]")

SLICE_BYTES = 512
"""Bytes to parse before the time spent is checked."""

TURN_SECONDS = 0.003
"""Seconds of parsing after which other connections get their turn."""

HIGH = 256 << 10
LOW = 64 << 10


class BufferedHttp2(_http_h2.BufferedH2Connection):
    """An h2 connection that announces `WINDOW` instead of mitmproxy's window."""

    def __init__(self, config: h2.config.H2Configuration) -> None:
        super().__init__(config)
        self.local_settings.initial_window_size = WINDOW
        self.local_settings.acknowledge()

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        """Go on with the streams that a GOAWAY does not end (RFC 9113 6.8). h2 takes the connection for closed."""
        event = h2.events.ConnectionTerminated()
        event.error_code, event.last_stream_id = frame.error_code, frame.last_stream_id
        return [], [event]

    def buffered_bytes(self, stream_id: int) -> int:
        """Return the bytes of a stream that are buffered because the peer's window is used up."""
        return sum(len(piece.data) for piece in self.stream_buffers.get(stream_id, ()))


class Http2(_http2.Http2Connection):
    """The base of both sides."""

    h2_conn: BufferedHttp2
    towards_client: bool
    MalformedMessage: type[RequestProtocolError | UpstreamMalformed]

    def __init__(self, context: Context, *args: Any) -> None:
        super().__init__(context, *args)
        self.h2_conn = BufferedHttp2(self.h2_conf)
        self.full_streams: set[int] = set()
        self.paused_streams: set[int] = set()
        self.owed_bytes: dict[int, int] = {}
        self.flood_guard = FloodGuard(preface=self.towards_client)
        self.body_lengths = BodyLengths()

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        """Report the data of a paused stream without acknowledging it. mitmproxy handles all other events."""
        if isinstance(event, h2.events.TrailersReceived) and (wrong := fields_fault(event.headers or ())):
            yield from self.end_malformed_stream(event.stream_id or 0, wrong)
            return False
        if (malformed := self.body_lengths.length_fault(event)) is not None:
            yield from self.end_malformed_stream(*malformed)
            return False
        match event:
            case h2.events.ConnectionTerminated():
                # The client opens no more streams, and closes the connection when it has its answers.
                return False
            case h2.events.DataReceived() if event.stream_id in self.paused_streams and event.stream_id in self.streams:
                self.owed_bytes[event.stream_id] = (
                    self.owed_bytes.get(event.stream_id, 0) + event.flow_controlled_length
                )
                if event.data:
                    yield ReceiveHttp(self.ReceiveData(event.stream_id, event.data))
                return False
            case h2.events.StreamReset():
                self.release_stream(event.stream_id)
        return (yield from super().handle_h2_event(event))

    def end_malformed_stream(self, stream_id: int, fault: str) -> CommandGenerator[None]:
        """End one stream with a malformed message (RFC 9113 8.1.1)."""
        if not self.is_closed(stream_id):
            self.h2_conn.reset_stream(stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            yield commands.SendData(self.conn, self.h2_conn.data_to_send())
        self.release_stream(stream_id)
        if self.streams.pop(stream_id, None) is not None:
            yield ReceiveHttp(self.MalformedMessage(stream_id, fault, self.ReceiveProtocolError.code))

    def release_stream(self, stream_id: int) -> None:
        """Resume a stream, and acknowledge what it owes, so that the connection's window does not shrink permanently."""
        self.paused_streams.discard(stream_id)
        self.full_streams.discard(stream_id)
        if owed := self.owed_bytes.pop(stream_id, 0):
            self.h2_conn.acknowledge_received_data(owed, stream_id)

    def regulate_stream(self, stream_id: int, event: PauseStream | ResumeStream) -> CommandGenerator[None]:
        """Pause or resume a stream."""
        if isinstance(event, PauseStream):
            self.paused_streams.add(stream_id)
            return
        self.release_stream(stream_id)
        yield commands.SendData(self.conn, self.h2_conn.data_to_send())

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, RequestTrailers | ResponseTrailers):
            sendable = [field for field in _lowercase_fields(event.trailers) if is_sendable(field[0].decode("latin-1"))]
            if not sendable:
                return
            event.trailers = http.Headers(sendable)
        elif isinstance(event, RequestData | ResponseData):
            self.flood_guard.credit_sent(len(event.data))
        elif isinstance(event, events.DataReceived):
            if self.flood_guard.is_flooded(event.data, time.monotonic()):
                why = "too many empty frames"
                yield from self.protocol_error(why, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            else:
                yield from self._process_in_slices(event)
            return
        yield from super()._handle_event(event)

    def _process_in_slices(self, event: events.DataReceived) -> CommandGenerator[None]:
        """Parse received data in slices: one read may contain frames that take seconds to parse."""
        at, size = 0, SLICE_BYTES
        while at < len(event.data) and not self.is_over:
            began = time.perf_counter()
            yield from super()._handle_event(events.DataReceived(event.connection, event.data[at : at + size]))
            at += size
            if time.perf_counter() - began < TURN_SECONDS:
                size *= 2
            else:
                size = SLICE_BYTES
                yield Await(lambda: asyncio.sleep(0))

    @property
    def is_over(self) -> bool:
        """Whether the connection was closed, so that further data is ignored."""
        return "_handle_event" in vars(self)

    def report_pressure(self, event: events.Event) -> CommandGenerator[None]:
        """Tell streams that their peer's buffer is full, or has room again."""
        if isinstance(event, RequestData | ResponseData):
            stream_id = event.stream_id
            if stream_id not in self.full_streams and self.h2_conn.buffered_bytes(stream_id) > HIGH:
                self.full_streams.add(stream_id)
                yield ReceiveHttp(PeerFull(stream_id, self.towards_client))
        elif isinstance(event, RequestProtocolError | ResponseProtocolError):
            self.release_stream(event.stream_id)
        elif self.full_streams:
            for stream_id in [s for s in self.full_streams if self.h2_conn.buffered_bytes(s) <= LOW]:
                self.full_streams.discard(stream_id)
                yield ReceiveHttp(PeerReady(stream_id, self.towards_client))


class Http2ClientSide(Http2, _http2.Http2Server):
    """The client side."""

    towards_client = True
    MalformedMessage = RequestProtocolError

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.pending_resets: dict[int, ResponseProtocolError] = {}
        """Streams to reset once their buffered data is sent, which an immediate reset would discard."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, PauseStream | ResumeStream):
            yield from self.regulate_stream(event.stream_id, event)
        elif isinstance(event, InterimResponse):
            if self.is_open_for_us(event.stream_id):
                head = [(b":status", b"%d" % event.response.status_code), *_lowercase_fields(event.response.headers)]
                self.h2_conn.send_headers(event.stream_id, head)
                yield commands.SendData(self.conn, self.h2_conn.data_to_send())
        elif isinstance(event, ResponseProtocolError) and self.h2_conn.buffered_bytes(event.stream_id):
            self.pending_resets[event.stream_id] = event
        elif isinstance(event, UpstreamReset):
            if not self.is_closed(event.stream_id):
                self.h2_conn.reset_stream(event.stream_id, event.error_code)
                yield commands.SendData(self.conn, self.h2_conn.data_to_send())
            self.release_stream(event.stream_id)
        else:
            yield from super()._handle_event(event)
            yield from self.report_pressure(event)
            for stream_id in [
                stream_id for stream_id in self.pending_resets if not self.h2_conn.buffered_bytes(stream_id)
            ]:
                yield from self._handle_event(self.pending_resets.pop(stream_id))


class Http2UpstreamSide(Http2, _http2.Http2Client):
    """The upstream side."""

    towards_client = False
    MalformedMessage = UpstreamMalformed

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.h2_conn.local_settings.enable_push = 0
        self.h2_conn.local_settings.acknowledge()
        self.is_retiring = False
        """Whether the upstream takes no new streams."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, PauseStream | ResumeStream):
            upstream_stream_id = self.our_stream_id.get(event.stream_id)
            if upstream_stream_id is not None:
                yield from self.regulate_stream(upstream_stream_id, event)
        else:
            yield from super()._handle_event(event)
            if self.is_retiring and not (self.streams or self.is_over):
                yield from self.close_connection("the upstream ended the connection")

    def _retire(self, last_stream_id: int) -> CommandGenerator[None]:
        """Open no more streams, and end those that the upstream will not process: their clients may repeat them."""
        self.is_retiring = True
        # Those that wait for others to end are not open yet. Any number stands for them that is not in use.
        waiting, unused = list(self.stream_queue), self.h2_conn.get_next_available_stream_id()
        self.stream_queue.clear()
        for stream_id in [stream_id for stream_id in self.streams if stream_id > last_stream_id]:
            yield from self._end_reset_stream(stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
        for client_stream_id in waiting:
            self.our_stream_id[client_stream_id], self.their_stream_id[unused] = unused, client_stream_id
            self.streams[unused] = _http2.StreamState.EXPECTING_HEADERS
            yield from self._end_reset_stream(unused, h2.errors.ErrorCodes.REFUSED_STREAM)

    def _end_reset_stream(self, stream_id: int, code: int) -> CommandGenerator[None]:
        self.release_stream(stream_id)
        if self.streams.pop(stream_id, None) is not None:
            why = f"the upstream reset the stream with code {code}"
            yield ReceiveHttp(UpstreamReset(stream_id, why, self.ReceiveProtocolError.code, code))

    def _handle_event2(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, RequestHeaders) and event.request.method == "HEAD":
            self.body_lengths.head_streams.add(event.stream_id)
        yield from super()._handle_event2(event)
        yield from self.report_pressure(event)

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        """Check the heads of responses, and forward interim ones, which mitmproxy discards."""
        if isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            # mitmproxy parses the status with int(), which accepts ` 200` and `+200`.
            (_, code), *others = event.headers or [(b"", b"")]
            sized = isinstance(event, h2.events.InformationalResponseReceived) and b"content-length" in dict(others)
            if _STATUS.fullmatch(code) is None or fields_fault(others) or sized:
                yield from self.end_malformed_stream(event.stream_id, "it is not a valid HTTP/2 message")
                return False
        if isinstance(event, h2.events.ConnectionTerminated):
            yield from self._retire(event.last_stream_id or 0)
            return False
        if isinstance(event, h2.events.StreamReset):
            yield from self._end_reset_stream(event.stream_id, int(event.error_code or 0))
            return False
        if isinstance(event, h2.events.InformationalResponseReceived):
            status, fields = _http2.parse_h2_response_headers(event.headers)
            interim = http.Response(b"HTTP/2.0", status, b"", fields, None, None, 0.0, None)
            yield ReceiveHttp(InterimResponse(event.stream_id, interim))
            return False
        return (yield from super().handle_h2_event(event))

    def protocol_error(
        self, message: str, error_code: int = h2.errors.ErrorCodes.PROTOCOL_ERROR
    ) -> CommandGenerator[None]:
        """Report a malformed response on each stream. mitmproxy reports that the upstream disconnected."""
        for command in super().protocol_error(message, error_code):
            if isinstance(command, ReceiveHttp) and isinstance(command.event, ResponseProtocolError):
                event = command.event
                yield ReceiveHttp(UpstreamMalformed(event.stream_id, "it is not a valid HTTP/2 message", event.code))
            else:
                yield command


def _lowercase_fields(headers: http.Headers) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers.fields]
