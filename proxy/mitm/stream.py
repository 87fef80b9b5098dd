"""The base of streams: check the head of a request, refuse it, and end the stream.

It replaces mitmproxy's `HttpStream`, except for CONNECT and what follows a 101 response.
"""

from collections.abc import Callable

from mitmproxy import http
from mitmproxy.connection import Connection
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http as http_layers
from mitmproxy.proxy.layers.http import HTTPMode, SendHttp
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
)

from calls.model import Headers, Outcome
from calls.own_fields import is_own_field
from proxy.mitm import admission
from proxy.mitm.admission import AdmittedRequest
from proxy.mitm.connection import MitmConnection
from proxy.mitm.layer_events import Await, InterimResponse, PauseStream, PeerFull, PeerReady, ResumeStream
from proxy.recording.run_identity import parse_credentials
from proxy.wire.access import Credentials
from proxy.wire.config import Origin
from proxy.wire.problem import Problem
from proxy.wire.recording_guard import RecordingGuard, RecordingInterface
from proxy.wire.run_access import require_write_access

DISCARD_BYTES = 1 << 20
"""Bytes to keep reading of a refused request. If the connection were closed at once, the client might miss the response."""

RequestEvent = RequestHeaders | RequestData | RequestTrailers | RequestEndOfMessage
type State = Callable[[RequestEvent], CommandGenerator[None]]


class Stream(http_layers.HttpStream):
    """One request. Subclasses implement `start`, which handles a request that was admitted."""

    request: AdmittedRequest
    recording: RecordingGuard
    upstream: Connection | None = None
    """Set once the request is sent."""

    def __init__(self, context: Context, stream_id: int, connection: MitmConnection) -> None:
        super().__init__(context, stream_id)
        self.connection = connection
        self.recording = RecordingGuard(None, "", lambda _: _no_recorder())
        self._paused_peer: Connection | None = None
        self._discarded = 0
        self._is_bodiless = False
        self._alarm: commands.RequestWakeup | None = None

    def start(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Start to handle an admitted request."""
        raise NotImplementedError

    def handle_disconnect(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        """Handle that one side disconnected before the end of the exchange."""
        raise NotImplementedError

    # Events

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        match event:
            case events.Start():
                self.client_state = self.request_head
            case RequestProtocolError() | ResponseProtocolError():
                yield from self.handle_disconnect(event)
            case RequestHeaders() | RequestData() | RequestTrailers():
                yield from self.client_state(event)
            case RequestEndOfMessage():
                self.connection.is_receiving_request = False
                yield from self.client_state(event)
            case PeerFull() | PeerReady():
                yield from self.handle_pressure(event)
            case events.Wakeup():
                if event.command is self._alarm:
                    yield from self.handle_alarm()
            case InterimResponse(response=interim):
                if self.server_state not in (self.state_over, self.state_gone):
                    remove_own_fields(interim)
                    yield self.to_client(event)
            case _:
                yield from self.server_state(event)

    def passthrough(self, event: events.Event) -> CommandGenerator[None]:
        """State after CONNECT or 101: bytes only. Ignore an alarm set before a 101; one inside a CONNECT is another layer's."""
        assert self.flow.response
        if not (isinstance(event, events.Wakeup) and self.flow.response.status_code == 101):
            yield from super().passthrough(event)

    def set_alarm(self, seconds: float) -> commands.RequestWakeup:
        """Return the command that sets the alarm, which replaces an earlier one."""
        self._alarm = commands.RequestWakeup(seconds)
        return self._alarm

    def handle_alarm(self) -> CommandGenerator[None]:
        """Handle the alarm."""
        raise NotImplementedError

    def to_client(self, event: HttpEvent) -> SendHttp:
        """Return the command that sends an event to the client."""
        return SendHttp(event, self.context.client)

    def to_upstream(self, event: HttpEvent) -> SendHttp:
        """Return the command that sends an event to the upstream."""
        assert self.upstream is not None
        return SendHttp(event, self.upstream)

    def handle_pressure(self, event: PeerFull | PeerReady) -> CommandGenerator[None]:
        """Pause or resume one side when the other side's buffer is full or has room again."""
        other = self.upstream if event.from_client else self.context.client
        if other is None:
            return
        self._paused_peer = other if isinstance(event, PeerFull) else None
        yield SendHttp(
            PauseStream(self.stream_id) if isinstance(event, PeerFull) else ResumeStream(self.stream_id), other
        )

    def wait_until_recorded(self) -> CommandGenerator[bool]:
        """Wait until everything reported is recorded. Return False if it cannot be and the policy is to refuse."""
        # Waiting costs a task and a turn of the loop, and is nearly never necessary.
        if not self.recording.must_wait or self.recording.is_recorded_now():
            return True
        waiting = Await(self.recording.wait_until_recorded)
        yield waiting
        return bool(waiting.result)

    # The head

    def request_head(self, event: RequestEvent) -> CommandGenerator[None]:
        """State: admit the request, or refuse it."""
        assert isinstance(event, RequestHeaders)
        self.flow = http.HTTPFlow(self.context.client, self.context.server, live=True)
        self.flow.request = event.request
        self._is_bodiless = event.end_stream
        self.connection.is_receiving_request = not event.end_stream
        if event.request.method == "CONNECT" and self.mode is not HTTPMode.transparent:
            yield from self.handle_connect()
            return
        self.connection.begin_activity(self)
        try:
            self.request = self.admit(event.request)
        except Problem as problem:
            yield from self.refuse(problem)
            return
        yield from self.start(event)

    def admit(self, request: http.Request) -> AdmittedRequest:
        """Check the head, and find the target and the run of the request. Raises Problem."""
        connection, engine = self.connection, self.connection.engine
        admission.check_head(request)
        if request.method == "CONNECT":
            raise Problem(
                405, "connect_in_tunnel", "CONNECT is not supported within a tunnel: send it to the proxy itself"
            )
        admission.check_path(request)
        credentials = self._credentials(request)
        target = self._target(request)
        if connection.captured is not None:
            target = admission.host_origin(request, target)
        plain = self.mode is not HTTPMode.transparent
        admission.check_host(request, target, can_rewrite=plain or engine.reverse is not None)
        request.data.scheme = target.scheme.encode()
        if plain and (engine.proxy is None or engine.is_overridden(target)) and not request.is_http2:
            request.authority = ""
        if request.headers.get("upgrade", "").lower().strip() == "h2c":
            # h2c is hop-by-hop, and could not be recorded.
            for name in ("upgrade", "http2-settings", "connection"):
                request.headers.pop(name, None)
        access = engine.config.access
        admitted = admission.admit_request(
            request, target, credentials, connection.owner, engine.config.is_only_run, access.project_of(credentials)
        )
        require_write_access(admitted.identity.run, credentials, access)
        return admitted

    def _credentials(self, request: http.Request) -> Credentials:
        connection, reverse = self.connection, self.connection.engine.reverse is not None
        if connection.tunnel_host is not None:
            return connection.credentials
        credentials = parse_credentials(request.headers.get("proxy-authorization", ""))
        if reverse:
            credentials = admission.strip_run_prefix(request) or credentials
        admission.authorize(credentials, connection.engine.config.access, reverse=reverse)
        return credentials

    def _target(self, request: http.Request) -> Origin:
        server = self.context.server
        if (reverse := self.connection.engine.reverse) is not None:
            return reverse
        if self.mode is not HTTPMode.transparent:
            return admission.proxy_request_origin(request)
        assert server.address is not None
        sni = self.context.client.sni if server.tls else None
        host = (
            self.connection.tunnel_host
            if self.connection.captured is not None and self.connection.tunnel_host
            else server.address[0]
        )
        return admission.origin_in_tunnel(host, server.address[1], sni, is_tls=server.tls)

    def has_client_left(self) -> bool:
        """Return whether the client has disconnected meanwhile. `handle_disconnect` follows."""
        return any(isinstance(event, RequestProtocolError) for event in self._paused_event_queue)

    # Ends

    def state_over(self, _event: events.Event) -> CommandGenerator[None]:
        """State of one side: its message is complete, and later events are ignored."""
        yield from ()

    def state_gone(self, _event: events.Event) -> CommandGenerator[None]:
        """State of both sides: the stream has ended."""
        yield from ()

    def refuse(self, problem: Problem, outcome: Outcome = "refused") -> CommandGenerator[None]:
        """Answer with a problem, and record it as a refusal by Playhead."""
        self.connection.engine.config.counts[f"errors/{problem.code}"] += 1
        complete = self._is_bodiless or self.client_state == self.state_over
        self.server_state = self.state_over
        self.client_state = self.state_over if self.client_state == self.state_over else self.discard_request
        headers = problem.headers if complete else (*problem.headers, ("Connection", "close"))
        if self.flow.request.is_http2:
            headers = problem.headers
        body = problem.body if self.flow.request.method != "HEAD" else b""
        version = "HTTP/2" if self.flow.request.is_http2 else "HTTP/1.1"
        self.recording.record_response_head(problem.status, problem.reason, version, headers)
        self.recording.record_data("response", body)
        self.recording.record_end("response")
        self.recording.record_close(outcome, problem.detail)
        yield from self.wait_until_recorded()
        fields = http.Headers([(name.encode(), value.encode()) for name, value in headers])
        reason = problem.reason.encode()
        self.flow.response = http.Response(b"HTTP/1.1", problem.status, reason, fields, b"", None, 0.0, 0.0)
        yield self.to_client(ResponseHeaders(self.stream_id, self.flow.response, end_stream=not body))
        if body:
            yield self.to_client(ResponseData(self.stream_id, body))
        yield self.to_client(ResponseEndOfMessage(self.stream_id))
        if self.client_state == self.state_over:
            yield from self.leave()

    def discard_request(self, event: RequestEvent) -> CommandGenerator[None]:
        """State: discard the rest of a refused request."""
        match event:
            case RequestData(data=data):
                self._discarded += len(data)
                if self._discarded > DISCARD_BYTES:
                    yield from self.cut()
            case RequestEndOfMessage():
                self.client_state = self.state_over
                yield from self.leave()

    def cut(self) -> CommandGenerator[None]:
        """Break off towards the client: HTTP/1 closes the connection, HTTP/2 resets the stream."""
        yield self.to_client(ResponseProtocolError(self.stream_id, "cut", ErrorCode.KILL))
        yield from self.leave()

    def leave(self) -> CommandGenerator[None]:
        """End the stream."""
        if self._paused_peer is not None:
            yield SendHttp(ResumeStream(self.stream_id), self._paused_peer)
            self._paused_peer = None
        self.recording.record_close("refused", "the exchange was broken off")
        self._alarm = None
        self.client_state = self.server_state = self.state_gone
        self.flow.live = False
        self.connection.end_activity(self)
        yield http_layers.DropStream(self.stream_id)

    def abandon(self, outcome: Outcome, why: str) -> None:
        """End the exchange because the connection is gone or failed."""
        self.recording.record_close(outcome, why)


def remove_own_fields(response: http.Response) -> None:
    """Remove fields from an upstream's response that only Playhead may send. They are recorded."""
    fields = response.headers.fields
    if any(is_own_field(latin1_text(name)) for name, _ in fields):
        response.headers.fields = tuple(field for field in fields if not is_own_field(latin1_text(field[0])))


def text_fields(headers: http.Headers | None) -> Headers:
    """Return header fields as text."""
    if headers is None:
        return ()
    return tuple((latin1_text(name), latin1_text(value)) for name, value in headers.fields)


def latin1_text(data: bytes) -> str:
    """Decode bytes as Latin-1: one code point for each byte."""
    return data.decode("latin-1")


def _no_recorder() -> RecordingInterface:
    raise AssertionError("there is no recorder")
