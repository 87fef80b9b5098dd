"""What every stream does: check the head, refuse, end, and release.

It takes the place of mitmproxy's `HttpStream`, of which CONNECT and what follows a 101 are left as they are.
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
from proxy.mitm.layer_events import Await, Full, Hold, Informational, Resume, Room
from proxy.recording.run_identity import credentials
from proxy.wire.config import Origin
from proxy.wire.problem import Problem
from proxy.wire.recording_guard import RecordingGuard, RecordingInterface
from proxy.wire.run_access import require_write_access

SWALLOWED = 1 << 20
"""How much of a refused request's body we read on before we close."""

RequestEvent = RequestHeaders | RequestData | RequestTrailers | RequestEndOfMessage
type State = Callable[[RequestEvent], CommandGenerator[None]]


class Stream(http_layers.HttpStream):
    """One request. What becomes of it once it may go on is `start`'s business."""

    asked: AdmittedRequest
    tape: RecordingGuard
    upstream: Connection | None = None
    """Set once the request has gone out."""

    def __init__(self, context: Context, stream_id: int, visit: MitmConnection) -> None:
        super().__init__(context, stream_id)
        self.visit = visit
        self.tape = RecordingGuard(None, "", lambda _: _nobody())
        self._held: Connection | None = None
        self._swallowed = 0
        self._bodiless = False
        self._alarm: commands.RequestWakeup | None = None

    def start(self, event: RequestHeaders) -> CommandGenerator[None]:
        """Begin with a request that may go on."""
        raise NotImplementedError

    def broken_off(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        """One side is gone before the exchange was over."""
        raise NotImplementedError

    # Events

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        match event:
            case events.Start():
                self.client_state = self.request_head
            case RequestProtocolError() | ResponseProtocolError():
                yield from self.broken_off(event)
            case RequestHeaders() | RequestData() | RequestTrailers():
                yield from self.client_state(event)
            case RequestEndOfMessage():
                self.visit.expecting = False
                yield from self.client_state(event)
            case Full() | Room():
                yield from self.pressure(event)
            case events.Wakeup():
                if event.command is self._alarm:
                    yield from self.alarmed()
            case Informational(response=interim):
                if self.server_state not in (self.over, self.gone):
                    without_own_fields(interim)
                    yield self.to_client(event)
            case _:
                yield from self.server_state(event)

    def passthrough(self, event: events.Event) -> CommandGenerator[None]:
        """After CONNECT and 101: bytes only. An alarm from before a 101 is void; one inside a CONNECT is not ours."""
        assert self.flow.response
        if not (isinstance(event, events.Wakeup) and self.flow.response.status_code == 101):
            yield from super().passthrough(event)

    def alarm(self, seconds: float) -> commands.RequestWakeup:
        """Be woken once, then; an earlier alarm is void."""
        self._alarm = commands.RequestWakeup(seconds)
        return self._alarm

    def alarmed(self) -> CommandGenerator[None]:
        """What to do when the time has come."""
        raise NotImplementedError

    def to_client(self, event: HttpEvent) -> SendHttp:
        """Send it to the client."""
        return SendHttp(event, self.context.client)

    def to_upstream(self, event: HttpEvent) -> SendHttp:
        """Send it to the upstream."""
        assert self.upstream is not None
        return SendHttp(event, self.upstream)

    def pressure(self, event: Full | Room) -> CommandGenerator[None]:
        """One side takes no more for now, or more again: let the other side know."""
        other = self.upstream if event.from_client else self.context.client
        if other is None:
            return
        self._held = other if isinstance(event, Full) else None
        yield SendHttp(Hold(self.stream_id) if isinstance(event, Full) else Resume(self.stream_id), other)

    def kept(self) -> CommandGenerator[bool]:
        """Wait until all that was told is kept. False where nothing more may pass."""
        # Standing still costs a task and a turn of the loop; nearly always there is nothing to wait for.
        if not self.tape.guarded or self.tape.kept_now():
            return True
        waiting = Await(self.tape.kept)
        yield waiting
        return bool(waiting.result)

    # The head

    def request_head(self, event: RequestEvent) -> CommandGenerator[None]:
        """Decide whether it may go on."""
        assert isinstance(event, RequestHeaders)
        self.flow = http.HTTPFlow(self.context.client, self.context.server, live=True)
        self.flow.request = event.request
        self._bodiless = event.end_stream
        self.visit.expecting = not event.end_stream
        if event.request.method == "CONNECT" and self.mode is not HTTPMode.transparent:
            yield from self.handle_connect()
            return
        self.visit.begin(self)
        try:
            self.asked = self.admitted(event.request)
        except Problem as problem:
            yield from self.refuse(problem)
            return
        yield from self.start(event)

    def admitted(self, request: http.Request) -> AdmittedRequest:
        """Check the head, find out whom it is for and who asks. Raises Problem."""
        visit, engine = self.visit, self.visit.engine
        admission.sound(request)
        if request.method == "CONNECT":
            raise Problem(405, "connect_in_tunnel", "there is a connection already: CONNECT is for the proxy itself")
        admission.path_of_origin(request)
        given = self._given(request)
        target = self._target(request)
        if visit.captured is not None:
            target = admission.named_by(request, target)
        plain = self.mode is not HTTPMode.transparent
        admission.agree_on_host(request, target, rewrite=plain or engine.reverse is not None)
        request.data.scheme = target.scheme.encode()
        if plain and (engine.proxy is None or engine.is_overridden(target)) and not request.is_http2:
            request.authority = ""
        if request.headers.get("upgrade", "").lower().strip() == "h2c":
            # Hop-by-hop, and what follows a switch to it could not be read.
            for name in ("upgrade", "http2-settings", "connection"):
                request.headers.pop(name, None)
        asked = admission.asked(request, target, given, visit.owner, engine.config.is_only_run)
        require_write_access(asked.identity.run, given, engine.config.access)
        return asked

    def _given(self, request: http.Request) -> admission.Credentials | None:
        visit, reverse = self.visit, self.visit.engine.reverse is not None
        if visit.tunnel is not None:
            return visit.given
        given = credentials(request.headers.get("proxy-authorization", ""))
        if reverse:
            given = admission.unprefixed(request) or given
        admission.authorize(given, visit.engine.config.access, reverse=reverse)
        return given

    def _target(self, request: http.Request) -> Origin:
        server = self.context.server
        if (reverse := self.visit.engine.reverse) is not None:
            return reverse
        if self.mode is not HTTPMode.transparent:
            return admission.asked_by_proxy_request(request)
        assert server.address is not None
        sni = self.context.client.sni if server.tls else None
        host = self.visit.tunnel if self.visit.captured is not None and self.visit.tunnel else server.address[0]
        return admission.asked_in_tunnel(host, server.address[1], sni, secure=server.tls)

    def client_left(self) -> bool:
        """Whether the client has gone meanwhile; `broken_off` follows."""
        return any(isinstance(event, RequestProtocolError) for event in self._paused_event_queue)

    # Ends

    def over(self, _event: events.Event) -> CommandGenerator[None]:
        """One side is through; what it may still say does not count."""
        yield from ()

    def gone(self, _event: events.Event) -> CommandGenerator[None]:
        """Both sides are through."""
        yield from ()

    def refuse(self, problem: Problem, outcome: Outcome = "refused") -> CommandGenerator[None]:
        """Answer in the upstream's place, and say in the record that it was us."""
        self.visit.engine.config.counts[f"errors/{problem.code}"] += 1
        complete = self._bodiless or self.client_state == self.over
        self.server_state = self.over
        self.client_state = self.over if self.client_state == self.over else self.swallow
        headers = problem.headers if complete else (*problem.headers, ("Connection", "close"))
        if self.flow.request.is_http2:
            headers = problem.headers
        body = problem.body if self.flow.request.method != "HEAD" else b""
        version = "HTTP/2" if self.flow.request.is_http2 else "HTTP/1.1"
        self.tape.response(problem.status, problem.reason, version, headers)
        self.tape.data("response", body)
        self.tape.ended("response")
        self.tape.closed(outcome, problem.detail)
        yield from self.kept()
        fields = http.Headers([(name.encode(), value.encode()) for name, value in headers])
        reason = problem.reason.encode()
        self.flow.response = http.Response(b"HTTP/1.1", problem.status, reason, fields, b"", None, 0.0, 0.0)
        yield self.to_client(ResponseHeaders(self.stream_id, self.flow.response, end_stream=not body))
        if body:
            yield self.to_client(ResponseData(self.stream_id, body))
        yield self.to_client(ResponseEndOfMessage(self.stream_id))
        if self.client_state == self.over:
            yield from self.leave()

    def swallow(self, event: RequestEvent) -> CommandGenerator[None]:
        """Read on what was refused, for a while: closing at once could cost the client our answer."""
        match event:
            case RequestData(data=data):
                self._swallowed += len(data)
                if self._swallowed > SWALLOWED:
                    yield from self.cut()
            case RequestEndOfMessage():
                self.client_state = self.over
                yield from self.leave()

    def cut(self) -> CommandGenerator[None]:
        """Break the connection to the client: HTTP/1 closes it, HTTP/2 resets the stream."""
        yield self.to_client(ResponseProtocolError(self.stream_id, "cut", ErrorCode.KILL))
        yield from self.leave()

    def leave(self) -> CommandGenerator[None]:
        """Nothing more happens here."""
        if self._held is not None:
            yield SendHttp(Resume(self.stream_id), self._held)
            self._held = None
        self.tape.closed("refused", "the exchange was given up")
        self._alarm = None
        self.client_state = self.server_state = self.gone
        self.flow.live = False
        self.visit.end(self)
        yield http_layers.DropStream(self.stream_id)

    def abandon(self, outcome: Outcome, why: str) -> None:
        """The connection is gone, or something of ours has failed."""
        self.tape.closed(outcome, why)


def without_own_fields(response: http.Response) -> None:
    """Take from an upstream's response what only we may say to its client. The record has it."""
    fields = response.headers.fields
    if any(is_own_field(latin(name)) for name, _ in fields):
        response.headers.fields = tuple(field for field in fields if not is_own_field(latin(field[0])))


def as_text(headers: http.Headers | None) -> Headers:
    """Header fields as our model has them."""
    if headers is None:
        return ()
    return tuple((latin(name), latin(value)) for name, value in headers.fields)


def latin(data: bytes) -> str:
    """Bytes as text, one code point each."""
    return data.decode("latin-1")


def _nobody() -> RecordingInterface:
    raise AssertionError("there is no recorder")
