"""Decide which upstreams may be reached, by the resolved address that is used, and connect to them.

A name is resolved once, here; what it resolves to is judged, and the connection goes to exactly that address. So a name
that changes its mind (DNS rebinding) or an address in disguise (`0xA9FEA9FE`, `::ffff:127.0.0.1`) gains nothing.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from proxy.wire.listener import SHORTAGES, WAIT, is_short_of_files
from proxy.wire.problem import Problem
from proxy.wire.recent_connections import RecentConnections

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address
type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

FILES_OF_LOOKUPS = 16
"""Files that the lookups of names may take at once, which run on a few threads."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destinations:
    """The rules of one worker."""

    ports: frozenset[int]
    private: bool
    """Whether loopback, private and link-local addresses are allowed."""

    exempt: frozenset[tuple[str, int]]
    """Configured upstreams: they may be anywhere but where we listen ourselves."""

    own: tuple[tuple[str, int], ...]
    """Where we listen."""

    timeout: float
    make_room: Callable[[], None] = lambda: None
    """Close what is idle: there is no file left for another connection."""
    recent: RecentConnections = field(default_factory=RecentConnections)
    """The connections that were made to upstreams a moment ago."""

    def by_name(self, host: str, port: int) -> Problem | None:
        """Why this may not be asked for at all; what only its address can tell comes later."""
        if (host, port) in self.exempt:
            return None
        if port not in self.ports:
            return _prohibited(host, f"port {port} is not one of connect_ports")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return None
        return self.by_address(host, address, port)

    def by_address(self, host: str, address: Address, port: int, *, local: bool = False) -> Problem | None:
        """Why this address may not be connected to; `local`: for a command of the user's own, which may reach private ones."""
        if self.is_own(address, port):
            return _prohibited(host, "this is the proxy's own address")
        if local or self.private or (host, port) in self.exempt or _public(address):
            return None
        return _prohibited(host, f"{address} is not a public address; see [upstreams] and allow_private")

    def is_own(self, address: Address, port: int) -> bool:
        """Whether we listen there ourselves."""
        return any(port == ours for _, ours in self.own) and is_of_this_machine(_unmapped(address))

    async def connect(self, host: str, port: int, *, checked: bool = True, local: bool = False) -> Streams:
        """A connection to one of the addresses behind a name. Raises Problem."""

        async def opened(address: str) -> Streams:
            reader, writer = await asyncio.open_connection(address, port)
            self.recent.note(writer)
            return reader, writer

        return await self.reach(host, port, opened, checked=checked, local=local)

    async def reach[T](
        self,
        host: str,
        port: int,
        opened: Callable[[str], Awaitable[T]],
        *,
        checked: bool = True,
        local: bool = False,
    ) -> T:
        """What `opened` makes of one of the addresses behind a name. Raises Problem."""
        try:
            async with asyncio.timeout(self.timeout):
                return await self._reach(host, port, opened, checked=checked, local=local)
        except TimeoutError as error:
            detail = f"{host}:{port} did not accept a connection within {self.timeout:g} s; is it up and reachable from here?"
            raise Problem(504, "connect_timed_out", detail) from error

    async def _reach[T](
        self, host: str, port: int, opened: Callable[[str], Awaitable[T]], *, checked: bool, local: bool
    ) -> T:
        addresses = await self._when_files_allow(lambda: _resolved(host, port))
        judged = addresses if checked else []
        refusals = {address: self.by_address(host, address, port, local=local) for address in judged}
        allowed = [address for address in addresses if refusals.get(address) is None]
        if not allowed:
            raise next(problem for problem in refusals.values() if problem is not None)
        last: OSError | None = None
        for left, address in zip(range(len(allowed), 0, -1), allowed, strict=True):
            try:
                # Not the whole time for the first address: an unreachable IPv6 must leave some for IPv4.
                async with asyncio.timeout(self.timeout / left):
                    return await self._when_files_allow(partial(opened, str(address)))
            except TimeoutError as error:
                if left == 1:
                    raise
                last = error
            except OSError as error:
                last = error
        assert last is not None
        raise Problem(502, "connect_failed", f"{host}:{port} refused the connection: {_words(last)}") from last

    async def _when_files_allow[T](self, connect: Callable[[], Awaitable[T]]) -> T:
        """Try again while this process has no file left: other connections end. The caller limits the time."""
        while True:
            try:
                return await connect()
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
            self.make_room()
            await asyncio.sleep(WAIT)


async def _resolved(host: str, port: int) -> list[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # getaddrinfo(3) does not say so: without a file for /etc/hosts a name is unknown. By now one may be free again.
        if isinstance(error, OSError) and is_short_of_files(FILES_OF_LOOKUPS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        detail = f"the name {host} does not resolve: {_words(error)}"
        raise Problem(502, "dns_failed", detail) from error
    # A scope ("fe80::1%eth0") is only on link-local addresses, which `ipaddress` keeps.
    return list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in found))


def _words(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error)


def _prohibited(host: str, why: str) -> Problem:
    return Problem(403, "destination_prohibited", f"{host} may not be reached through this proxy: {why}")


def _unmapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None) or address


def _public(address: Address) -> bool:
    inner = _unmapped(address)
    return (
        inner.is_global
        and not inner.is_multicast
        and not (isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local)
    )


def is_of_this_machine(address: Address) -> bool:
    """Whether this machine has the address."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
