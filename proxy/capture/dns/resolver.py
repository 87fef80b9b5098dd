"""Answer the DNS queries of a captured command: each name gets a synthetic address that identifies it."""

import asyncio
import contextlib
import ipaddress
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from proxy.capture.connections.original_destination import Address, plain_address
from proxy.capture.dns import message as dns
from proxy.capture.dns.synthetic_addresses import IPV4, IPV6, NameTable

CACHE_SECONDS: Final = 30.0
"""Seconds for which the host's answer for a name is cached."""

MAX_CACHED: Final = 4096
MOST_OUTCOMES: Final = 1024
"""Names of one capture of which it is known whether they resolved."""

MAX_PENDING: Final = 256
"""Queries that may wait for the host's resolver at once. Clients repeat queries that fail."""

FORWARD_TIMEOUT: Final = 3.0
"""Seconds that one of the host's name servers may take for a query that is forwarded to it."""

RESOLV_CONF: Final = Path("/etc/resolv.conf")


class Resolution(NamedTuple):
    """The host's answer for a name."""

    code: int
    addresses: tuple[Address, ...] | None
    """The addresses; None if the host was not asked."""


NOT_ASKED: Final = Resolution(dns.NO_ERROR, None)
NO_SUCH_NAME: Final = Resolution(dns.NO_SUCH_NAME, None)


class Resolver:
    """Resolves names for one capture.

    `asks_host`: a name that the host cannot resolve has no address, and queries for other record types are forwarded to the
    host's name servers. Otherwise every name has an address but those that were `unresolved_in_recording`. A name that
    `is_configured` always has one, because another origin replaces it.
    """

    def __init__(
        self,
        names: NameTable,
        *,
        asks_host: bool,
        every_name: bool,
        is_configured: Callable[[str], bool] = lambda _name: False,
        unresolved_in_recording: Collection[str] = (),
    ) -> None:
        self._names = names
        self._is_configured = is_configured
        self.asks_host = asks_host
        """May change between two queries, because a test suite's mode changes with each test."""

        self._every_name = every_name
        self._unresolved_in_recording = unresolved_in_recording
        self._outcomes: dict[str, bool] = {}
        """Whether the host ever had an address for a name that it was asked for."""

        self._cache: OrderedDict[str, tuple[float, Resolution]] = OrderedDict()
        self._pending = 0
        # asyncio's few threads resolve the names of upstreams, which must not wait for these queries.
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="resolve")

    def unresolved_names(self) -> list[str]:
        """Return the names that had no address whenever the host was asked."""
        return [name for name, is_resolved in self._outcomes.items() if not is_resolved]

    def close(self) -> None:
        """Stop without waiting for pending queries."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, data: bytes, *, stream: bool = False) -> bytes | None:
        """Answer one message; None if there is no answer."""
        query = dns.read_query(data)
        if query is None:
            return dns.build_failure(data, dns.NOT_IMPLEMENTED)
        if query.kind in (dns.A, dns.AAAA):
            return await self._answer_addresses(query)
        if (
            query.kind == dns.PTR
            and (found := _reverse_name_address(query.name)) is not None
            and found in (IPV4, IPV6)[found.version == 6]
        ):
            name = self._names.name_of_address(found)
            return dns.build_response(query, dns.NO_ERROR if name else dns.NO_SUCH_NAME, pointer=name)
        # These two record types have addresses and keys of the real server, so the client would bypass the proxy.
        if query.kind in (dns.SVCB, dns.HTTPS) or not self.asks_host:
            return dns.build_response(query)
        return await self._forward(query, data, stream=stream)

    async def _answer_addresses(self, query: dns.Query) -> bytes:
        if query.name == "localhost" or query.name.endswith(".localhost"):
            # RFC 6761 6.3
            own: Address = plain_address("127.0.0.1" if query.kind == dns.A else "::1")
            return dns.build_response(query, addresses=(own,))
        found = await self._resolve(query.name)
        if found.code != dns.NO_ERROR:
            return dns.build_response(query, found.code)
        return dns.build_response(query, addresses=self._synthetic_addresses(query, found))

    def _synthetic_addresses(self, query: dns.Query, resolution: Resolution) -> tuple[Address, ...]:
        version = 4 if query.kind == dns.A else 6
        real = [address for address in resolution.addresses or () if address.version == version]
        if resolution.addresses is not None and not real:
            return ()
        if real and all(address.is_loopback for address in real):
            # The command must reach what it listens on itself.
            return tuple(real)
        return (self._names.ipv4(query.name) if version == 4 else self._names.ipv6(query.name),)

    async def _resolve(self, name: str) -> Resolution:
        if not name or self._is_configured(name):
            return NOT_ASKED
        if not self.asks_host:
            return NO_SUCH_NAME if name in self._unresolved_in_recording else NOT_ASKED
        at, cached = self._cache.get(name, (0.0, None))
        if cached is not None and time.monotonic() - at < CACHE_SECONDS:
            return cached
        found = await self._ask_host(name)
        if found.code != dns.NO_ERROR and self._every_name:
            return NO_SUCH_NAME if name in self._unresolved_in_recording else NOT_ASKED
        self._note_outcome(name, is_resolved=bool(found.addresses))
        if found.code != dns.SERVER_FAILURE:
            self._cache[name] = time.monotonic(), found
            self._cache.move_to_end(name)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return found

    def _note_outcome(self, name: str, *, is_resolved: bool) -> None:
        if name in self._outcomes or len(self._outcomes) < MOST_OUTCOMES:
            self._outcomes[name] = is_resolved or self._outcomes.get(name, False)

    async def _ask_host(self, name: str) -> Resolution:
        if self._pending >= MAX_PENDING:
            return Resolution(dns.SERVER_FAILURE, None)
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, host_resolution, name)
        finally:
            self._pending -= 1

    async def _forward(self, query: dns.Query, data: bytes, *, stream: bool) -> bytes:
        if self._pending < MAX_PENDING:
            self._pending += 1
            try:
                for server in name_servers():
                    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                        async with asyncio.timeout(FORWARD_TIMEOUT):
                            return await (
                                _query_by_stream(server, data) if stream else _query_by_datagram(server, data)
                            )
            finally:
                self._pending -= 1
        return dns.build_response(query, dns.SERVER_FAILURE)


def host_resolution(name: str) -> Resolution:
    """Resolve a name like the host, including `/etc/hosts` and other sources. Blocks."""
    # A final dot avoids the host's search domains, because the client has its own. `/etc/hosts` has names without it.
    found = _host_resolution(f"{name}.") if "." in name else None
    return found if found is not None and found.addresses else _host_resolution(name)


def _host_resolution(name: str) -> Resolution:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == getattr(socket, "EAI_NODATA", None):
            return Resolution(dns.NO_ERROR, ())
        return Resolution(dns.NO_SUCH_NAME if error.errno == socket.EAI_NONAME else dns.SERVER_FAILURE, None)
    except (OSError, UnicodeError):
        return Resolution(dns.NO_SUCH_NAME, None)
    return Resolution(dns.NO_ERROR, tuple(dict.fromkeys(plain_address(str(info[4][0])) for info in found)))


def name_servers(path: Path = RESOLV_CONF) -> list[str]:
    """Return the host's name servers in resolv.conf."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return re.findall(r"(?m)^[ \t]*nameserver[ \t]+([0-9A-Fa-f.:%\w]+)", text)[:3]


class _Reply(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 - asyncio's; the socket is connected
        if not self.first.done():
            self.first.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.first.done():
            self.first.set_exception(exc)


async def _query_by_datagram(server: str, data: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, reply = await loop.create_datagram_endpoint(_Reply, remote_addr=(server, 53))
    try:
        transport.sendto(data)
        return await reply.first
    finally:
        transport.close()


async def _query_by_stream(server: str, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server, 53)
    try:
        writer.write(len(data).to_bytes(2) + data)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    finally:
        writer.close()


def _reverse_name_address(name: str) -> Address | None:
    """Return the address of a name below in-addr.arpa or ip6.arpa; None for other names."""
    labels = name.split(".")[::-1]
    with contextlib.suppress(ValueError):
        if labels[:2] == ["arpa", "in-addr"] and len(labels) == 6:
            return ipaddress.IPv4Address(".".join(labels[2:]))
        if labels[:2] == ["arpa", "ip6"] and len(labels) == 34:
            return ipaddress.IPv6Address(int("".join(labels[2:]), 16))
    return None
