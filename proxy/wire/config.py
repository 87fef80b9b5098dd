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

from proxy.errors import Failure
from proxy.trust.ca import CertificateAuthority
from proxy.wire.access import EVERYBODY, Access

type Mode = Literal["record", "replay", "auto", "passthrough"]

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom to contact: a scheme, a host and a port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Origin":
        """From `https://host` or `http://host:port`. Raises Failure on anything else."""
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or port == -1:
            raise Failure(f"{text!r} is not an origin; write it as https://host or http://host:port")
        return cls(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme])

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL and in a Host header: without the scheme's own port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a worker stops waiting or buffering. Sizes are bytes, times are seconds."""

    buffered_request: int = 1 << 20
    """A longer request, or one of unknown length, passes piece by piece."""

    answered_request: int = 256 << 20
    """An answerer sees requests whole; a longer one is refused."""

    connect: float = 30.0
    idle: float = 600.0
    """How long a client may keep a connection on which nothing is under way."""

    head: float = 30.0
    """How long a client may take for the head of a request, or for a handshake."""

    silence: float | None = None
    """How long an upstream may say nothing while it is asked. None: as long as the client waits."""

    grace: float = 3.0
    """How long a stopping worker lets requests in flight end."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything that a worker is told. Checked when it is made; raises Failure."""

    authority: CertificateAuthority
    mode: Mode = "record"
    host: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    reverse: str | None = None
    """Serve this one origin instead of being a forward proxy."""

    upstreams: Mapping[str, str] = field(default_factory=dict)
    """Contact an origin (value) in place of a host, of a host:port, or of all below `*.example.com` (key)."""

    modes: Mapping[str, Mode] = field(default_factory=dict)
    """The mode for a host, or for `*.example.com` (all below it), in place of `mode`."""

    run_mode: Callable[[str], Mode | None] = lambda _run: None
    """The mode that a run was given, by its name."""

    is_only_run: Callable[[str], bool] = lambda _run: False
    """Whether a run is a fork or a replay: what its credentials are given to belongs to it, whatever runs the program names."""

    tunnel: tuple[str, ...] = ()
    """Hosts that pass undecrypted; `*.example.com` means all below it."""

    upstream_proxy: str | None = None
    """The proxy above us, e.g. `http://user:secret@proxy.corp:3128`."""

    upstream_ca: str | None = None
    """A PEM file with private CAs that upstreams may use, beside the system's."""

    access: Access = EVERYBODY
    """What clients may do."""

    own_addresses: tuple[tuple[str, int], ...] = ()
    """Where our own API listens: never reached through the worker."""

    connect_ports: tuple[int, ...] = (80, 443)
    allow_private: bool = False
    """Let agents reach loopback, private and link-local addresses."""

    owner: str = "local"
    """Begins the name of a run that nobody named: one per process start and owner of a connection."""

    limits: Limits = Limits()
    counts: Counter[str] = field(default_factory=Counter)
    """What becomes of connections and requests is counted here (store/worker_counters.py has the names)."""

    control: Path | None = None
    """The unix socket on which launchers send the sockets of captured commands."""

    transparent: int | None = None
    """The port at which redirected connections arrive."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it, and the worker lets requests in flight end and returns."""

    def __post_init__(self) -> None:
        if not loopback(self.host) and not self.access.tokens:
            raise Failure(f"listening on {self.host} lets other machines in: set a token (PLAYHEAD_TOKEN) first")
        for origin in (*self.upstreams.values(), *filter(None, [self.reverse])):
            Origin.parse(origin)

    @property
    def contacts_nobody(self) -> bool:
        """Whether no upstream is ever contacted."""
        return self.mode == "replay"

    @property
    def notes_passed_connections(self) -> bool:
        """Whether a captured connection that passes as it is becomes a gap of its run."""
        return True

    def lets_pass(self, host: str, *, is_local: bool) -> bool:  # noqa: ARG002 - for those who decide by it
        """Whether captured connections to a host, or to a service of this machine, pass as they are in every mode."""
        return False

    def mode_of(self, host: str, run: str | None = None) -> Mode:
        """What is done with what a run asks this host: what was said of the host, else of the run, else of all.

        `run` is as our own credentials or header name it: what agents tell others could be forged to go unrecorded.
        """
        own = self.own_mode(host) if self.modes else None
        return own or (self.run_mode(run) if run else None) or self.mode

    def own_mode(self, host: str) -> Mode | None:
        """The mode that was given to this host, by its name or to all below a name."""
        return value_for_host(host.lower(), self.modes)


def value_for_host[T](host: str, told: Mapping[str, T]) -> T | None:
    """What is told of a host, by its name or by the nearest `*.example.com` that it is below."""
    above = (f"*.{host.split('.', cut)[-1]}" for cut in range(1, host.count(".") + 1))
    return next((told[name] for name in (host, *above) if name in told), None)


def loopback(host: str) -> bool:
    """Whether only this machine reaches a listening address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Wired(Protocol):
    """A transport or a stream's writer."""

    def get_extra_info(self, name: str) -> Any: ...


# Linux only, and only for the moment (tcp(7)): so it is asked for again whenever half a request has come.
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def acknowledge(wired: _Wired) -> None:
    """Tell the client's kernel now what has come of a request.

    urllib3 leaves Nagle's algorithm on where it goes through a proxy, and sends head and body apart: its body would wait
    for our delayed acknowledgement, 40 ms of every call.
    """
    connection = wired.get_extra_info("socket")
    if _QUICKACK is not None and connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
