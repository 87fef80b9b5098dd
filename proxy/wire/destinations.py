"""Decide which upstreams may be reached, by their resolved address, and connect to them.

A name is resolved once, the resolved address is checked, and the connection goes to exactly that address. This defeats
DNS rebinding and disguised addresses (`0xA9FEA9FE`, `::ffff:127.0.0.1`).
"""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from proxy.wire.listener import RETRY_AFTER, SHORTAGES, is_short_of_files
from proxy.wire.problem import Problem
from proxy.wire.recent_connections import RecentConnections

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address
type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LOOKUP_FILES = 16
"""Maximum number of files that concurrent name lookups use. They run on a few threads."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Destinations(msgspec.Struct, frozen=True, kw_only=True):
    """The destination rules of one worker."""

    ports: frozenset[int]
    allow_private: bool
    """Whether loopback, private and link-local addresses may be reached."""

    exempt_origins: frozenset[tuple[str, int]]
    """Hosts and ports of configured upstreams. They may have any address but the worker's own."""

    own_addresses: tuple[tuple[str, int], ...]
    """Addresses on which Playhead listens."""

    timeout: float
    make_room: Callable[[], None] = lambda: None
    """Closes idle connections when the process has no file left for another one."""

    recent_connections: RecentConnections = msgspec.field(default_factory=RecentConnections)
    """The connections recently made to upstreams."""

    def name_refusal(self, host: str, port: int) -> Problem | None:
        """Return why a destination is refused by its name and port, or None. `address_refusal` checks the address later."""
        if (host, port) in self.exempt_origins:
            return None
        if port not in self.ports:
            return _prohibited_problem(
                host,
                f"port {port} is not one of connect_ports: add it there in playhead.toml, or map {host} in [upstreams]",
            )
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return None
        return self.address_refusal(host, address, port)

    def address_refusal(self, host: str, address: Address, port: int, *, is_local: bool = False) -> Problem | None:
        """Return why an address is refused, or None. `is_local`: for the user's own captured command, which may reach private
        addresses."""
        if self.is_own(address, port):
            return _prohibited_problem(host, "this is the proxy's own address")
        if is_local or self.allow_private or (host, port) in self.exempt_origins or _is_public(address):
            return None
        return _prohibited_problem(host, f"{address} is not a public address; see [upstreams] and allow_private")

    def is_own(self, address: Address, port: int) -> bool:
        """Return whether Playhead itself listens there."""
        return any(port == ours for _, ours in self.own_addresses) and is_own_machine(_embedded_address(address))

    async def connect(self, host: str, port: int, *, check_addresses: bool = True, is_local: bool = False) -> Streams:
        """Connect to one of the addresses of a name. Raises Problem."""

        async def open_address(address: str) -> Streams:
            reader, writer = await asyncio.open_connection(address, port)
            self.recent_connections.remember(writer)
            return reader, writer

        return await self.connect_with(host, port, open_address, check_addresses=check_addresses, is_local=is_local)

    async def connect_with[T](
        self,
        host: str,
        port: int,
        open_address: Callable[[str], Awaitable[T]],
        *,
        check_addresses: bool = True,
        is_local: bool = False,
    ) -> T:
        """Return the result of `open_address` for the first address of a name that accepts. Raises Problem."""
        try:
            async with asyncio.timeout(self.timeout):
                return await self._connect_to_first(
                    host, port, open_address, check_addresses=check_addresses, is_local=is_local
                )
        except TimeoutError as error:
            detail = f"{host}:{port} did not accept a connection within {self.timeout:g} s; is it up and reachable from here?"
            raise Problem(504, "connect_timed_out", detail) from error

    async def _connect_to_first[T](
        self,
        host: str,
        port: int,
        open_address: Callable[[str], Awaitable[T]],
        *,
        check_addresses: bool,
        is_local: bool,
    ) -> T:
        addresses = await self._retry_until_files_free(lambda: _resolve(host, port))
        judged = addresses if check_addresses else []
        refusals = {address: self.address_refusal(host, address, port, is_local=is_local) for address in judged}
        allowed = [address for address in addresses if refusals.get(address) is None]
        if not allowed:
            raise next(problem for problem in refusals.values() if problem is not None)
        last: OSError | None = None
        for addresses_left, address in zip(range(len(allowed), 0, -1), allowed, strict=True):
            try:
                # Divide the remaining time: an unreachable IPv6 address must leave some for IPv4.
                async with asyncio.timeout(self.timeout / addresses_left):
                    return await self._retry_until_files_free(partial(open_address, str(address)))
            except TimeoutError as error:
                if addresses_left == 1:
                    raise
                last = error
            except OSError as error:
                last = error
        assert last is not None
        raise Problem(502, "connect_failed", f"{host}:{port} refused the connection: {_error_text(last)}") from last

    async def _retry_until_files_free[T](self, connect: Callable[[], Awaitable[T]]) -> T:
        """Retry while this process has no free file, until other connections end. The caller limits the time."""
        while True:
            try:
                return await connect()
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
            self.make_room()
            await asyncio.sleep(RETRY_AFTER)


async def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # getaddrinfo(3) reports an unknown name if no file is free to open /etc/hosts. Check for several free files, because
        # one may have become free since.
        if isinstance(error, OSError) and is_short_of_files(LOOKUP_FILES):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        detail = f"the name {host} does not resolve: {_error_text(error)}"
        raise Problem(502, "dns_failed", detail) from error
    # A scope ("fe80::1%eth0") is only on link-local addresses, which `ipaddress` keeps.
    return list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in found))


def _error_text(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error)


def _prohibited_problem(host: str, why: str) -> Problem:
    return Problem(403, "destination_prohibited", f"{host} may not be reached through this proxy: {why}")


def _embedded_address(address: Address) -> Address:
    """Return the IPv4 address that is embedded in an IPv6 address, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None) or address


def _is_public(address: Address) -> bool:
    inner = _embedded_address(address)
    return (
        inner.is_global
        and not inner.is_multicast
        and not (isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local)
    )


def is_own_machine(address: Address) -> bool:
    """Return whether the address belongs to this machine."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
