"""The configuration of a wire engine."""

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from proxy.errors import Failure
from proxy.trust.ca import CertificateAuthority
from proxy.wire.access import OPEN_ACCESS, Access

type Mode = Literal["record", "replay", "auto", "passthrough"]

DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(msgspec.Struct, frozen=True):
    """A scheme, a host and a port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Origin":
        """Parse `https://host` or `http://host:port`. Raises Failure on anything else."""
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or port == -1:
            raise Failure(f"invalid origin {text!r}: use https://host or http://host:port")
        return cls(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme])

    @property
    def authority(self) -> str:
        """Host and port as written in a URL or a Host header, without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a worker. Sizes are in bytes, times in seconds."""

    buffered_request: int = 1 << 20
    """Maximum request body that is buffered. A longer one, or one of unknown length, is forwarded piece by piece."""

    answered_request: int = 256 << 20
    """Maximum request body that is passed to the answerer, which needs it complete. A longer one is refused."""

    connect: float = 30.0
    idle: float = 600.0
    """How long a client may keep an idle connection."""

    head: float = 30.0
    """How long a client may take to send the head of a request, or to finish a handshake."""

    silence: float | None = None
    """How long an upstream may send nothing during a request. None: as long as the client waits."""

    grace: float = 3.0
    """How long a stopping worker waits for requests in flight."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of a wire engine. The constructor validates it and raises Failure."""

    authority: CertificateAuthority
    mode: Mode = "record"
    host: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    reverse: str | None = None
    """The one origin to serve as a reverse proxy. None for a forward proxy."""

    upstreams: Mapping[str, str] = field(default_factory=dict)
    """The origin (value) to contact in place of a host, a host:port, or every host below `*.example.com` (key)."""

    modes: Mapping[str, Mode] = field(default_factory=dict)
    """The mode for a host, or for every host below `*.example.com`, in place of `mode`."""

    run_mode: Callable[[str], Mode | None] = lambda _run: None
    """Returns the mode that was set for a run."""

    is_only_run: Callable[[str], bool] = lambda _run: False
    """Returns whether a run is a fork or a replay. A request with the credentials of such a run belongs to it, whatever runs
    the program names."""

    tunnel: tuple[str, ...] = ()
    """Hosts whose connections are forwarded undecrypted. `*.example.com` means every host below it."""

    upstream_proxy: str | None = None
    """The proxy through which upstreams are reached, e.g. `http://user:secret@proxy.corp:3128`."""

    upstream_ca: str | None = None
    """A PEM file with private CAs to trust for upstreams, in addition to the system's."""

    access: Access = OPEN_ACCESS

    own_addresses: tuple[tuple[str, int], ...] = ()
    """The addresses of Playhead's own API, which is never reachable through the worker."""

    connect_ports: tuple[int, ...] = (80, 443)
    allow_private: bool = False
    """Whether agents may reach loopback, private and link-local addresses."""

    owner: str = "local"
    """Prefix of the name of a run that the client does not name. There is one per start of a client process."""

    limits: Limits = field(default_factory=Limits)
    counts: Counter[str] = field(default_factory=Counter)
    """Counters of connections and requests by outcome (names: store/worker_counters.py)."""

    control: Path | None = None
    """The Unix socket on which launchers send the sockets of captured commands."""

    transparent: int | None = None
    """The port at which redirected connections arrive."""

    prepared: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once what requests need is imported and compiled."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to stop the worker, which first waits for requests in flight."""

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.access.tokens:
            raise Failure(f"listening on {self.host} admits other machines without a token: set PLAYHEAD_TOKEN first")
        for origin in (*self.upstreams.values(), *filter(None, [self.reverse])):
            Origin.parse(origin)

    @property
    def is_offline(self) -> bool:
        """True if no upstream is ever contacted."""
        return self.mode == "replay"

    @property
    def has_bypass_gaps(self) -> bool:
        """True if a captured connection that bypasses the engine is recorded as a gap of its run."""
        return True

    def can_bypass(self, host: str, *, is_local: bool) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether captured connections to a host, or to a service of this machine, bypass the engine in every mode."""
        return False

    def mode_for(self, host: str, run: str | None = None) -> Mode:
        """Return the mode for requests of a run to a host: the host's mode, else the run's, else the default.

        `run` must come from Playhead's own credentials or header. Identifiers that agents send to other services could be
        forged to avoid recording.
        """
        own = self.own_mode(host) if self.modes else None
        return own or (self.run_mode(run) if run else None) or self.mode

    def own_mode(self, host: str) -> Mode | None:
        """Return the mode configured for this host by its name or by a wildcard."""
        return value_for_host(host.lower(), self.modes)


def value_for_host[T](host: str, values: Mapping[str, T]) -> T | None:
    """Return the value for a host: by its exact name, else by the most specific matching `*.example.com`."""
    above = (f"*.{host.split('.', cut)[-1]}" for cut in range(1, host.count(".") + 1))
    return next((values[name] for name in (host, *above) if name in values), None)


def is_loopback(host: str) -> bool:
    """Return whether a listening address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _SocketOwner(Protocol):
    """A transport or a stream writer."""

    def get_extra_info(self, name: str) -> Any: ...


# Linux only, and not permanent (tcp(7)): it is set again whenever part of a request has arrived.
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def acknowledge_now(transport: _SocketOwner) -> None:
    """Acknowledge received TCP data immediately.

    urllib3 leaves Nagle's algorithm on when it uses a proxy, and sends head and body separately: the body would wait for
    the delayed acknowledgement, 40 ms on every call.
    """
    connection = transport.get_extra_info("socket")
    if _QUICKACK is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
