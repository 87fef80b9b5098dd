"""Nothing leaves this machine from this process while the guard stands, but to hosts that are allowed.

The proxy sees what comes to it. What does not come to it is seen here: a connection that Python opens to anything but
loopback is refused, with the reasons for which a client passes the proxy by.
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
    """A connection was refused: it would have left this machine."""


class Guard:
    """Installed once; stands only while it is told to."""

    def __init__(self) -> None:
        self.blocked: list[str] = []
        """What was refused since it was armed."""

        self._why: str | None = None
        self._early = False
        self._allowed: Sequence[str] = ()
        self._addresses: set[str] = set()
        self._installed = False

    def arm(self, why: str, allowed: Iterable[str], *, early: bool) -> None:
        """Refuse from now on. `early`: the proxy was set before anything of the suite was imported."""
        self._install()
        self._why, self._early, self._allowed = why, early, tuple(allowed)
        self._addresses.clear()
        self.blocked = []

    def disarm(self) -> None:
        """Let everything pass again."""
        self._why = None

    def remove(self) -> None:
        """Take it out of `socket`, which is then as it was."""
        self.disarm()
        if self._installed:
            self._installed = False
            socket.getaddrinfo = self._getaddrinfo
            for name, own in self._own.items():
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
        self._own = {name: socket.socket.__dict__.get(name) for name in _CONNECTS}

        def connecting(name: str) -> Any:
            def connect(own: socket.socket, address: Any) -> Any:
                guard._check(own.family, address)
                return real[name](own, address)

            return connect

        def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
            if guard._why is None:
                return lookup(host, *rest, **more)
            name = _text(host)
            if not guard._may_look_up(name):
                guard._refuse(name, rest[0] if rest else more.get("port"))
            found = lookup(host, *rest, **more)
            if guard._allows(name):
                guard._addresses.update(str(one[4][0]) for one in found)
            return found

        for name in _CONNECTS:
            setattr(socket.socket, name, connecting(name))
        socket.getaddrinfo = getaddrinfo

    def _check(self, family: int, address: Any) -> None:
        if self._why is None or family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
            return
        host, port = _text(address[0]), address[1] if len(address) > 1 else None
        if not (_is_here(host) or self._allows(host) or host in self._addresses):
            self._refuse(host, port)

    def _may_look_up(self, name: str) -> bool:
        # An address is judged when it is connected to; our own name leads to it.
        return _is_here(name) or self._allows(name) or _is_address(name) or name == socket.gethostname().lower()

    def _allows(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern.lower()) for pattern in self._allowed)

    def _refuse(self, host: str, port: Any) -> None:
        where = host if port in (None, 0, "") else f"{host}:{port}"
        words = f"a connection to {where} was refused: {self._why}. {self._cause()}"
        if words not in self.blocked:
            self.blocked.append(words)
        raise NetworkBlocked(words)

    def _cause(self) -> str:
        causes = [] if self._early else ["was made before the proxy was set (set playhead = true in pytest's ini file)"]
        causes.append("does not obey HTTPS_PROXY (aiohttp without trust_env=True, httpx with trust_env=False)")
        excepted = os.environ.get("NO_PROXY", "").replace("localhost,127.0.0.1,::1", "").strip(",")
        if excepted:
            causes.append(f"is told to pass it by (NO_PROXY has {excepted})")
        return f"It did not come through the proxy: its client {', or '.join(causes)}. --allowed-hosts lets a host pass"


_CONNECTS = ("connect", "connect_ex")


def _text(host: Any) -> str:
    if isinstance(host, (bytes, bytearray)):
        host = bytes(host).decode("ascii", "replace")
    return str(host or "").lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_here(name: str) -> bool:
    """Whether this never leaves the machine."""
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    if not _is_address(name):
        return False
    address = ipaddress.ip_address(name.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or address.is_unspecified
