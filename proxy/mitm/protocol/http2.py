"""HTTP/2 by mitmproxy, with flow control: a slow reader slows its sender down instead of filling memory.

mitmproxy announces windows of 2 GiB, acknowledges all it reads at once, and buffers without bound what the other side
does not take. Here a stream's window is small, and while its reader's buffer is full nothing more is acknowledged.
"""

import asyncio
import re
import time
from typing import Any

import h2.config
import h2.errors
import h2.events
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

from proxy.mitm.layer_events import Await, Full, Hold, Informational, Resume, Room, UpstreamMalformed
from proxy.mitm.protocol.body_lengths import BodyLengths
from proxy.mitm.protocol.flood import FloodGuard
from proxy.wire.heads import fields_fault
from proxy.wire.trailers import is_sendable

WINDOW = 1 << 20
"""What a sender may have under way on one stream."""

_STATUS = re.compile(rb"[1-9][0-9][0-9]")

SLICE = 512
"""Bytes that are taken apart before it is looked at how long that took."""

TURN = 0.003
"""Seconds that one connection may take before others have their turn."""

HIGH = 256 << 10
LOW = 64 << 10


class BufferedHttp2(_http_h2.BufferedH2Connection):
    """Announces our window instead of mitmproxy's."""

    def __init__(self, config: h2.config.H2Configuration) -> None:
        super().__init__(config)
        self.local_settings.initial_window_size = WINDOW
        self.local_settings.acknowledge()

    def waiting(self, stream_id: int) -> int:
        """How many bytes of this stream the peer has not let us send."""
        return sum(len(piece.data) for piece in self.stream_buffers.get(stream_id, ()))


class Http2(_http2.Http2Connection):
    """What both sides share."""

    h2_conn: BufferedHttp2
    towards_client: bool
    MalformedMessage: type[RequestProtocolError | UpstreamMalformed]

    def __init__(self, context: Context, *args: Any) -> None:
        super().__init__(context, *args)
        self.h2_conn = BufferedHttp2(self.h2_conf)
        self.full: set[int] = set()
        self.held: set[int] = set()
        self.owed: dict[int, int] = {}
        self.flood = FloodGuard(preface=self.towards_client)
        self.lengths = BodyLengths()

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        """Deliver data of a held stream without acknowledging it; the rest is mitmproxy's."""
        if isinstance(event, h2.events.TrailersReceived) and (wrong := fields_fault(event.headers or ())):
            yield from self.malformed(event.stream_id or 0, wrong)
            return False
        if (malformed := self.lengths.fault(event)) is not None:
            yield from self.malformed(*malformed)
            return False
        match event:
            case h2.events.DataReceived() if event.stream_id in self.held and event.stream_id in self.streams:
                self.owed[event.stream_id] = self.owed.get(event.stream_id, 0) + event.flow_controlled_length
                if event.data:
                    yield ReceiveHttp(self.ReceiveData(event.stream_id, event.data))
                return False
            case h2.events.StreamReset():
                self.release(event.stream_id)
        return (yield from super().handle_h2_event(event))

    def malformed(self, stream_id: int, fault: str) -> CommandGenerator[None]:
        """End one stream, of which the peer has said what cannot be (RFC 9113 8.1.1)."""
        if not self.is_closed(stream_id):
            self.h2_conn.reset_stream(stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            yield commands.SendData(self.conn, self.h2_conn.data_to_send())
        self.release(stream_id)
        if self.streams.pop(stream_id, None) is not None:
            yield ReceiveHttp(self.MalformedMessage(stream_id, fault, self.ReceiveProtocolError.code))

    def release(self, stream_id: int) -> None:
        """Acknowledge what was held back, so that the connection's window does not shrink for good."""
        self.held.discard(stream_id)
        self.full.discard(stream_id)
        if owed := self.owed.pop(stream_id, 0):
            self.h2_conn.acknowledge_received_data(owed, stream_id)

    def regulate(self, stream_id: int, event: Hold | Resume) -> CommandGenerator[None]:
        """Obey the stream: take in no more of it, or more again."""
        if isinstance(event, Hold):
            self.held.add(stream_id)
            return
        self.release(stream_id)
        yield commands.SendData(self.conn, self.h2_conn.data_to_send())

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, RequestTrailers | ResponseTrailers):
            sendable = [field for field in _lowered(event.trailers) if is_sendable(field[0].decode("latin-1"))]
            if not sendable:
                return
            event.trailers = http.Headers(sendable)
        elif isinstance(event, RequestData | ResponseData):
            self.flood.carried(len(event.data))
        elif isinstance(event, events.DataReceived):
            if self.flood.is_flooded(event.data, time.monotonic()):
                why = "too many frames that carry nothing"
                yield from self.protocol_error(why, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            else:
                yield from self._received(event)
            return
        yield from super()._handle_event(event)

    def _received(self, event: events.DataReceived) -> CommandGenerator[None]:
        """Take apart what has come, in slices: one read may hold frames that cost seconds, and others wait meanwhile."""
        at, size = 0, SLICE
        while at < len(event.data) and not self.is_over:
            began = time.perf_counter()
            yield from super()._handle_event(events.DataReceived(event.connection, event.data[at : at + size]))
            at += size
            if time.perf_counter() - began < TURN:
                size *= 2
            else:
                size = SLICE
                yield Await(lambda: asyncio.sleep(0))

    @property
    def is_over(self) -> bool:
        """Whether the connection was closed, and what still comes on it is nothing to us."""
        return "_handle_event" in vars(self)

    def measure(self, event: events.Event) -> CommandGenerator[None]:
        """Tell the streams whose reader lags, and those whose reader has caught up."""
        if isinstance(event, RequestData | ResponseData):
            stream_id = event.stream_id
            if stream_id not in self.full and self.h2_conn.waiting(stream_id) > HIGH:
                self.full.add(stream_id)
                yield ReceiveHttp(Full(stream_id, self.towards_client))
        elif isinstance(event, RequestProtocolError | ResponseProtocolError):
            self.release(event.stream_id)
        elif self.full:
            for stream_id in [s for s in self.full if self.h2_conn.waiting(s) <= LOW]:
                self.full.discard(stream_id)
                yield ReceiveHttp(Room(stream_id, self.towards_client))


class Http2ClientSide(Http2, _http2.Http2Server):
    """Towards the client."""

    towards_client = True
    MalformedMessage = RequestProtocolError

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.breaking: dict[int, ResponseProtocolError] = {}
        """Streams that are reset once all is sent that is to be sent on them: a reset would overtake that."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, Hold | Resume):
            yield from self.regulate(event.stream_id, event)
        elif isinstance(event, Informational):
            if self.is_open_for_us(event.stream_id):
                head = [(b":status", b"%d" % event.response.status_code), *_lowered(event.response.headers)]
                self.h2_conn.send_headers(event.stream_id, head)
                yield commands.SendData(self.conn, self.h2_conn.data_to_send())
        elif isinstance(event, ResponseProtocolError) and self.h2_conn.waiting(event.stream_id):
            self.breaking[event.stream_id] = event
        else:
            yield from super()._handle_event(event)
            yield from self.measure(event)
            for stream_id in [stream_id for stream_id in self.breaking if not self.h2_conn.waiting(stream_id)]:
                yield from self._handle_event(self.breaking.pop(stream_id))


class Http2UpstreamSide(Http2, _http2.Http2Client):
    """Towards the upstream."""

    towards_client = False
    MalformedMessage = UpstreamMalformed

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.h2_conn.local_settings.enable_push = 0
        self.h2_conn.local_settings.acknowledge()

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, Hold | Resume):
            ours = self.our_stream_id.get(event.stream_id)
            if ours is not None:
                yield from self.regulate(ours, event)
        else:
            yield from super()._handle_event(event)

    def _handle_event2(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, RequestHeaders) and event.request.method == "HEAD":
            self.lengths.heads.add(event.stream_id)
        yield from super()._handle_event2(event)
        yield from self.measure(event)

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        """Let interim responses by; mitmproxy swallows them."""
        if isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            # mitmproxy reads ` 200` and `+200` as the number that they are for Python.
            (_, code), *others = event.headers or [(b"", b"")]
            sized = isinstance(event, h2.events.InformationalResponseReceived) and b"content-length" in dict(others)
            if _STATUS.fullmatch(code) is None or fields_fault(others) or sized:
                yield from self.malformed(event.stream_id, "it is no sound HTTP/2 message")
                return False
        if isinstance(event, h2.events.InformationalResponseReceived):
            status, fields = _http2.parse_h2_response_headers(event.headers)
            interim = http.Response(b"HTTP/2.0", status, b"", fields, None, None, 0.0, None)
            yield ReceiveHttp(Informational(event.stream_id, interim))
            return False
        return (yield from super().handle_h2_event(event))

    def protocol_error(
        self, message: str, error_code: int = h2.errors.ErrorCodes.PROTOCOL_ERROR
    ) -> CommandGenerator[None]:
        """Say of each stream that what comes is no sound answer: mitmproxy says that the upstream is gone."""
        for command in super().protocol_error(message, error_code):
            if isinstance(command, ReceiveHttp) and isinstance(command.event, ResponseProtocolError):
                event = command.event
                yield ReceiveHttp(UpstreamMalformed(event.stream_id, "it is no sound HTTP/2 message", event.code))
            else:
                yield command


def _lowered(headers: http.Headers) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers.fields]
