"""The state that all connections of a worker share: configuration, recorder or answerer, reachable upstreams."""

import base64
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import msgspec

from proxy.capture.connections.destination import CapturedDestination
from proxy.capture.connections.failed_handshakes import FailedHandshakes
from proxy.capture.owner import Owners
from proxy.errors import Failure
from proxy.trust.ca import write_roots_file
from proxy.wire.config import EngineConfig, Origin, value_for_host
from proxy.wire.destinations import Destinations
from proxy.wire.engine import Answerer
from proxy.wire.memory_budget import MemoryBudget
from proxy.wire.problem import Problem
from proxy.wire.recording_guard import RecorderInterface

ALPN_KEPT = 4096
REFUSALS_KEPT = 1024
"""Number of cached decisions on targets. Checking whether a name is an address is the most expensive part of a decision."""


class Options:
    """The options that mitmproxy's layers read. mitmproxy's own class validates every access, which costs 5 % of a request."""

    connection_strategy: ClassVar = "lazy"
    """Connect to an upstream only when there is a request for it."""

    http2_ping_keepalive: ClassVar = 58
    http_connect_send_host_header: ClassVar = True
    keep_host_header: ClassVar = True
    """`admission` checks and rewrites the Host header."""

    normalize_outbound_headers: ClassVar = True
    proxy_debug: ClassVar = False
    rawtcp: ClassVar = True
    store_streamed_bodies: ClassVar = False
    tcp_timeout: int
    validate_inbound_headers: ClassVar = True
    websocket: ClassVar = False
    """`upgraded_connection` relays WebSockets: mitmproxy delays each message until it is complete, and keeps all of them."""

    def __init__(self, idle: float) -> None:
        self.tcp_timeout = idle  # type: ignore[assignment]  # seconds; mitmproxy also accepts a float


@dataclass(kw_only=True)
class EngineState:
    """The state that the connections of one running worker share, in either engine."""

    config: EngineConfig
    recorder: RecorderInterface | None
    answerer: Answerer | None
    trust: Path
    """PEM file with all CA certificates that are trusted for upstreams."""

    options: Options = field(init=False)
    upstreams: Mapping[str, Origin] = field(init=False)
    reverse: Origin | None = field(init=False)
    proxy: Origin | None = field(init=False)
    """The proxy through which upstreams are reached."""

    proxy_authorization: str | None = field(init=False, default=None)
    """The Proxy-Authorization value for that proxy."""

    make_room: Callable[[], None] = lambda: None
    """Closes idle upstream connections when the process has no file left for another one."""

    destinations: Destinations = field(init=False)
    _refusal: Callable[[Origin], Problem | None] = field(init=False)
    owners: Owners = field(init=False)
    message_memory: MemoryBudget = field(init=False, default_factory=MemoryBudget)
    """Bounds the memory for incomplete WebSocket messages on all connections."""

    failed_handshakes: FailedHandshakes = field(init=False)

    alpn: dict[tuple[str, int], bytes] = field(init=False, default_factory=dict)
    """The ALPN protocol that each upstream chose, b"" for none, so that a client gets the one it would get without Playhead."""

    def __post_init__(self) -> None:
        config = self.config
        self.options = Options(config.limits.idle)
        self.upstreams = {host.lower(): Origin.parse(origin) for host, origin in config.upstreams.items()}
        self.reverse = Origin.parse(config.reverse) if config.reverse else None
        self.proxy = None
        if config.upstream_proxy:
            parts = urlsplit(config.upstream_proxy)
            self.proxy = Origin.parse(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
            if parts.username is not None:
                credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
                self.proxy_authorization = f"Basic {base64.b64encode(credentials).decode()}"
        self.owners = Owners(config.owner)
        self.failed_handshakes = FailedHandshakes(config, self.recorder)
        self.set_listening_address(config.host, config.port)

    def set_listening_address(self, host: str, port: int) -> None:
        """Build the destination rules, which need the worker's own address."""
        self.owners.port = port
        exempt = {(origin.host, origin.port) for origin in self.upstreams.values()}
        if self.reverse:
            exempt.add((self.reverse.host, self.reverse.port))
        self.destinations = Destinations(
            ports=frozenset(self.config.connect_ports),
            allow_private=self.config.allow_private,
            exempt_origins=frozenset(exempt),
            own_addresses=(*self.config.own_addresses, (host, port)),
            timeout=self.config.limits.connect,
            make_room=lambda: self.make_room(),
        )
        self._refusal = lru_cache(REFUSALS_KEPT)(self._name_refusal)

    @property
    def is_offline(self) -> bool:
        """True if no upstream is ever contacted."""
        return self.config.is_offline

    def contacted_origin(self, target: Origin) -> Origin:
        """Return the origin to contact for a target: its configured replacement, else the target itself."""
        by_port = self.upstreams.get(f"{target.host}:{target.port}")
        return by_port or value_for_host(target.host, self.upstreams) or target

    def is_overridden(self, target: Origin) -> bool:
        """Return whether another origin is configured in place of this one."""
        return self.contacted_origin(target) is not target

    def has_upstream(self, host: str) -> bool:
        """Return whether another origin is configured in place of this host, on any port."""
        by_port = any(place.rpartition(":")[0] == host for place in self.upstreams)
        return by_port or value_for_host(host, self.upstreams) is not None

    def refusal(self, target: Origin, captured: CapturedDestination | None = None) -> Problem | None:
        """Return why a target is refused by its name and port, or None. For a captured connection its original destination is
        checked, whatever its requests name."""
        if captured is None or self.is_overridden(target):
            return self._refusal(target)
        return None if captured.is_local else self.destinations.name_refusal(captured.host, captured.port)

    def _name_refusal(self, target: Origin) -> Problem | None:
        contact = self.contacted_origin(target)
        return self.destinations.name_refusal(contact.host, contact.port)

    def is_tunnelled(self, host: str) -> bool:
        """Return whether connections to a host are forwarded undecrypted."""
        host = host.lower()
        return any(host == one or (one.startswith("*.") and host.endswith(one[1:])) for one in self.config.tunnel)

    def remember_alpn(self, host: str, port: int, alpn: bytes) -> None:
        """Remember the ALPN protocol that an upstream chose."""
        self.alpn.pop((host, port), None)
        self.alpn[host, port] = alpn
        if len(self.alpn) > ALPN_KEPT:
            del self.alpn[next(iter(self.alpn))]

    def forget_http1_upstreams(self) -> None:
        """Forget upstreams that did not choose HTTP/2, so that they are asked again."""
        self.alpn = {place: alpn for place, alpn in self.alpn.items() if alpn == b"h2"}

    def protocol_for_client(self, target: Origin) -> bytes | None:
        """Return the ALPN protocol to offer to a client of this target, b"" for none, or None if it is unknown."""
        if self.answerer is not None and (recorded := self.answerer.recorded_protocols(target.authority)) is not None:
            return recorded[0].encode()
        contact = self.contacted_origin(target)
        if contact.scheme == "http":
            return b"http/1.1"
        return self.alpn.get((contact.host, contact.port))


class OpenedTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """A tunnel that the other engine opened and hands over."""

    host: str
    port: int
    credentials: tuple[str, str] | None

    is_http: bool
    """Whether it is known to carry HTTP. Otherwise its protocol must still be detected."""

    is_tls: bool = False
    """Whether it is TLS, which the transport has already terminated."""

    server_name: str | None = None
    """The server name in the client's TLS handshake."""

    captured: CapturedDestination | None = None
    """The original destination of a captured connection."""


def write_trusted_roots(config: EngineConfig) -> Path:
    """Write all CA certificates that are trusted for upstreams to one file. Raises Failure if one cannot be read."""
    try:
        roots = write_roots_file(config.authority, [Path(config.upstream_ca)] if config.upstream_ca else [])
        if config.upstream_ca:
            # All roots are read when the first upstream needs them; a mistake in this file is reported now.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(config.upstream_ca)
        return roots
    except OSError as error:
        if config.upstream_ca is None:
            raise
        raise Failure(
            f"the private CA file {config.upstream_ca} cannot be read ({error.strerror}); correct upstream_ca"
        ) from error
