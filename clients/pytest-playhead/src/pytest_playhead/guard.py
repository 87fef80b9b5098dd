"""Refuse connections of this process that bypass the proxy, except to allowed hosts.

The guard patches `socket`: a connection that Python opens to anything but loopback is refused, with the likely reasons why
the client did not use the proxy.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class NetworkBlocked(RuntimeError):
    """A connection was refused because it would have left this machine."""


class NetworkGuard:
    """The patch of `socket`. It is installed once, and refuses connections only while it is armed."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        """Messages of the connections refused since the guard was armed."""

        self._reason: str | None = None
        self._is_early = False
        self._allowed: Sequence[str] = ()
        self._addresses: set[str] = set()
        self._installed = False

    def arm(self, reason: str, allowed: Iterable[str], *, is_early: bool) -> None:
        """Refuse connections from now on. `is_early`: the proxy was set before the suite was imported."""
        self._install()
        self._reason, self._is_early, self._allowed = reason, is_early, tuple(allowed)
        self._addresses.clear()
        self.refusals = []

    def disarm(self) -> None:
        """Allow all connections again."""
        self._reason = None

    def remove(self) -> None:
        """Restore `socket`."""
        self.disarm()
        if self._installed:
            self._installed = False
            socket.getaddrinfo = self._getaddrinfo
            for name, own in self._own_methods.items():
                if own is None:
                    delattr(socket.socket, name)
                else:
                    setattr(socket.socket, name, own)

    def _install(self) -> None:
        if self._installed:
            return
        self._installed = True
        guard, real, lookup = self, {name: getattr(socket.socket, name) for name in _CONNECTS}, socket.getaddrinfo
        self._getaddrinfo = lookup
        self._own_methods = {name: socket.socket.__dict__.get(name) for name in _CONNECTS}

        def guard_method(name: str) -> Any:
            def connect(own: socket.socket, address: Any) -> Any:
                guard._check_address(own.family, address)
                return real[name](own, address)

            return connect

        def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
            if guard._reason is None:
                return lookup(host, *rest, **options)
            name = _host_text(host)
            if not guard._can_look_up(name):
                guard._refuse(name, rest[0] if rest else options.get("port"))
            found = lookup(host, *rest, **options)
            if guard._is_allowed(name):
                guard._addresses.update(str(one[4][0]) for one in found)
            return found

        for name in _CONNECTS:
            setattr(socket.socket, name, guard_method(name))
        socket.getaddrinfo = getaddrinfo

    def _check_address(self, family: int, address: Any) -> None:
        if self._reason is None or family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
            return
        host, port = _host_text(address[0]), address[1] if len(address) > 1 else None
        if not (_is_local(host) or self._is_allowed(host) or host in self._addresses):
            self._refuse(host, port)

    def _can_look_up(self, name: str) -> bool:
        # Addresses are checked when they are connected to. The own host name resolves to this machine.
        return _is_local(name) or self._is_allowed(name) or _is_address(name) or name == socket.gethostname().lower()

    def _is_allowed(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern.lower()) for pattern in self._allowed)

    def _refuse(self, host: str, port: Any) -> None:
        where = host if port in (None, 0, "") else f"{host}:{port}"
        message = f"a connection to {where} was refused: {self._reason}. {self._likely_causes()}"
        if message not in self.refusals:
            self.refusals.append(message)
        raise NetworkBlocked(message)

    def _likely_causes(self) -> str:
        causes = (
            [] if self._is_early else ["was made before the proxy was set (set playhead = true in pytest's ini file)"]
        )
        causes.append("does not obey HTTPS_PROXY (aiohttp without trust_env=True, httpx with trust_env=False)")
        excepted = os.environ.get("NO_PROXY", "").replace("localhost,127.0.0.1,::1", "").strip(",")
        if excepted:
            causes.append(f"is configured to bypass it (NO_PROXY has {excepted})")
        return f"It did not use the proxy: its client {', or '.join(causes)}. To allow a host: --allowed-hosts"


_CONNECTS = ("connect", "connect_ex")


def _host_text(host: Any) -> str:
    if isinstance(host, (bytes, bytearray)):
        host = bytes(host).decode("ascii", "replace")
    return str(host or "").lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_local(name: str) -> bool:
    """Whether a connection to this name or address stays on this machine."""
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    if not _is_address(name):
        return False
    address = ipaddress.ip_address(name.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or address.is_unspecified
