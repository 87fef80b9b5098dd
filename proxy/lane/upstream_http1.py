"""Send requests to upstreams in HTTP/1.1 and read the responses, for clients of either version."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from calls.model import Headers
from proxy.lane.admission import LaneRequest, is_connection_auth
from proxy.lane.exchange import INTERNAL_ERROR, DownstreamHead
from proxy.lane.framing import Body, BodyPart, BodyUntilClose, ChunkedBody, MalformedBody, SizedBody
from proxy.lane.h2.heads import h2_response_fields, http1_request_head
from proxy.lane.heads import BodyFraming, ResponseHead, is_withheld, without_fields
from proxy.lane.upstream import Upstream, UpstreamAddress, Upstreams
from proxy.wire.destinations import Destinations
from proxy.wire.http1_heads import HEAD_END, partial_head_fault, response_head_fault
from proxy.wire.trailers import sendable_trailers


class ResponseSink(Protocol):
    """Receives the events of a response."""

    def handle_interim(self, head: DownstreamHead) -> None:
        """Handle an interim response."""

    def handle_response(self, head: DownstreamHead, *, is_head_alone: bool) -> None:
        """Handle the head. `is_head_alone`: nothing of the body has arrived yet, so the head should be sent at once."""

    def handle_data(self, forwardable: bytes, pieces: Sequence[bytes]) -> None:
        """Handle more of the response: the bytes to forward now, and its payload. The last piece may come with the end."""

    def handle_end(self, pieces: Sequence[bytes], before: bytes, end: bytes, trailers: Headers) -> None:
        """Handle the rest: its payload, bytes to forward, the bytes that complete the response, and trailers."""

    def handle_whole_response(self, head: DownstreamHead, body: bytes) -> None:
        """Handle a complete response with a body of known length."""

    def handle_malformed(self, fault: str) -> None:
        """Handle that the response, or the rest of it, is malformed."""

    def handle_disconnect(
        self, code: int, *, is_refused: bool = False, is_unanswered: bool = False, is_reset: bool = False
    ) -> None:
        """Handle that the upstream broke off. `is_refused`: it says that it has not processed the request. `is_unanswered`: it
        sent nothing, on a reused connection. `is_reset`: its connection broke."""

    def handle_fault(self, fault: BaseException) -> None:
        """Handle an internal error."""

    def set_upstream_full(self, *, is_full: bool) -> None:
        """Handle that the upstream's send buffer is full, or has room again."""


class Carrier(Protocol):
    """Carries one request to an upstream, and its response back."""

    has_heard: bool
    """Set whenever the upstream sends something."""

    can_refuse: bool
    """Whether the protocol lets an upstream say that it has not processed a request."""

    @property
    def is_spent(self) -> bool:
        """Whether the upstream accepts no more of the request after its response."""

    def send_request(self, sink: ResponseSink, request: LaneRequest, body: bytes | None, trailers: Headers) -> None:
        """Send the head, and with it the whole body if that is given."""

    def send(self, data: bytes) -> None:
        """Send a piece of the body."""

    def send_end(self, data: bytes, trailers: Headers) -> None:
        """Send the end of the body."""

    def set_paused(self, *, is_paused: bool) -> None:
        """Pause or resume reading the response."""

    def drop(self, code: int) -> None:
        """Break off."""

    def finish(self) -> None:
        """End the request, after both messages are complete."""

    def release(self) -> None:
        """Return the carrier unused."""


class Source(Protocol):
    """Provides the carriers of one client."""

    def ready_carrier(self, address: UpstreamAddress, *, is_repeatable: bool) -> Carrier | None:
        """Return a carrier that is available now for this request, if there is one."""

    async def connect_carrier(self, address: UpstreamAddress) -> Carrier:
        """Return a carrier, connecting if necessary. Raises Problem."""


class Http1Carrier:
    """One request on an HTTP/1.1 connection, for an HTTP/1.1 client: bytes are forwarded unchanged."""

    can_refuse = False

    def __init__(self, upstream: Upstream, pool: "ClientPool") -> None:
        self._upstream = upstream
        self._pool = pool
        self._sink: ResponseSink
        self._request: LaneRequest
        self._body: Body | None = None
        self._trailers: Headers = ()
        self._partial_head = b""
        """An incomplete head."""

        self.has_heard = self._has_answered = False
        """Whether the upstream has sent anything."""

        self._is_response_whole = False
        """Whether the response is complete."""

        self._is_reusable = True
        """Whether the upstream keeps the connection open."""

    @property
    def is_spent(self) -> bool:
        return not self._is_reusable or self._upstream.is_gone

    def send_request(self, sink: ResponseSink, request: LaneRequest, body: bytes | None, trailers: Headers) -> None:  # noqa: ARG002 - they are in the bytes
        upstream = self._upstream
        self._sink, self._request = sink, request
        if upstream.is_gone:
            sink.handle_disconnect(INTERNAL_ERROR, is_unanswered=upstream.exchange_count > 0)
            return
        upstream.is_bound = upstream.is_bound or request.is_connection_bound
        upstream.lend(self)
        upstream.write(request.http1_head + body if body else request.http1_head)

    def send(self, data: bytes) -> None:
        self._upstream.write(self._frame_data(data))

    def send_end(self, data: bytes, trailers: Headers) -> None:
        if last := self._frame_end(data, trailers):
            self._upstream.write(last)

    def set_paused(self, *, is_paused: bool) -> None:
        self._upstream.set_reading(on=not is_paused)

    def drop(self, code: int) -> None:  # noqa: ARG002 - HTTP/1.1 has no error codes
        self._upstream.drop()

    def finish(self) -> None:
        if self._is_reusable and self._is_response_whole:
            self._pool.take_back(self._upstream)
        else:
            self._upstream.drop()

    def release(self) -> None:
        self._pool.take_back(self._upstream)

    # Overridden for HTTP/2 clients

    def _frame_data(self, data: bytes) -> bytes:
        return data

    def _frame_end(self, data: bytes, trailers: Headers) -> bytes:  # noqa: ARG002 - they are in the bytes
        return data

    def _downstream_head(self, head: ResponseHead, *, closes: bool, ends_by_close: bool = False) -> DownstreamHead:
        raw, fields = head.raw, head.fields
        if head.field_names.withheld_names:
            raw = without_fields(raw, head.field_names.lowered, head.field_names.withheld_names)
            # The record keeps what the upstream sent, including fields with Playhead's names.
            fields = tuple(field for field in fields if field[0].lower() != "alt-svc")
        return DownstreamHead(head.status, head.reason, f"HTTP/{head.version}", fields, raw, (), closes, ends_by_close)

    def _pass_on(self, part: BodyPart) -> None:
        if part.end is None:
            self._sink.handle_data(part.forwardable, part.pieces)
        else:
            self._sink.handle_end(part.pieces, part.forwardable, part.end, self._trailers)

    # ResponseListener

    def handle_data(self, data: bytes) -> None:
        self.has_heard = True
        body = self._body
        if body is None:
            if self._is_response_whole:
                # Data after the response can only be an attack or an error.
                self._is_reusable = False
            else:
                self._read_head(self._partial_head + data if self._partial_head else data)
            return
        try:
            part = body.feed(data)
        except MalformedBody as fault:
            self._pass_on(BodyPart(fault.forwardable, fault.pieces, None))
            self._report_malformed(str(fault))
            return
        if part.end is not None:
            self._is_response_whole, self._body = True, None
            self._trailers = body.trailers
            self._is_reusable = self._is_reusable and not part.rest
        self._pass_on(part)

    def _read_head(self, data: bytes) -> None:
        self._has_answered = True
        while (end := data.find(HEAD_END)) >= 0:
            raw, data = data[: end + 4], data[end + 4 :]
            head = self._upstream.head_reader.read(raw)
            if head is None or head.status == 101:
                wrong = (
                    f"invalid head ({response_head_fault(raw)})"
                    if head is None
                    else "it switches protocols without a request to do so"
                )
                self._report_malformed(wrong)
                return
            if head.status >= 200:
                self._begin_response(head, data)
                return
            if head.field_names.coding_index is not None:
                self._report_malformed("an interim response has a transfer coding")
                return
            self._sink.handle_interim(self._downstream_head(head, closes=False))
        self._partial_head = data
        if (fault := partial_head_fault(data)) is not None:
            self._report_malformed(fault)

    def _begin_response(self, head: ResponseHead, data: bytes) -> None:
        frame, method = head.framing, self._request.method
        # RFC 9112 6.1: neither an HTTP/1.0 response nor one of status 204 has a transfer coding.
        if frame.is_unsupported or (frame.is_chunked and (head.version == "1.0" or head.status == 204)):
            self._report_malformed("its framing is ambiguous or invalid")
            return
        self._partial_head = b""
        if head.status == 401 and _wants_connection_auth(head):
            self._upstream.is_bound = True
        length = response_length(head.status, method, frame)
        closes = frame.closes_connection or head.version == "1.0"
        if length is not None and len(data) >= length:
            self._is_response_whole = True
            self._is_reusable = not (closes or self._request.closes_connection or len(data) > length)
            self._sink.handle_whole_response(self._downstream_head(head, closes=closes), data[:length])
            return
        self._body = body = response_body(frame)
        ends_by_close = isinstance(body, BodyUntilClose)
        closes = closes or ends_by_close
        self._is_reusable = not (closes or self._request.closes_connection)
        self._sink.handle_response(
            self._downstream_head(head, closes=closes, ends_by_close=ends_by_close), is_head_alone=not data
        )
        if data:
            self.handle_data(data)

    def _report_malformed(self, fault: str) -> None:
        self._upstream.drop()
        self._sink.handle_malformed(fault)

    def handle_disconnect(self, *, is_truncated: bool, is_reset: bool = False) -> None:
        if isinstance(self._body, BodyUntilClose) and not is_truncated:
            self._is_response_whole = True
            self._sink.handle_end((), b"", b"", ())
        else:
            self._sink.handle_disconnect(
                INTERNAL_ERROR,
                is_unanswered=not self._has_answered and self._upstream.exchange_count > 1,
                is_reset=is_reset,
            )

    def handle_fault(self, fault: BaseException) -> None:
        self._sink.handle_fault(fault)

    def set_upstream_full(self, *, is_full: bool) -> None:
        self._sink.set_upstream_full(is_full=is_full)


class ReframedForHttp2(Http1Carrier):
    """One request on an HTTP/1.1 connection, for an HTTP/2 client."""

    def send_request(self, sink: ResponseSink, request: LaneRequest, body: bytes | None, trailers: Headers) -> None:
        self._request = request
        last = None if body is None else self._frame_end(body, trailers)
        super().send_request(sink, request._replace(http1_head=http1_request_head(request)), last, ())

    def _frame_data(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._request.is_chunked and data else data

    def _frame_end(self, data: bytes, trailers: Headers) -> bytes:
        if not self._request.is_chunked:
            return data
        lines = "".join(f"{name}: {value}\r\n" for name, value in sendable_trailers(trailers)).encode("latin-1")
        return self._frame_data(data) + b"0\r\n" + lines + b"\r\n"

    def _downstream_head(self, head: ResponseHead, *, closes: bool, ends_by_close: bool = False) -> DownstreamHead:
        converted = super()._downstream_head(head, closes=closes, ends_by_close=ends_by_close)
        fields = converted.fields
        if head.field_names.withheld_names:
            fields = tuple(field for field in fields if not is_withheld(field[0].lower()))
        return replace(
            converted, raw=b"", h2_fields=h2_response_fields(converted.status, fields), closes_connection=False
        )

    def _pass_on(self, part: BodyPart) -> None:
        pieces = [piece for piece in part.pieces if piece]
        # Send the last piece with the end, in one frame.
        last = pieces.pop() if part.end is not None and pieces else b""
        for piece in pieces:
            self._sink.handle_data(piece, (piece,))
        if part.end is not None:
            self._sink.handle_end((last,), b"", last, self._trailers)


class ClientPool:
    """One client's HTTP/1.1 connections, so that it reuses its own connection to each upstream."""

    def __init__(self, upstreams: Upstreams, destinations: Destinations) -> None:
        self._upstreams = upstreams
        self._destinations = destinations
        self._idle: dict[UpstreamAddress, Upstream] = {}
        self._is_closed = False

    def ready_carrier(self, address: UpstreamAddress, *, is_repeatable: bool) -> Carrier | None:
        # Inlined `lend`, for the client's own connection.
        upstream = self._idle.pop(address, None)
        if upstream is None or upstream.is_gone:
            upstream = self._upstreams.take_idle(address, is_repeatable=is_repeatable)
        return None if upstream is None else Http1Carrier(upstream, self)

    async def connect_carrier(self, address: UpstreamAddress) -> Carrier:
        return Http1Carrier(await self.connect(address), self)

    def lend(self, address: UpstreamAddress, *, is_repeatable: bool) -> Upstream | None:
        """Remove and return an available connection that may carry the request, if there is one."""
        upstream = self._idle.pop(address, None)
        if upstream is not None and not upstream.is_gone:
            return upstream
        return self._upstreams.take_idle(address, is_repeatable=is_repeatable)

    async def connect(self, address: UpstreamAddress) -> Upstream:
        """Make a new connection. Raises Problem."""
        return await self._upstreams.connect(address, self._destinations)

    def take_back(self, upstream: Upstream) -> None:
        """Take back a connection after an exchange."""
        if not upstream.give_back():
            return
        if self._is_closed:
            # The client left while this connection was being made.
            self._upstreams.keep_idle(upstream)
            return
        if (other := self._idle.get(upstream.address)) is not None:
            self._upstreams.keep_idle(other)
        self._idle[upstream.address] = upstream

    def close(self) -> None:
        """Give the connections to other clients, because this one has left."""
        self._is_closed = True
        for upstream in self._idle.values():
            self._upstreams.keep_idle(upstream)
        self._idle.clear()


def response_length(status: int, method: str, frame: BodyFraming) -> int | None:
    """Return the length of a response body, or None if it is known only at its end."""
    if method == "HEAD" or status in (204, 304):
        return 0
    return None if frame.is_chunked else frame.length


def response_body(frame: BodyFraming) -> Body:
    """Return the decoder for a response body that has not arrived completely."""
    if frame.is_chunked:
        return ChunkedBody(padded=True)
    return SizedBody(frame.length) if frame.length else BodyUntilClose()


def _wants_connection_auth(head: ResponseHead) -> bool:
    """Return whether the upstream requests authentication of the connection."""
    named_fields = zip(head.names, head.fields, strict=True)
    return any(name == "www-authenticate" and is_connection_auth(value) for name, (_, value) in named_fields)
