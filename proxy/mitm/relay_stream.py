"""Relay and record a request and its response.

The request's head is recorded before any of it is forwarded. A short body is sent with it, a long one piece by piece.
Pieces of the response are forwarded as they come. Only what completes a message waits until all of it is recorded: the
last piece of a body of known length, else the end mark, and for a message without a body its head.
"""

import time

from mitmproxy import http
from mitmproxy.net.http.http1 import expected_http_body_size
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)

from proxy.mitm import admission
from proxy.mitm.connection import MitmConnection
from proxy.mitm.layer_events import FreshHttpConnection, UpstreamMalformed, UpstreamReset
from proxy.mitm.stream import RequestEvent, Stream, latin1_text, remove_own_fields, text_fields
from proxy.mitm.upgraded_connection import UpgradedConnection
from proxy.wire.heads import fields_fault
from proxy.wire.http1_heads import is_length
from proxy.wire.problem import Problem, upstream_problem
from proxy.wire.recording_guard import RecorderInterface, RecordingGuard, RecordingInterface


class Tail:
    """The event that completes a message, held back until all of the message is recorded."""

    def __init__(self) -> None:
        self.remaining: int | None = None
        """The remaining length of the message; None if it has no known length."""

        self._event: HttpEvent | None = None

    def is_last(self, event: RequestData | ResponseData) -> bool:
        """Return whether this piece completes the message. If so, it is held back."""
        if self.remaining is None:
            return False
        self.remaining -= len(event.data)
        if self.remaining > 0:
            return False
        self.hold(event)
        return True

    def hold(self, event: HttpEvent) -> None:
        """Hold back an event."""
        self._event = event

    def take_events(self) -> tuple[HttpEvent, ...]:
        """Remove and return the event that was held back, if any."""
        event, self._event = self._event, None
        return () if event is None else (event,)


class RelayStream(Stream):
    """One request on its way to an upstream and back."""

    def __init__(self, context: Context, stream_id: int, connection: MitmConnection) -> None:
        super().__init__(context, stream_id, connection)
        self._body = bytearray()
        self._request_tail = Tail()
        self._response_tail = Tail()
        self._last_heard_at = 0.0

    # The request

    def start(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Start to record and relay."""
        self.begin_recording()
        yield from self.relay(event)

    def begin_recording(self) -> None:
        """Start to record, unless the mode is passthrough."""
        request = self.request

        def begin(recorder: RecorderInterface) -> RecordingInterface:
            return recorder.begin(
                run=request.identity.run,
                run_evidence=request.identity.evidence,
                step=request.identity.step,
                actor=request.identity.actor,
                method=request.method,
                url=request.url,
                http_version=request.http_version,
                headers=request.headers,
            )

        # A worker in passthrough has no recorder, but a single host may have that mode too.
        engine = self.connection.engine
        recorder = (
            None if engine.config.mode_for(request.target.host, request.named_run) == "passthrough" else engine.recorder
        )
        self.recording = RecordingGuard(recorder, request.identity.run, begin)

    def relay(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Collect a short request; forward a long one, or one of unknown length, as it comes."""
        if problem := self.connection.engine.refusal(self.request.target, self.connection.captured):
            yield from self.refuse(problem, "refused")
            return
        self.server_state = self.response_head
        length = _request_length(event)
        expects = "expect" in self.flow.request.headers
        if not expects and length is not None and length <= self.connection.engine.config.limits.buffered_request:
            self.client_state = self.request_whole
            return
        self._request_tail.remaining = length
        if (yield from self.forward(end_stream=False)):
            self.client_state = self.request_pieces
        elif self.client_state == self.request_head:
            # The client has left, but earlier events of it may still follow.
            self.client_state = self.state_over

    def request_whole(self, event: RequestEvent) -> CommandGenerator[None]:
        """State: collect a short request, and send it when it is complete and recorded."""
        match event:
            case RequestData(data=data):
                self.recording.record_data("request", data)
                self._body += data
            case RequestTrailers(trailers=trailers):
                self.flow.request.trailers = trailers
            case RequestEndOfMessage():
                self.recording.record_end("request", text_fields(self.flow.request.trailers))
                yield from self.send_whole()

    def send_whole(self) -> CommandGenerator[None]:
        """Send the collected request."""
        body, trailers = bytes(self._body), self.flow.request.trailers
        self._body.clear()
        self.client_state = self.state_over
        if not (yield from self.forward(end_stream=not (body or trailers))):
            return
        if body:
            yield self.to_upstream(RequestData(self.stream_id, body))
        if trailers:
            yield self.to_upstream(RequestTrailers(self.stream_id, trailers))
        yield self.to_upstream(RequestEndOfMessage(self.stream_id))

    def request_pieces(self, event: RequestEvent) -> CommandGenerator[None]:
        """State: forward each piece of the request as it comes, except the last."""
        match event:
            case RequestData(data=data):
                self.recording.record_data("request", data)
                if not self._request_tail.is_last(event):
                    yield self.to_upstream(RequestData(self.stream_id, data))
            case RequestTrailers(trailers=trailers):
                self.flow.request.trailers = trailers
            case RequestEndOfMessage():
                yield from self.end_request()

    def end_request(self) -> CommandGenerator[None]:
        """Send the end of the request once all of it is recorded."""
        self.recording.record_end("request", text_fields(self.flow.request.trailers))
        if self.server_state == self.state_over:
            self.recording.record_close("completed")
        if not (yield from self.wait_until_recorded()):
            yield from self.give_up("the request could not be recorded")
            return
        for held_back in self._request_tail.take_events():
            yield self.to_upstream(held_back)
        if self.flow.request.trailers:
            yield self.to_upstream(RequestTrailers(self.stream_id, self.flow.request.trailers))
        self.client_state = self.state_over
        yield self.to_upstream(RequestEndOfMessage(self.stream_id))
        if self.server_state == self.state_over:
            yield from self.leave()

    def forward(self, *, end_stream: bool) -> CommandGenerator[bool]:
        """Connect and send the request's head, once the request is recorded. Return whether that succeeded."""
        if not (yield from self.wait_until_recorded()):
            yield from self.refuse(Problem(503, "not_recorded", self.recording.refusal), "refused")
            return False
        # Send nothing for a client that left meanwhile.
        if self.has_client_left() or not (yield from self.make_server_connection()) or self.has_client_left():
            return False
        yield self.to_upstream(RequestHeaders(self.stream_id, self._request_for_upstream(), end_stream))
        if (silence := self.connection.engine.config.limits.silence) is not None:
            self._last_heard_at = time.monotonic()
            yield self.set_alarm(silence)
        return True

    def _request_for_upstream(self) -> http.Request:
        """Return the request, with Proxy-Authorization if an upstream proxy gets the request itself and not a CONNECT."""
        request, value = self.flow.request, self.connection.engine.proxy_authorization
        if (
            value is None
            or self.mode is not HTTPMode.upstream
            or not request.authority
            or self.request.target.scheme != "http"
        ):
            return request
        request = request.copy()
        request.headers["Proxy-Authorization"] = value
        return request

    def handle_alarm(self) -> CommandGenerator[None]:
        """End the exchange if the upstream has sent nothing for too long, even while the client still sends."""
        silence = self.connection.engine.config.limits.silence
        if silence is None or self.server_state in (self.state_over, self.state_gone):
            return
        remaining = self._last_heard_at + silence - time.monotonic()
        if remaining > 0:
            yield self.set_alarm(remaining)
            return
        why = f"the upstream sent nothing for {silence:g} s"
        yield self.to_upstream(RequestProtocolError(self.stream_id, why, ErrorCode.KILL))
        if self.server_state == self.response_head:
            yield from self.refuse(Problem(504, "upstream_silent", why), "timed_out")
        else:
            self.recording.record_close("timed_out", why)
            yield from self.cut()

    def make_server_connection(self) -> CommandGenerator[bool]:
        """Connect to the target, or to the origin configured in place of it, if the destination rules allow its address."""
        engine, target = self.connection.engine, self.request.target
        contact, server = engine.contacted_origin(target), self.context.server
        address = (contact.host, contact.port)
        via = None
        if contact is target:
            via = server.via
            if self.mode is HTTPMode.transparent:
                assert server.address is not None
                address = server.address[:2]
                # The certificate must match the server name of a captured handshake, whatever Host says.
                server.sni = self.connection.tunnel_host if self.connection.captured is not None else target.host
        connection, error = yield FreshHttpConnection(address, contact.scheme == "https", via, "tcp")
        if error:
            if self.has_client_left():
                return False
            problem = upstream_problem(error)
            timed_out = problem.status == 504
            yield from self.refuse(
                problem, "refused" if problem.status == 403 else "timed_out" if timed_out else "server_closed"
            )
            return False
        self.context.server = self.flow.server_conn = self.upstream = connection
        return True

    # The response

    def response_head(self, event: events.Event) -> CommandGenerator[None]:
        """State: forward the head of the response at once, unless the response has no body."""
        assert isinstance(event, ResponseHeaders)
        self._last_heard_at = time.monotonic()
        response = self.flow.response = event.response
        if fault := _response_fault(self.flow.request, response):
            yield self.to_upstream(RequestProtocolError(self.stream_id, "malformed response", ErrorCode.KILL))
            yield from self.refuse(Problem(502, "upstream_malformed", _malformed_reason(fault)))
            return
        # With Alt-Svc, the client would switch to QUIC and bypass the proxy.
        response.headers.pop("alt-svc", None)
        self.recording.record_response_head(
            response.status_code,
            latin1_text(response.data.reason),
            admission.http_version(response),
            text_fields(response.headers),
        )
        remove_own_fields(response)
        self.mark(response)
        self.server_state = self.response_body
        if event.end_stream:
            self._response_tail.hold(event)
            return
        length = expected_http_body_size(self.flow.request, response)
        self._response_tail.remaining = length if length is not None and length > 0 else None
        yield self.to_client(ResponseHeaders(self.stream_id, response, end_stream=False))

    def mark(self, response: http.Response) -> None:
        """Mark the response for the client. Recording and passthrough add nothing."""

    def response_body(self, event: events.Event) -> CommandGenerator[None]:
        """State: forward each piece of the response as it comes, except the last."""
        self._last_heard_at = time.monotonic()
        match event:
            case ResponseData(data=data):
                self.recording.record_data("response", data)
                if not self._response_tail.is_last(event):
                    yield self.to_client(ResponseData(self.stream_id, data))
            case ResponseTrailers(trailers=trailers):
                assert self.flow.response
                self.flow.response.trailers = trailers
            case ResponseEndOfMessage():
                yield from self.end_response()

    def end_response(self) -> CommandGenerator[None]:
        """Send the end of the response once all of it is recorded."""
        response = self.flow.response
        assert response
        if response.status_code == 101:
            yield from self.upgrade()
            return
        self.recording.record_end("response", text_fields(response.trailers))
        if self.client_state == self.state_over:
            self.recording.record_close("completed")
        if not (yield from self.wait_until_recorded()):
            yield from self.give_up("the response could not be recorded")
            return
        yield from self._send_tail()
        if response.trailers:
            yield self.to_client(ResponseTrailers(self.stream_id, response.trailers))
        self.server_state = self.state_over
        yield self.to_client(ResponseEndOfMessage(self.stream_id))
        if self.client_state == self.state_over:
            yield from self.leave()

    def _send_tail(self) -> CommandGenerator[None]:
        for held_back in self._response_tail.take_events():
            yield self.to_client(held_back)

    def upgrade(self) -> CommandGenerator[None]:
        """Switch to the upgraded protocol after a 101 response."""
        yield from self._send_tail()
        self.child_layer = UpgradedConnection(self.context, self)
        self._handle_event = self.passthrough  # type: ignore[method-assign]
        yield from self.child_layer.handle_event(events.Start())
        yield self.to_client(ResponseEndOfMessage(self.stream_id))

    def end_upgrade(self) -> None:
        """End the stream after the upgraded connection."""
        self.flow.live = False
        self.connection.end_activity(self)

    def give_up(self, why: str) -> CommandGenerator[None]:
        """Break off the exchange on both sides."""
        self.recording.record_close("refused", why)
        if self.upstream is not None:
            yield self.to_upstream(RequestProtocolError(self.stream_id, why, ErrorCode.KILL))
        yield from self.cut()

    def handle_disconnect(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        """Break off the exchange when one side disconnects before its end."""
        if self.client_state == self.state_gone:
            return
        if isinstance(event, RequestProtocolError):
            self.recording.record_close("client_closed", "the client left before the exchange was over")
            if self.upstream is not None and self.server_state != self.state_over:
                yield self.to_upstream(event)
            yield from self.leave()
            return
        if self.server_state == self.state_over:
            # The response is complete, and the upstream does not need the rest of the request.
            yield from self.cut()
            return
        why = "the upstream broke off before its response was complete"
        if isinstance(event, UpstreamMalformed):
            why = _malformed_reason(event.message)
            if self.server_state == self.response_head:
                yield from self.refuse(Problem(502, "upstream_malformed", why))
                return
        self.recording.record_close("server_closed", why)
        yield from self._send_tail()
        if isinstance(event, UpstreamReset):
            yield self.to_client(UpstreamReset(self.stream_id, "broken off", ErrorCode.KILL, event.error_code))
        else:
            yield self.to_client(ResponseProtocolError(self.stream_id, "broken off", ErrorCode.KILL))
        yield from self.leave()


def _request_length(event: RequestHeaders) -> int | None:
    """Return the length of the request body, or None if it is unknown."""
    if event.end_stream:
        return 0
    if event.request.is_http2 and "content-length" not in event.request.headers:
        return None
    return expected_http_body_size(event.request)


def _malformed_reason(fault: str) -> str:
    return f"the upstream's response is malformed: {fault}"


def _response_fault(request: http.Request, response: http.Response) -> str | None:
    if response.status_code == 101 and "upgrade" not in request.headers:
        return "it switches protocols without a request to do so"
    try:
        validate_headers(response)
    except ValueError:
        return "its framing is ambiguous or invalid"
    if not all(map(is_length, response.headers.get_all("content-length"))):
        return "its Content-Length is not a plain number"
    # Transfer codings are hop-by-hop, and the proxy cannot decode any other.
    if response.headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        return "its framing is ambiguous or invalid"
    if not 100 <= response.status_code <= 999:
        return "its status is not a number from 100 to 999"
    if fields_fault([(b"reason", response.data.reason)]):
        return "its reason contains a control character"
    return fields_fault(response.headers.fields)
