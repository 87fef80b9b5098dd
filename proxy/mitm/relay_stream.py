"""Relay and record a request and its response.

The request's head is kept before anything of it goes on; a short body goes with it, a long one piece by piece. Response
pieces go on as they come. Only what completes a message waits until all that came before it is kept: for a body of
known length that is its last piece, else the end mark, and for a message without a body its head.
"""

import time

from mitmproxy import http
from mitmproxy.net.http.http1 import expected_http_body_size
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http as http_layers
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
from proxy.mitm.layer_events import UpstreamMalformed
from proxy.mitm.stream import RequestEvent, Stream, as_text, latin, without_own_fields
from proxy.mitm.upgraded_connection import UpgradedConnection
from proxy.wire.heads import fields_fault
from proxy.wire.http1_heads import is_length
from proxy.wire.problem import Problem, unreachable
from proxy.wire.recording_guard import RecorderInterface, RecordingGuard, RecordingInterface


class Tail:
    """What completes a message, held back until all of the message is kept."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Bytes until the message's length is reached; None where it has none."""

        self._event: HttpEvent | None = None

    def is_last(self, event: RequestData | ResponseData) -> bool:
        """Whether this piece completes the message. Then it is held back."""
        if self.left is None:
            return False
        self.left -= len(event.data)
        if self.left > 0:
            return False
        self.hold(event)
        return True

    def hold(self, event: HttpEvent) -> None:
        """Hold this back."""
        self._event = event

    def taken(self) -> tuple[HttpEvent, ...]:
        """What was held back, to be sent now."""
        event, self._event = self._event, None
        return () if event is None else (event,)


class RelayStream(Stream):
    """One request on its way to an upstream and back."""

    def __init__(self, context: Context, stream_id: int, visit: MitmConnection) -> None:
        super().__init__(context, stream_id, visit)
        self._body = bytearray()
        self._asking = Tail()
        self._answering = Tail()
        self._heard_at = 0.0

    # The request

    def start(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Begin to relay."""
        self.begin_tape()
        yield from self.relay(event)

    def begin_tape(self) -> None:
        """From here on, what happens is told."""
        asked = self.asked

        def begin(recorder: RecorderInterface) -> RecordingInterface:
            return recorder.begin(
                run=asked.identity.run,
                run_evidence=asked.identity.evidence,
                step=asked.identity.step,
                actor=asked.identity.actor,
                method=asked.method,
                url=asked.url,
                http_version=asked.http_version,
                headers=asked.headers,
            )

        # In passthrough there is no recorder; a single host may have that mode, too.
        engine = self.visit.engine
        recorder = None if engine.config.mode_of(asked.target.host, asked.named) == "passthrough" else engine.recorder
        self.tape = RecordingGuard(recorder, asked.identity.run, begin)

    def relay(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Take in a short request whole; let a long one, or one of unknown length, go on as it comes."""
        if problem := self.visit.engine.refusal(self.asked.target, self.visit.captured):
            yield from self.refuse(problem, "refused")
            return
        self.server_state = self.response_head
        length = _request_length(event)
        expects = "expect" in self.flow.request.headers
        if not expects and length is not None and length <= self.visit.engine.config.limits.buffered_request:
            self.client_state = self.request_whole
            return
        self._asking.left = length
        if (yield from self.forward(end_stream=False)):
            self.client_state = self.request_pieces
        elif self.client_state == self.request_head:
            # The client has left; what it said before that is still on its way here.
            self.client_state = self.over

    def request_whole(self, event: RequestEvent) -> CommandGenerator[None]:
        """Collect a short request, and send it when it is complete and kept."""
        match event:
            case RequestData(data=data):
                self.tape.data("request", data)
                self._body += data
            case RequestTrailers(trailers=trailers):
                self.flow.request.trailers = trailers
            case RequestEndOfMessage():
                self.tape.ended("request", as_text(self.flow.request.trailers))
                yield from self.send_whole()

    def send_whole(self) -> CommandGenerator[None]:
        """Send the collected request."""
        body, trailers = bytes(self._body), self.flow.request.trailers
        self._body.clear()
        self.client_state = self.over
        if not (yield from self.forward(end_stream=not (body or trailers))):
            return
        if body:
            yield self.to_upstream(RequestData(self.stream_id, body))
        if trailers:
            yield self.to_upstream(RequestTrailers(self.stream_id, trailers))
        yield self.to_upstream(RequestEndOfMessage(self.stream_id))

    def request_pieces(self, event: RequestEvent) -> CommandGenerator[None]:
        """Let each piece go on as it comes, but for the last."""
        match event:
            case RequestData(data=data):
                self.tape.data("request", data)
                if not self._asking.is_last(event):
                    yield self.to_upstream(RequestData(self.stream_id, data))
            case RequestTrailers(trailers=trailers):
                self.flow.request.trailers = trailers
            case RequestEndOfMessage():
                yield from self.end_request()

    def end_request(self) -> CommandGenerator[None]:
        """The last of it goes on when all of it is kept."""
        self.tape.ended("request", as_text(self.flow.request.trailers))
        if self.server_state == self.over:
            self.tape.closed("completed")
        if not (yield from self.kept()):
            yield from self.give_up("the request could not be recorded")
            return
        for held_back in self._asking.taken():
            yield self.to_upstream(held_back)
        if self.flow.request.trailers:
            yield self.to_upstream(RequestTrailers(self.stream_id, self.flow.request.trailers))
        self.client_state = self.over
        yield self.to_upstream(RequestEndOfMessage(self.stream_id))
        if self.server_state == self.over:
            yield from self.leave()

    def forward(self, *, end_stream: bool) -> CommandGenerator[bool]:
        """Once the request is kept, connect and send its head."""
        if not (yield from self.kept()):
            yield from self.refuse(Problem(503, "not_recorded", self.tape.refusal), "refused")
            return False
        # Nothing is asked for a client that left while we waited.
        if self.client_left() or not (yield from self.make_server_connection()) or self.client_left():
            return False
        yield self.to_upstream(RequestHeaders(self.stream_id, self._for_upstream(), end_stream))
        if (silence := self.visit.engine.config.limits.silence) is not None:
            self._heard_at = time.monotonic()
            yield self.alarm(silence)
        return True

    def _for_upstream(self) -> http.Request:
        """The request with what the proxy above us wants to see, where it gets the request itself and not a CONNECT."""
        request, value = self.flow.request, self.visit.engine.authorization_above
        if (
            value is None
            or self.mode is not HTTPMode.upstream
            or not request.authority
            or self.asked.target.scheme != "http"
        ):
            return request
        request = request.copy()
        request.headers["Proxy-Authorization"] = value
        return request

    def alarmed(self) -> CommandGenerator[None]:
        """The upstream may have been silent for too long. What the client still sends counts as silence too."""
        silence = self.visit.engine.config.limits.silence
        if silence is None or self.server_state in (self.over, self.gone):
            return
        left = self._heard_at + silence - time.monotonic()
        if left > 0:
            yield self.alarm(left)
            return
        why = f"the upstream was silent for {silence:g} s"
        yield self.to_upstream(RequestProtocolError(self.stream_id, why, ErrorCode.KILL))
        if self.server_state == self.response_head:
            yield from self.refuse(Problem(504, "upstream_silent", why), "timed_out")
        else:
            self.tape.closed("timed_out", why)
            yield from self.cut()

    def make_server_connection(self) -> CommandGenerator[bool]:
        """Connect to whom we contact for the target; `destinations` decides about its address."""
        engine, target = self.visit.engine, self.asked.target
        contact, server = engine.contact(target), self.context.server
        address = (contact.host, contact.port)
        via = None
        if contact is target:
            via = server.via
            if self.mode is HTTPMode.transparent:
                assert server.address is not None
                address = server.address[:2]
                # Whom the certificate has to be of is what a captured handshake named, whatever Host says.
                server.sni = self.visit.tunnel if self.visit.captured is not None else target.host
        connection, error = yield http_layers.GetHttpConnection(address, contact.scheme == "https", via, "tcp")
        if error:
            if self.client_left():
                return False
            problem = unreachable(error)
            timed_out = problem.status == 504
            yield from self.refuse(
                problem, "refused" if problem.status == 403 else "timed_out" if timed_out else "server_closed"
            )
            return False
        self.context.server = self.flow.server_conn = self.upstream = connection
        return True

    # The response

    def response_head(self, event: events.Event) -> CommandGenerator[None]:
        """Pass the head on at once, unless it is all there is."""
        assert isinstance(event, ResponseHeaders)
        self._heard_at = time.monotonic()
        response = self.flow.response = event.response
        if fault := _response_fault(self.flow.request, response):
            yield self.to_upstream(RequestProtocolError(self.stream_id, "malformed response", ErrorCode.KILL))
            yield from self.refuse(Problem(502, "upstream_malformed", _malformed(fault)))
            return
        # Else the client would leave for QUIC, past us.
        response.headers.pop("alt-svc", None)
        self.tape.response(
            response.status_code, latin(response.data.reason), admission.version(response), as_text(response.headers)
        )
        without_own_fields(response)
        self.mark(response)
        self.server_state = self.response_body
        if event.end_stream:
            self._answering.hold(event)
            return
        length = expected_http_body_size(self.flow.request, response)
        self._answering.left = length if length is not None and length > 0 else None
        yield self.to_client(ResponseHeaders(self.stream_id, response, end_stream=False))

    def mark(self, response: http.Response) -> None:
        """Recording and passing through add nothing to a response."""

    def response_body(self, event: events.Event) -> CommandGenerator[None]:
        """Pass pieces on as they come, but for the last."""
        self._heard_at = time.monotonic()
        match event:
            case ResponseData(data=data):
                self.tape.data("response", data)
                if not self._answering.is_last(event):
                    yield self.to_client(ResponseData(self.stream_id, data))
            case ResponseTrailers(trailers=trailers):
                assert self.flow.response
                self.flow.response.trailers = trailers
            case ResponseEndOfMessage():
                yield from self.end_response()

    def end_response(self) -> CommandGenerator[None]:
        """The last of it goes on when all of it is kept."""
        response = self.flow.response
        assert response
        if response.status_code == 101:
            yield from self.upgrade()
            return
        self.tape.ended("response", as_text(response.trailers))
        if self.client_state == self.over:
            self.tape.closed("completed")
        if not (yield from self.kept()):
            yield from self.give_up("the response could not be recorded")
            return
        yield from self._send_tail()
        if response.trailers:
            yield self.to_client(ResponseTrailers(self.stream_id, response.trailers))
        self.server_state = self.over
        yield self.to_client(ResponseEndOfMessage(self.stream_id))
        if self.client_state == self.over:
            yield from self.leave()

    def _send_tail(self) -> CommandGenerator[None]:
        for held_back in self._answering.taken():
            yield self.to_client(held_back)

    def upgrade(self) -> CommandGenerator[None]:
        """From here on there is no HTTP."""
        yield from self._send_tail()
        self.child_layer = UpgradedConnection(self.context, self)
        self._handle_event = self.passthrough  # type: ignore[method-assign]
        yield from self.child_layer.handle_event(events.Start())
        yield self.to_client(ResponseEndOfMessage(self.stream_id))

    def ended(self) -> None:
        """What came after HTTP is over."""
        self.flow.live = False
        self.visit.end(self)

    def give_up(self, why: str) -> CommandGenerator[None]:
        """Break off on both sides."""
        self.tape.closed("refused", why)
        if self.upstream is not None:
            yield self.to_upstream(RequestProtocolError(self.stream_id, why, ErrorCode.KILL))
        yield from self.cut()

    def broken_off(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        """One side is gone before the exchange was over: so is the other one then."""
        if self.client_state == self.gone:
            return
        if isinstance(event, RequestProtocolError):
            self.tape.closed("client_closed", "the client left before the exchange was over")
            if self.upstream is not None and self.server_state != self.over:
                yield self.to_upstream(event)
            yield from self.leave()
            return
        if self.server_state == self.over:
            # The response is whole; the upstream does not want the rest of the request.
            yield from self.cut()
            return
        why = "the upstream broke off before its response was complete"
        if isinstance(event, UpstreamMalformed):
            why = _malformed(event.message)
            if self.server_state == self.response_head:
                yield from self.refuse(Problem(502, "upstream_malformed", why))
                return
        self.tape.closed("server_closed", why)
        yield from self._send_tail()
        code = event.code if event.code in (ErrorCode.CANCEL, ErrorCode.HTTP_1_1_REQUIRED) else ErrorCode.KILL
        yield self.to_client(ResponseProtocolError(self.stream_id, "broken off", code))
        yield from self.leave()


def _request_length(event: RequestHeaders) -> int | None:
    """How long the body will be; None where nobody knows."""
    if event.end_stream:
        return 0
    if event.request.is_http2 and "content-length" not in event.request.headers:
        return None
    return expected_http_body_size(event.request)


def _malformed(fault: str) -> str:
    return f"the upstream's response is malformed: {fault}"


def _response_fault(request: http.Request, response: http.Response) -> str | None:
    if response.status_code == 101 and "upgrade" not in request.headers:
        return "a switch of protocols that nobody asked for"
    try:
        validate_headers(response)
    except ValueError:
        return "its framing is ambiguous or invalid"
    if not all(map(is_length, response.headers.get_all("content-length"))):
        return "its Content-Length is not a plain number"
    # Other codings than this one only their own client could undo, who has not been asked.
    if response.headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        return "its framing is ambiguous or invalid"
    if not 100 <= response.status_code <= 999:
        return "its status is none"
    if fields_fault([(b"reason", response.data.reason)]):
        return "its reason holds a control character"
    return fields_fault(response.headers.fields)
