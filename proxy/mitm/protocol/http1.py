"""mitmproxy's HTTP/1, with what it lacks: trailers, 1xx responses, strict heads, bounded buffers, Playhead's errors.

Each method overrides one of `mitmproxy.proxy.layers.http._http1`; tests/proxy/mitm/test_pinned.py checks their names.
"""

import re

import h11
from mitmproxy import http
from mitmproxy.connection import ConnectionState
from mitmproxy.net.http import http1
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import _http1
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestEndOfMessage,
    RequestHeaders,
    RequestTrailers,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)

from proxy.mitm.layer_events import (
    InterimResponse,
    PauseStream,
    ResumeStream,
    SetHeadTimer,
    SetReading,
    UpstreamMalformed,
)
from proxy.wire.heads import HEAD_BYTES, fields_fault, http1_head_fault
from proxy.wire.http1_heads import HEAD_END, partial_head_fault, response_head_fault
from proxy.wire.problem import Problem
from proxy.wire.trailers import is_sendable

PIPELINED_BYTES = 1 << 20
"""Maximum bytes that a client may send ahead of its response before reading stops."""

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d[ \r\n]")


class Http1(_http1.Http1Connection):
    """The base of both sides."""

    ReceiveTrailers: type[RequestTrailers | ResponseTrailers]
    trailers: http.Headers | None = None
    """The trailers to send after the last chunk."""

    def read_body(self, event: events.Event) -> CommandGenerator[None]:
        """Report the data and the end of a body. Unlike mitmproxy's method, it supports trailers."""
        assert self.stream_id is not None
        while True:
            try:
                body_event = (
                    self.body_reader(self.buf)
                    if isinstance(event, events.DataReceived)
                    else self.body_reader.read_eof()
                )
                if body_event is None and len(self.buf) > HEAD_BYTES:
                    raise h11.RemoteProtocolError("a chunk header or the trailers are too long")
            except h11.ProtocolError as error:
                yield from self._report_broken_body(event, str(error))
                return
            if body_event is None:
                return
            if isinstance(body_event, h11.Data):
                if body_event.data:
                    yield ReceiveHttp(self.ReceiveData(self.stream_id, bytes(body_event.data)))
                continue
            assert isinstance(body_event, h11.EndOfMessage)
            if fault := fields_fault(body_event.headers.raw_items()):
                yield from self._report_broken_body(event, fault)
                return
            yield from self._report_end_of_body(body_event)
            return

    def _report_broken_body(self, event: events.Event, fault: str) -> CommandGenerator[None]:
        assert self.stream_id is not None
        yield commands.CloseConnection(self.conn)
        kind = self.ReceiveProtocolError
        if kind is ResponseProtocolError and isinstance(event, events.DataReceived):
            kind = UpstreamMalformed
        yield ReceiveHttp(kind(self.stream_id, fault, self.ReceiveProtocolError.code))

    def _report_end_of_body(self, end: h11.EndOfMessage) -> CommandGenerator[None]:
        assert self.stream_id is not None
        assert self.request
        if end.headers:
            yield ReceiveHttp(self.ReceiveTrailers(self.stream_id, http.Headers(end.headers.raw_items())))
        end_of_message = ReceiveHttp(self.ReceiveEndOfMessage(self.stream_id))
        if isinstance(self, _http1.Http1Server):
            if self.request.data.method.upper() != b"CONNECT":
                yield end_of_message
            yield from self.mark_done(request=True)
        elif self.response and _http1.should_make_pipe(self.request, self.response):
            yield end_of_message
            yield from self.mark_done(response=True)
        else:
            # mitmproxy does this in the opposite order. Without waiting, the end of this response starts the next request
            # before this method returns, and that must find the connection free.
            yield from self.mark_done(response=True)
            yield end_of_message

    def _last_chunk(self) -> commands.SendData:
        fields = self.trailers.fields if self.trailers else ()
        self.trailers = None
        lines = [b"%b: %b\r\n" % field for field in fields if is_sendable(field[0].decode("latin-1"))]
        return commands.SendData(self.conn, b"0\r\n" + b"".join(lines) + b"\r\n")


class Http1ClientSide(Http1, _http1.Http1Server):
    """The client side."""

    ReceiveTrailers = RequestTrailers
    is_paused = is_reading_head = False

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        yield from super()._handle_event(event)
        ahead = len(self.buf) > PIPELINED_BYTES and self.state == self.wait
        if ahead != self.is_paused:
            self.is_paused = ahead
            yield SetReading(self.conn, on=not ahead)
        heading = bool(self.buf) and self.state == self.read_headers
        if heading != self.is_reading_head:
            self.is_reading_head = heading
            yield SetHeadTimer(self.conn, on=heading)

    def read_headers(self, event: events.ConnectionEvent) -> CommandGenerator[None]:
        """Check the head before mitmproxy parses it, which accepts too much."""
        if isinstance(event, events.DataReceived):
            # RFC 9112 2.2: ignore empty lines before a request line. mitmproxy would wait for more data.
            buffered = bytes(self.buf)
            if empty := len(buffered) - len(buffered.lstrip(b"\r\n")):
                self.buf.maybe_extract_at_most(empty)
            if fault := http1_head_fault(buffered[empty:]):
                yield commands.SendData(self.conn, fault.http1_response())
                yield commands.CloseConnection(self.conn)
                self.state = self.done
                return
        yield from super().read_headers(event)

    def send(self, event: HttpEvent) -> CommandGenerator[None]:
        """Send an event of a stream to the client."""
        match event:
            case PauseStream() | ResumeStream():
                yield SetReading(self.conn, on=isinstance(event, ResumeStream))
            case InterimResponse():
                # RFC 9110 15.2: not to an HTTP/1.0 client.
                if self.request and self.request.http_version == "HTTP/1.1":
                    yield commands.SendData(self.conn, http1.assemble_response_head(event.response))  # type: ignore[no-untyped-call]
            case ResponseTrailers():
                self.trailers = event.trailers
            case ResponseEndOfMessage() if self._is_response_chunked() and self.trailers:
                yield self._last_chunk()
                yield from self.mark_done(response=True)
            case ResponseHeaders():
                assert self.request
                framed = _reframed_headers(self.request, event)
                yield from super().send(framed)
            case ResponseProtocolError() if not self.conn.state & ConnectionState.CAN_WRITE:
                return
            case _:
                yield from super().send(event)

    def _is_response_chunked(self) -> bool:
        assert self.request
        assert self.response
        return self.request.method.upper() != "HEAD" and _is_chunked(self.response)


def _reframed_headers(request: http.Request, event: ResponseHeaders) -> ResponseHeaders:
    """Return the response with a framing that this HTTP/1 client understands."""
    response = event.response
    bodiless = (
        request.method.upper() in ("HEAD", "CONNECT")
        or response.status_code in (204, 304)
        or response.status_code < 200
    )
    # mitmproxy would send a last chunk even without a body, and the client would read it as part of the next response.
    if _is_chunked(response) and (request.http_version == "HTTP/1.0" or response.status_code in (204, 304)):
        response = response.copy()
        response.headers.pop("transfer-encoding")
    elif response.is_http2 and "content-length" not in response.headers and not bodiless:
        response = response.copy()
        if event.end_stream:
            response.headers["content-length"] = "0"
        elif request.http_version == "HTTP/1.1":
            response.headers["transfer-encoding"] = "chunked"
    return ResponseHeaders(event.stream_id, response, event.end_stream)


class Http1UpstreamSide(Http1, _http1.Http1Client):
    """The upstream side."""

    ReceiveTrailers = ResponseTrailers

    def read_headers(self, event: events.ConnectionEvent) -> CommandGenerator[None]:
        """Forward interim responses, then read the final one."""
        if isinstance(event, events.DataReceived) and self.stream_id is not None:
            fault, interim = self._next_head()
            while interim is not None:
                yield ReceiveHttp(InterimResponse(self.stream_id, interim))
                fault, interim = self._next_head()
            if fault is not None:
                yield commands.CloseConnection(self.conn)
                yield self._malformed_event(fault)
                self.state = self.done
                return
        for command in super().read_headers(event):
            if _is_unreadable(command) and isinstance(event, events.DataReceived):
                yield self._malformed_event("invalid head")
            else:
                yield command

    def _malformed_event(self, fault: str) -> ReceiveHttp:
        assert self.stream_id is not None
        return ReceiveHttp(UpstreamMalformed(self.stream_id, fault, ErrorCode.GENERIC_SERVER_ERROR))

    def _next_head(self) -> tuple[str | None, http.Response | None]:
        """Return what is wrong with the next head, and the interim response that it is. Both are None for a final response."""
        received = bytes(self.buf)
        end = received.find(HEAD_END) + len(HEAD_END)
        if end < len(HEAD_END):
            return partial_head_fault(received), None
        if (flaw := response_head_fault(received[:end])) is not None:
            return f"invalid head ({flaw})", None
        if _INTERIM.match(received) is None:
            return None, None
        interim = http1.read_response_head([bytes(line) for line in self.buf.maybe_extract_lines() or ()])
        coded = "transfer-encoding" in interim.headers
        return ("an interim response has a transfer coding", None) if coded else (None, interim)

    def send(self, event: HttpEvent) -> CommandGenerator[None]:
        """Send an event of a stream to the upstream."""
        match event:
            case PauseStream() | ResumeStream():
                yield SetReading(self.conn, on=isinstance(event, ResumeStream))
            case RequestTrailers():
                self.trailers = event.trailers
            case RequestEndOfMessage() if self.request and self.trailers and _is_chunked(self.request):
                yield self._last_chunk()
                yield from self.mark_done(request=True)
            case RequestHeaders() if not event.end_stream and _needs_framing(event.request):
                request = event.request.copy()
                request.headers["transfer-encoding"] = "chunked"
                yield from super().send(RequestHeaders(event.stream_id, request, event.end_stream))
            case _:
                yield from super().send(event)


def _is_unreadable(command: commands.Command) -> bool:
    """Return whether mitmproxy reports that a response is unreadable. Errors in bodies are `UpstreamMalformed`."""
    return isinstance(command, ReceiveHttp) and type(command.event) is ResponseProtocolError


def _needs_framing(request: http.Request) -> bool:
    """Return whether an HTTP/2 request has a body that HTTP/1 would not delimit."""
    return request.is_http2 and "content-length" not in request.headers


def _is_chunked(message: http.Message) -> bool:
    return "chunked" in message.headers.get("transfer-encoding", "").lower()


def error_response(status_code: int, message: str = "") -> bytes:  # noqa: ARG001 - mitmproxy's signature
    """Replace mitmproxy's HTML error. Its message is not used, because it may quote the request."""
    known = {400: ("malformed_request", "the request is not valid HTTP; it was not forwarded")}
    code, detail = known.get(status_code, ("engine", "the proxy could not forward this request"))
    return Problem(status_code, code, detail).http1_response()
