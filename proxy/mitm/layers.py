"""Choose mitmproxy's layers for a connection, and answer its hooks."""

from mitmproxy import http
from mitmproxy.connection import Client, Server
from mitmproxy.net.tls import starts_like_tls_record
from mitmproxy.proxy import commands, events, tunnel
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator, Layer, NextLayer, NextLayerHook
from mitmproxy.proxy.layers import http as http_layers
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http import HTTPMode, _http1
from mitmproxy.proxy.layers.http._hooks import HttpConnectHook, HttpConnectUpstreamHook
from mitmproxy.proxy.layers.tls import (
    ClientTLSLayer,
    ServerTLSLayer,
    TlsClienthelloHook,
    TlsEstablishedServerHook,
    TlsFailedClientHook,
    TlsFailedServerHook,
    TlsStartClientHook,
    TlsStartServerHook,
)
from mitmproxy.tls import ClientHelloData, TlsData

from proxy.capture.connections.destination import rejection
from proxy.mitm import tls
from proxy.mitm.admission import asked_in_tunnel, authorize, sound
from proxy.mitm.connection import MitmConnection
from proxy.mitm.protocol import header_cache_patch as quicker
from proxy.mitm.protocol import http1, http2
from proxy.mitm.relay_stream import RelayStream
from proxy.mitm.replay_stream import ReplayStream
from proxy.mitm.tunnel import OpaqueTunnel
from proxy.recording.run_identity import credentials
from proxy.wire.engine_state import BegunTunnel, EngineState
from proxy.wire.problem import Fault, Problem
from proxy.wire.run_access import require_write_access

REPLACED = {
    "Http1Server": http1.Http1ClientSide,
    "Http1Client": http1.Http1UpstreamSide,
    "Http2Server": http2.Http2ClientSide,
    "Http2Client": http2.Http2UpstreamSide,
}


PREFACE = b"PRI * HTTP/2.0\r\n"
"""What a client of HTTP/2 begins with that knows what its server speaks (RFC 9113 3.4)."""


def install() -> None:
    """Let mitmproxy make our connections: it looks these four up by name whenever it speaks HTTP."""
    for name, ours in REPLACED.items():
        setattr(http_layers, name, ours)
    _http1.make_error_response = http1.error_response
    quicker.install()


class Http(http_layers.HttpLayer):
    """All HTTP on one connection: makes our streams, and forgets upstream connections that have ended."""

    def __init__(self, context: Context, mode: HTTPMode, visit: MitmConnection) -> None:
        super().__init__(context, mode)
        self.visit = visit

    def make_stream(self, stream_id: int) -> CommandGenerator[None]:
        """A stream of ours for each request."""
        kind = RelayStream if self.visit.engine.answerer is None else ReplayStream
        stream = kind(self.context.fork(), stream_id, self.visit)
        self.streams[stream_id] = stream
        yield from self.event_to_child(stream, events.Start())

    def get_connection(self, event: http_layers.GetHttpConnection, *, reuse: bool = True) -> CommandGenerator[None]:
        """Find or open an upstream connection. A failure is not remembered: the next request may have more luck."""
        self.context.server.error = None
        for connection in [c for c in self.connections if isinstance(c, Server) and self._over(c)]:
            del self.connections[connection]
        client = self.context.client
        by_prior_knowledge = client.alpn == b"h2" and not client.tls and not event.tls
        for command in super().get_connection(event, reuse=reuse):
            if by_prior_knowledge and isinstance(command, commands.OpenConnection):
                # gRPC without TLS: its server speaks nothing else, and no handshake tells so.
                command.connection.alpn = b"h2"
            yield command

    def _over(self, server: Server) -> bool:
        if server.connected or server in self.waiting_for_establishment:
            return False
        return not any(stream.context.server is server for stream in self.streams.values())

    def register_connection(self, command: http_layers.RegisterHttpConnection) -> CommandGenerator[None]:
        """Hand on why a connection failed with its kind, which mitmproxy's layers lose on the way."""
        if command.err and isinstance(command.connection.error, Fault):
            command.err = command.connection.error
        yield from super().register_connection(command)

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        forgotten = (
            isinstance(event, events.ConnectionEvent)
            and event.connection not in self.connections
            and event.connection is not self.context.server
        )
        if not forgotten:
            yield from super()._handle_event(event)


class Stack:
    """Builds the layers of one engine's connections."""

    def __init__(self, engine: EngineState) -> None:
        self.engine = engine

    def outermost(self, context: Context) -> Layer:
        """The first layer, by what kind of proxy we are."""
        if self.engine.reverse is not None:
            return modes.ReverseProxy(context)
        if self.engine.proxy is not None:
            return modes.HttpUpstreamProxy(context)
        return modes.HttpProxy(context)

    def resumed(self, visit: MitmConnection, begun: BegunTunnel) -> Layer:
        """The first layer of a connection that another engine has begun."""
        context = Context(visit.client, self.engine.options)  # type: ignore[arg-type]  # theirs, cheaper
        context.server.address = (begun.captured.host if begun.captured else begun.host, begun.port)
        if self.engine.proxy is not None:
            above = self.engine.proxy
            context.server.via = (above.scheme, (above.host, above.port))  # type: ignore[assignment]  # theirs is a literal
        if not begun.opened:
            return NextLayer(context)
        if begun.secure:
            context.server.tls = visit.client.tls = True
            visit.client.sni, visit.client.alpn = begun.name, b"http/1.1"
        return Http(context, HTTPMode.transparent, visit)

    def run(self, visit: MitmConnection, hook: commands.StartHook) -> None:
        """Answer a hook."""
        match hook:
            case NextLayerHook(data=next_layer):
                if next_layer.layer is None:
                    next_layer.layer = self._next(visit, next_layer)
            case HttpConnectHook(flow=flow):
                self._connect(visit, flow)
            case HttpConnectUpstreamHook(flow=flow):
                self._connect_above(flow)
            case TlsClienthelloHook(data=hello):
                if visit.captured is not None and hello.client_hello.sni:
                    visit.tunnel = hello.client_hello.sni.lower()
                    hello.context.server.sni = visit.tunnel
                hello.establish_server_tls_first = self._ask_upstream_first(visit, hello)
            case TlsStartClientHook(data=start):
                self._start_client(visit, start)
            case TlsStartServerHook(data=start):
                self._start_server(start)
            case TlsEstablishedServerHook(data=done):
                self._established(done)
            case TlsFailedServerHook(data=failed):
                _failed(failed)
            case TlsFailedClientHook(data=failed):
                if visit.captured is not None and (why := rejection(failed.conn.error)):
                    visit.captured.report_failure(why)

    def _next(self, visit: MitmConnection, undecided: NextLayer) -> Layer | None:
        context, data = undecided.context, undecided.data_client()  # type: ignore[no-untyped-call]
        if visit.tunnel is None and len(context.layers) == 1:
            return self._first(visit, context, data)
        if visit.tunnel is not None and self.engine.is_tunnelled(visit.tunnel):
            return OpaqueTunnel(context, visit, f"{visit.tunnel} is on the tunnel list and passed undecrypted")
        if not context.client.tls and len(data) < 3:
            return None
        if starts_like_tls_record(data) and not context.client.tls:
            return _stacked(ServerTLSLayer(context), ClientTLSLayer(context))
        if data.startswith(PREFACE) and not context.client.tls:
            context.client.alpn = b"h2"
        if context.client.alpn in tls.HTTP_ALPNS or _like_http(data):
            return Http(context, HTTPMode.transparent, visit)
        within = "what it speaks within TLS is not HTTP"
        reason = f"{visit.tunnel} was asked in something that is neither TLS nor HTTP"
        return OpaqueTunnel(context, visit, reason if visit.captured is None else within)

    def _first(self, visit: MitmConnection, context: Context, data: bytes) -> Layer | None:
        if len(data) < 3:
            return None
        mode = HTTPMode.regular
        layers: list[Layer] = []
        if self.engine.reverse is not None:
            mode = HTTPMode.transparent
            if self.engine.reverse.scheme == "https":
                layers.append(ServerTLSLayer(context))
        elif self.engine.proxy is not None:
            mode = HTTPMode.upstream
        if starts_like_tls_record(data):
            layers.append(ClientTLSLayer(context))
        return _stacked(*layers, Http(context, mode, visit))

    def _connect(self, visit: MitmConnection, flow: http.HTTPFlow) -> None:
        try:
            given = credentials(flow.request.headers.get("proxy-authorization", ""))
            sound(flow.request)
            authorize(given, self.engine.config.access)
            if given and given[0]:
                # What goes on undecrypted is noted in the run.
                require_write_access(given[0], given, self.engine.config.access)
            self._may_connect(flow.request.host, flow.request.port)
        except Problem as problem:
            self.engine.config.counts[f"errors/{problem.code}"] += 1
            flow.response = response(problem)
            flow.response.headers["Connection"] = "close"
            return
        visit.given, visit.tunnel = given, flow.request.host.lower()

    def _may_connect(self, host: str, port: int) -> None:
        target = asked_in_tunnel(host, port, None, secure=True)
        if self.engine.contacts_nobody and self.engine.is_tunnelled(host):
            raise Problem(
                403, "tunnel_in_replay", f"{host} is on the tunnel list: it cannot be answered from a recording"
            )
        # What is answered from a recording may have been anywhere.
        if self.engine.answerer is None and (problem := self.engine.refusal(target)):
            raise problem

    def _connect_above(self, flow: http.HTTPFlow) -> None:
        if value := self.engine.authorization_above:
            flow.request.headers["Proxy-Authorization"] = value

    def _ask_upstream_first(self, visit: MitmConnection, hello: ClientHelloData) -> bool:
        """Whether to contact the upstream before the client's handshake: only to learn its protocol, once per upstream."""
        context, offered = hello.context, hello.client_hello.alpn_protocols
        host = visit.tunnel
        if host is None or b"h2" not in offered or self.engine.answerer is not None or context.server.address is None:
            return False
        target = asked_in_tunnel(host, context.server.address[1], hello.client_hello.sni, secure=True)
        if self.engine.is_overridden(target) or self.engine.protocol_for_client(target) is not None:
            return False
        return hello.client_hello.sni in (None, target.host)

    def _start_client(self, visit: MitmConnection, start: TlsData) -> None:
        context = start.context
        host = visit.tunnel or str(context.client.sockname[0])
        server = context.server
        if server.tls_established:
            wanted: bytes | None = server.alpn or b""
        elif visit.tunnel is None:
            # A proxy that is itself spoken to by TLS: CONNECT within HTTP/2 is not for us.
            wanted = b"http/1.1"
        else:
            assert server.address is not None
            wanted = self.engine.protocol_for_client(
                asked_in_tunnel(host, server.address[1], context.client.sni, secure=True)
            )
        leaf = self.engine.config.authority.leaf((context.client.sni or host).lower())
        start.ssl_conn = tls.towards_client(leaf, wanted)

    def _start_server(self, start: TlsData) -> None:
        server, client = start.conn, start.context.client
        assert isinstance(server, Server)
        assert server.address is not None
        server.sni = server.sni or server.address[0]
        server.alpn_offers = tuple(server.alpn_offers or _mirrored(client))
        start.ssl_conn = tls.towards_upstream(server.sni, tuple(server.alpn_offers), self.engine.trust)

    def _established(self, done: TlsData) -> None:
        server = done.conn
        if isinstance(server, Server) and server.address is not None and b"h2" in server.alpn_offers:
            self.engine.remember_alpn(*server.address[:2], server.alpn or b"")


def _failed(failed: TlsData) -> None:
    server = failed.conn
    name = server.sni or "the upstream"
    if failed.ssl_conn is not None and (why := tls.verification_error(failed.ssl_conn)):
        detail = f"the certificate of {name} is not valid: {why}; a private CA can be trusted with upstream_ca"
        server.error = Fault(Problem(502, "tls_certificate_error", detail))
    else:
        server.error = Fault(Problem(502, "tls_failed", f"no TLS connection with {name}: {server.error}"))


def _mirrored(client: Client) -> tuple[bytes, ...]:
    """What to offer an upstream: what the client speaks with us, or, while that is open, what it would have offered."""
    if client.alpn == b"h2":
        return (b"h2", b"http/1.1")
    if client.alpn or not client.tls:
        return (b"http/1.1",)
    return tuple(alpn for alpn in client.alpn_offers if alpn in tls.HTTP_ALPNS) if not client.tls_established else ()


def response(problem: Problem) -> http.Response:
    """A problem as mitmproxy's response."""
    fields = [(name.encode(), value.encode()) for name, value in problem.headers]
    reason = problem.reason.encode()
    return http.Response(b"HTTP/1.1", problem.status, reason, http.Headers(fields), problem.body, None, 0.0, 0.0)


def _stacked(*layers: Layer) -> Layer:
    stack = tunnel.LayerStack()
    for one in layers:
        stack /= one
    return stack[0]


def _like_http(data: bytes) -> bool:
    """A method, a space: mitmproxy's own guess."""
    word, space, _ = data[:32].partition(b" ")
    return word.isalpha() and (bool(space) or len(data) < 32)
