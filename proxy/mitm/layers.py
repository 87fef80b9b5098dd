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

from proxy.mitm import tls
from proxy.mitm.admission import authorize, check_head, origin_in_tunnel
from proxy.mitm.connection import MitmConnection
from proxy.mitm.layer_events import FreshHttpConnection
from proxy.mitm.protocol import header_cache_patch, http1, http2
from proxy.mitm.relay_stream import RelayStream
from proxy.mitm.replay_stream import ReplayStream
from proxy.mitm.tunnel import OpaqueTunnel
from proxy.recording.run_identity import parse_credentials
from proxy.wire.client_hello import MAX_HELLO_BYTES
from proxy.wire.engine_state import EngineState, OpenedTunnel
from proxy.wire.problem import Problem, UpstreamFault
from proxy.wire.run_access import require_write_access

REPLACEMENTS = {
    "Http1Server": http1.Http1ClientSide,
    "Http1Client": http1.Http1UpstreamSide,
    "Http2Server": http2.Http2ClientSide,
    "Http2Client": http2.Http2UpstreamSide,
}


_ONE_READ = 256 << 10
"""Bytes that one read of a connection may have. What follows a whole ClientHello in the same read does not count."""

PREFACE = b"PRI * HTTP/2.0\r\n"
"""The beginning of an HTTP/2 connection with prior knowledge (RFC 9113 3.4)."""


def install() -> None:
    """Replace mitmproxy's four HTTP connection classes, which it looks up by name for each connection."""
    for name, replacement in REPLACEMENTS.items():
        setattr(http_layers, name, replacement)
    _http1.make_error_response = http1.error_response
    header_cache_patch.install()


class ClientTls(ClientTLSLayer):
    """The TLS of a client. mitmproxy parses all of a ClientHello again for each piece of it, and lets it have 16 MiB.

    That took a client half a second of the event loop for each megabyte.
    """

    def receive_handshake_data(self, data: bytes) -> CommandGenerator[tuple[bool, str | None]]:
        if not self.client_hello_parsed and len(self.recv_buffer) + len(data) > MAX_HELLO_BYTES + _ONE_READ:
            return False, f"the client sent no ClientHello in its first {MAX_HELLO_BYTES >> 10} KiB"
        return (yield from super().receive_handshake_data(data))


class Http(http_layers.HttpLayer):
    """The HTTP layer of one connection: creates Playhead's streams, and forgets upstream connections that have ended."""

    def __init__(self, context: Context, mode: HTTPMode, connection: MitmConnection) -> None:
        super().__init__(context, mode)
        self.connection = connection

    def make_stream(self, stream_id: int) -> CommandGenerator[None]:
        """Create the stream of a request."""
        kind = RelayStream if self.connection.engine.answerer is None else ReplayStream
        stream = kind(self.context.fork(), stream_id, self.connection)
        self.streams[stream_id] = stream
        yield from self.event_to_child(stream, events.Start())

    def get_connection(self, event: http_layers.GetHttpConnection, *, reuse: bool = True) -> CommandGenerator[None]:
        """Find or open an upstream connection. A failure is not remembered, so the next request tries again."""
        self.context.server.error = None
        for connection in [c for c in self.connections if isinstance(c, Server) and self._is_over(c)]:
            del self.connections[connection]
        if isinstance(event, FreshHttpConnection):
            event.retiring = {server for server, below in self.connections.items() if _is_retiring(below)}
        client = self.context.client
        by_prior_knowledge = client.alpn == b"h2" and not client.tls and not event.tls
        for command in super().get_connection(event, reuse=reuse):
            if by_prior_knowledge and isinstance(command, commands.OpenConnection):
                # gRPC without TLS: its server supports only HTTP/2, and there is no handshake that says so.
                command.connection.alpn = b"h2"
            yield command

    def _is_over(self, server: Server) -> bool:
        if server.connected or server in self.waiting_for_establishment:
            return False
        return not any(stream.context.server is server for stream in self.streams.values())

    def register_connection(self, command: http_layers.RegisterHttpConnection) -> CommandGenerator[None]:
        """Restore the Problem of a failed connection, of which mitmproxy's layers pass on only the text."""
        if command.err and isinstance(command.connection.error, UpstreamFault):
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


def _is_retiring(layer: Layer) -> bool:
    """Return whether a connection's layers end in HTTP/2 that takes no new streams."""
    while isinstance(child := getattr(layer, "child_layer", None), Layer):
        layer = child
    return isinstance(layer, http2.Http2UpstreamSide) and layer.is_retiring


class LayerChooser:
    """Chooses the layers of an engine's connections, and answers mitmproxy's hooks."""

    def __init__(self, engine: EngineState) -> None:
        self.engine = engine

    def outermost_layer(self, context: Context) -> Layer:
        """Return the first layer of a new connection, by the kind of proxy."""
        if self.engine.reverse is not None:
            return modes.ReverseProxy(context)
        if self.engine.proxy is not None:
            return modes.HttpUpstreamProxy(context)
        return modes.HttpProxy(context)

    def resumed_layer(self, connection: MitmConnection, tunnel: OpenedTunnel) -> Layer:
        """Return the first layer of a connection that the other engine handed over."""
        context = Context(connection.client, self.engine.options)  # type: ignore[arg-type]  # a cheaper class than mitmproxy's
        context.server.address = (tunnel.captured.host if tunnel.captured else tunnel.host, tunnel.port)
        if self.engine.proxy is not None:
            above = self.engine.proxy
            context.server.via = (above.scheme, (above.host, above.port))  # type: ignore[assignment]  # mitmproxy's type is a literal
        if not tunnel.is_http:
            return NextLayer(context)
        if tunnel.is_tls:
            context.server.tls = connection.client.tls = True
            connection.client.sni, connection.client.alpn = tunnel.server_name, b"http/1.1"
        return Http(context, HTTPMode.transparent, connection)

    def answer_hook(self, connection: MitmConnection, hook: commands.StartHook) -> None:
        """Answer a hook."""
        match hook:
            case NextLayerHook(data=next_layer):
                if next_layer.layer is None:
                    next_layer.layer = self._next_layer(connection, next_layer)
            case HttpConnectHook(flow=flow):
                self._admit_connect(connection, flow)
            case HttpConnectUpstreamHook(flow=flow):
                self._add_proxy_authorization(flow)
            case TlsClienthelloHook(data=hello):
                if connection.captured is not None and hello.client_hello.sni:
                    connection.tunnel_host = hello.client_hello.sni.lower()
                    hello.context.server.sni = connection.tunnel_host
                hello.establish_server_tls_first = self._must_ask_upstream_first(connection, hello)
            case TlsStartClientHook(data=start):
                self._start_client_tls(connection, start)
            case TlsStartServerHook(data=start):
                self._start_upstream_tls(start)
            case TlsEstablishedServerHook(data=done):
                self._remember_alpn(done)
            case TlsFailedServerHook(data=failed):
                _set_tls_error(failed)
            case TlsFailedClientHook(data=failed):
                if connection.tunnel_host is not None:
                    self.engine.failed_handshakes.report(
                        failed.conn.error,
                        connection.tunnel_host,
                        connection.credentials,
                        lambda: connection.owner,
                        connection.captured,
                    )

    def _next_layer(self, connection: MitmConnection, undecided: NextLayer) -> Layer | None:
        context, data = undecided.context, undecided.data_client()  # type: ignore[no-untyped-call]
        if connection.tunnel_host is None and len(context.layers) == 1:
            return self._first_layer(connection, context, data)
        if connection.tunnel_host is not None and self.engine.is_tunnelled(connection.tunnel_host):
            return OpaqueTunnel(
                context, connection, f"{connection.tunnel_host} is on the tunnel list and was forwarded undecrypted"
            )
        if not context.client.tls and len(data) < 3:
            return None
        if starts_like_tls_record(data) and not context.client.tls:
            return _stack_layers(ServerTLSLayer(context), ClientTls(context))
        if data.startswith(PREFACE) and not context.client.tls:
            context.client.alpn = b"h2"
        if context.client.alpn in tls.HTTP_ALPNS or _is_like_http(data):
            return Http(context, HTTPMode.transparent, connection)
        tls_reason = "the protocol within TLS is not HTTP"
        reason = f"a connection to {connection.tunnel_host} uses a protocol that is neither TLS nor HTTP"
        return OpaqueTunnel(context, connection, reason if connection.captured is None else tls_reason)

    def _first_layer(self, connection: MitmConnection, context: Context, data: bytes) -> Layer | None:
        if len(data) < 3:
            return None
        mode = HTTPMode.regular
        layers: list[Layer] = []
        if self.engine.reverse is not None:
            mode = HTTPMode.transparent
            if data.startswith(PREFACE):
                context.client.alpn = b"h2"
            elif PREFACE.startswith(data):
                return None
            if self.engine.reverse.scheme == "https":
                layers.append(ServerTLSLayer(context))
        elif self.engine.proxy is not None:
            mode = HTTPMode.upstream
        if starts_like_tls_record(data):
            layers.append(ClientTls(context))
        return _stack_layers(*layers, Http(context, mode, connection))

    def _admit_connect(self, connection: MitmConnection, flow: http.HTTPFlow) -> None:
        try:
            credentials = parse_credentials(flow.request.headers.get("proxy-authorization", ""))
            check_head(flow.request)
            authorize(credentials, self.engine.config.access)
            if credentials and credentials[0]:
                # An undecrypted connection is recorded as a gap of the run.
                access = self.engine.config.access
                require_write_access(access.full_run_name(credentials[0], credentials), credentials, access)
            self._require_connectable(flow.request.host, flow.request.port)
        except Problem as problem:
            self.engine.config.counts[f"errors/{problem.code}"] += 1
            flow.response = problem_response(problem)
            flow.response.headers["Connection"] = "close"
            return
        connection.credentials, connection.tunnel_host = credentials, flow.request.host.lower()

    def _require_connectable(self, host: str, port: int) -> None:
        target = origin_in_tunnel(host, port, None, is_tls=True)
        if self.engine.is_offline and self.engine.is_tunnelled(host):
            raise Problem(
                403,
                "tunnel_in_replay",
                f"{host} is on the tunnel list, so its requests cannot be answered from a recording",
            )
        # A request that is answered from a recording may name any destination.
        if self.engine.answerer is None and (problem := self.engine.refusal(target)):
            raise problem

    def _add_proxy_authorization(self, flow: http.HTTPFlow) -> None:
        if value := self.engine.proxy_authorization:
            flow.request.headers["Proxy-Authorization"] = value

    def _must_ask_upstream_first(self, connection: MitmConnection, hello: ClientHelloData) -> bool:
        """Return whether to connect to the upstream before the client's handshake, to learn its protocol."""
        context, offered = hello.context, hello.client_hello.alpn_protocols
        host = connection.tunnel_host
        if host is None or b"h2" not in offered or self.engine.answerer is not None or context.server.address is None:
            return False
        target = origin_in_tunnel(host, context.server.address[1], hello.client_hello.sni, is_tls=True)
        if self.engine.is_overridden(target) or self.engine.protocol_for_client(target) is not None:
            return False
        return hello.client_hello.sni in (None, target.host)

    def _start_client_tls(self, connection: MitmConnection, start: TlsData) -> None:
        context = start.context
        host = connection.tunnel_host or str(context.client.sockname[0])
        server = context.server
        if server.tls_established:
            alpn: bytes | None = server.alpn or b""
        elif connection.tunnel_host is None:
            # The client uses TLS to the proxy itself, which does not support CONNECT within HTTP/2.
            alpn = b"http/1.1"
        else:
            assert server.address is not None
            alpn = self.engine.protocol_for_client(
                origin_in_tunnel(host, server.address[1], context.client.sni, is_tls=True)
            )
        leaf = self.engine.config.authority.leaf((context.client.sni or host).lower())
        start.ssl_conn = tls.client_side_tls(leaf, alpn)

    def _start_upstream_tls(self, start: TlsData) -> None:
        server, client = start.conn, start.context.client
        assert isinstance(server, Server)
        assert server.address is not None
        server.sni = server.sni or server.address[0]
        server.alpn_offers = tuple(server.alpn_offers or _upstream_alpn_offers(client))
        start.ssl_conn = tls.upstream_side_tls(server.sni, tuple(server.alpn_offers), self.engine.trust)

    def _remember_alpn(self, done: TlsData) -> None:
        server = done.conn
        if isinstance(server, Server) and server.address is not None and b"h2" in server.alpn_offers:
            self.engine.remember_alpn(*server.address[:2], server.alpn or b"")


def _set_tls_error(data: TlsData) -> None:
    server = data.conn
    name = server.sni or "the upstream"
    if data.ssl_conn is not None and (why := tls.certificate_error(data.ssl_conn)):
        detail = f"the certificate of {name} is not valid: {why}; set upstream_ca to trust a private CA"
        server.error = UpstreamFault(Problem(502, "tls_certificate_error", detail))
    else:
        server.error = UpstreamFault(
            Problem(502, "tls_failed", f"the TLS handshake with {name} failed: {server.error}")
        )


def _upstream_alpn_offers(client: Client) -> tuple[bytes, ...]:
    """Return the ALPN protocols to offer to an upstream: the client's protocol or, before its handshake ends, its offers."""
    if client.alpn == b"h2":
        return (b"h2", b"http/1.1")
    if client.alpn or not client.tls:
        return (b"http/1.1",)
    return tuple(alpn for alpn in client.alpn_offers if alpn in tls.HTTP_ALPNS) if not client.tls_established else ()


def problem_response(problem: Problem) -> http.Response:
    """Return a problem as a response of mitmproxy."""
    fields = [(name.encode(), value.encode()) for name, value in problem.headers]
    reason = problem.reason.encode()
    return http.Response(b"HTTP/1.1", problem.status, reason, http.Headers(fields), problem.body, None, 0.0, 0.0)


def _stack_layers(*layers: Layer) -> Layer:
    stack = tunnel.LayerStack()
    for one in layers:
        stack /= one
    return stack[0]


def _is_like_http(data: bytes) -> bool:
    """Return whether data begins like an HTTP request, as mitmproxy guesses it: letters, then a space."""
    word, space, _ = data[:32].partition(b" ")
    return word.isalpha() and (bool(space) or len(data) < 32)
