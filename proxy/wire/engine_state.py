"""The state that all connections of a worker share: configuration, recorder or answerer, reachable upstreams."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from proxy.capture.connections.destination import CapturedDestination
from proxy.capture.owner import Owners
from proxy.errors import Failure
from proxy.trust.ca import roots_file
from proxy.wire.config import EngineConfig, Origin, value_for_host
from proxy.wire.destinations import Destinations
from proxy.wire.engine import Answerer
from proxy.wire.memory_budget import MemoryBudget
from proxy.wire.problem import Problem
from proxy.wire.recording_guard import RecorderInterface

ALPN_KEPT = 4096
TARGETS_KEPT = 1024
"""Of so many it is known whether they may be asked: to see that a name is no address takes longer than all else about it."""


class Options:
    """The options that mitmproxy's layers look at. Theirs are checked at every access, which costs 5 % of a request."""

    connection_strategy: ClassVar = "lazy"
    """Never contact an upstream before there is a request for it."""

    http2_ping_keepalive: ClassVar = 58
    http_connect_send_host_header: ClassVar = True
    keep_host_header: ClassVar = True
    """The Host header is our business (`admission`)."""

    normalize_outbound_headers: ClassVar = True
    proxy_debug: ClassVar = False
    rawtcp: ClassVar = True
    store_streamed_bodies: ClassVar = False
    tcp_timeout: int
    validate_inbound_headers: ClassVar = True
    websocket: ClassVar = False
    """We relay WebSockets ourselves (`upgraded`): mitmproxy keeps all their messages, and whole ones back."""

    def __init__(self, idle: float) -> None:
        self.tcp_timeout = idle  # type: ignore[assignment]  # seconds; a float does as well


@dataclass(kw_only=True)
class EngineState:
    """What the connections of one running worker share, in either engine."""

    config: EngineConfig
    recorder: RecorderInterface | None
    answerer: Answerer | None
    trust: Path
    """PEM file with all roots that upstreams may use."""

    options: Options = field(init=False)
    upstreams: Mapping[str, Origin] = field(init=False)
    reverse: Origin | None = field(init=False)
    proxy: Origin | None = field(init=False)
    """The proxy above us."""

    authorization_above: str | None = field(init=False, default=None)
    """What it wants to see."""

    make_room: Callable[[], None] = lambda: None
    """Close idle upstream connections: there is no file left for another one."""

    destinations: Destinations = field(init=False)
    _refusal: Callable[[Origin], Problem | None] = field(init=False)
    owners: Owners = field(init=False)
    message_memory: MemoryBudget = field(init=False, default_factory=MemoryBudget)
    """For the WebSocket messages that are coming, on all connections."""

    alpn: dict[tuple[str, int], bytes] = field(init=False, default_factory=dict)
    """What upstreams chose; b"" for none. So a client of ours gets the protocol that it would get from them."""

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
                self.authorization_above = f"Basic {base64.b64encode(credentials).decode()}"
        self.owners = Owners(config.owner)
        self.set_listening_address(config.host, config.port)

    def set_listening_address(self, host: str, port: int) -> None:
        """Fix the rules about whom clients may reach, now that we know where we listen ourselves."""
        self.owners.port = port
        exempt = {(origin.host, origin.port) for origin in self.upstreams.values()}
        if self.reverse:
            exempt.add((self.reverse.host, self.reverse.port))
        self.destinations = Destinations(
            ports=frozenset(self.config.connect_ports),
            private=self.config.allow_private,
            exempt=frozenset(exempt),
            own=(*self.config.own_addresses, (host, port)),
            timeout=self.config.limits.connect,
            make_room=lambda: self.make_room(),
        )
        self._refusal = lru_cache(TARGETS_KEPT)(self._new_refusal)

    @property
    def contacts_nobody(self) -> bool:
        """Whether no upstream is ever contacted."""
        return self.config.contacts_nobody

    def contact(self, target: Origin) -> Origin:
        """Who is contacted where this is asked."""
        by_port = self.upstreams.get(f"{target.host}:{target.port}")
        return by_port or value_for_host(target.host, self.upstreams) or target

    def is_overridden(self, target: Origin) -> bool:
        """Whether another origin stands in for this one."""
        return self.contact(target) is not target

    def has_upstream(self, host: str) -> bool:
        """Whether another origin stands in for this host, at some port or at all."""
        by_port = any(place.rpartition(":")[0] == host for place in self.upstreams)
        return by_port or value_for_host(host, self.upstreams) is not None

    def refusal(self, target: Origin, captured: CapturedDestination | None = None) -> Problem | None:
        """Why this target may not be asked, as far as its name and port tell. A captured connection goes where it went,
        whatever its requests name."""
        if captured is None or self.is_overridden(target):
            return self._refusal(target)
        return None if captured.is_local else self.destinations.by_name(captured.host, captured.port)

    def _new_refusal(self, target: Origin) -> Problem | None:
        contact = self.contact(target)
        return self.destinations.by_name(contact.host, contact.port)

    def is_tunnelled(self, host: str) -> bool:
        """Whether a host is on the list of those that pass undecrypted."""
        host = host.lower()
        return any(host == one or (one.startswith("*.") and host.endswith(one[1:])) for one in self.config.tunnel)

    def remember_alpn(self, host: str, port: int, alpn: bytes) -> None:
        """Note which protocol an upstream chose."""
        self.alpn.pop((host, port), None)
        self.alpn[host, port] = alpn
        if len(self.alpn) > ALPN_KEPT:
            del self.alpn[next(iter(self.alpn))]

    def forget_old(self) -> None:
        """Forget which upstreams chose anything but HTTP/2."""
        self.alpn = {place: alpn for place, alpn in self.alpn.items() if alpn == b"h2"}

    def protocol_for_client(self, target: Origin) -> bytes | None:
        """The protocol that the client of this target should get; None where nobody knows."""
        if self.answerer is not None and (recorded := self.answerer.recorded_protocols(target.authority)) is not None:
            return recorded[0].encode()
        contact = self.contact(target)
        if contact.scheme == "http":
            return b"http/1.1"
        return self.alpn.get((contact.host, contact.port))


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunTunnel:
    """A tunnel that another engine has begun."""

    host: str
    port: int
    given: tuple[str, str] | None
    """Run and token."""

    opened: bool
    """Whether what it carries is HTTP; else it is still to be found out."""

    secure: bool = False
    """Whether that came by TLS, which is the transport's."""

    name: str | None = None
    """What the client called the host in its handshake."""

    captured: CapturedDestination | None = None
    """Where a captured connection went."""


def write_trusted_roots(config: EngineConfig) -> Path:
    """A file with all roots that upstreams may use. Raises Failure where one of them cannot be read."""
    try:
        return roots_file(config.authority, [Path(config.upstream_ca)] if config.upstream_ca else [])
    except OSError as error:
        if config.upstream_ca is None:
            raise
        raise Failure(
            f"the private CA file {config.upstream_ca} cannot be read ({error.strerror}); correct upstream_ca"
        ) from error
