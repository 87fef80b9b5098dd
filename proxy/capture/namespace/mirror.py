"""Make the ports on which a captive command listens reachable from the host, and the host's ports known inside.

The listening sockets on both sides are polled every few hundredths of a second. For each socket that listens inside, one
listens on the host at the same address and port, if that is free. Connections to it are relayed to the one inside.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Self

from proxy.capture.namespace import addresses, channel, listening, netlink
from proxy.capture.namespace.listening import HostPort, ListeningSocket

POLL_INTERVAL: Final = 0.05
"""Seconds between two polls of the listening sockets inside."""

HOST_POLL_EVERY: Final = 5
"""One of this many polls also polls the host."""

HELPER_TIMEOUT: Final = 30.0
PIECE: Final = 1 << 16
MAX_LISTENERS: Final = 200
MAX_CONNECTIONS: Final = 512

type _Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class Mirror:
    """Mirrors listening ports while the block runs: from inside to the host and, with packet rules, the other way.

    `host_ports`: the host's ports that the packet rules have; None without rules. `recorded_ports`: the ports of this
    machine that a replay answers, whether anything listens on them or not.
    """

    def __init__(
        self,
        helper: socket.socket,
        diagnostics: socket.socket,
        own_ports: Collection[int],
        host_ports: Collection[HostPort] | None,
        recorded_ports: Collection[int] = (),
    ) -> None:
        helper.settimeout(HELPER_TIMEOUT)
        diagnostics.settimeout(HELPER_TIMEOUT)
        self._helper = helper
        self._helper_lock = asyncio.Lock()
        self._diagnostics = diagnostics
        self._own_ports = frozenset(own_ports)
        self._follows_host = host_ports is not None
        self._known_ports = frozenset(host_ports or ())
        # The client of a replay may try either family first.
        self._recorded_ports = frozenset(
            (int(family), "", port) for family in (socket.AF_INET, socket.AF_INET6) for port in recorded_ports
        )
        self._servers: dict[ListeningSocket, asyncio.Server | None] = {}
        self._services: list[asyncio.Server] = []
        self._connections = 0
        self._watching: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        if self._follows_host and self._recorded_ports:
            with netlink.open_socket(listening.SOCK_DIAG) as host:
                await self._send_host_ports(host, set())
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        for server in (*self._servers.values(), *self._services):
            if server is not None:
                server.close()

    async def serve(self, listener: socket.socket, host: str, port: int) -> None:
        """Relay connections to a socket that listens inside to this address of the host."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay_connection(lambda: asyncio.open_connection(host, port), reader, writer)

        listener.setblocking(False)
        self._services.append(await asyncio.start_server(serve, sock=listener))

    async def _watch(self) -> None:
        with netlink.open_socket(listening.SOCK_DIAG) as host:
            polls = 0
            while True:
                try:
                    inside = {
                        one for one in listening.listening_sockets(self._diagnostics) if one.port not in self._own_ports
                    }
                    self._close_servers(inside)
                    is_shared = not {port for _, _, port in self._known_ports}.isdisjoint(one.port for one in inside)
                    if self._follows_host and (is_shared or polls % HOST_POLL_EVERY == 0):
                        # Before the host may connect: what is relayed inside would be redirected to the host's own service.
                        await self._send_host_ports(host, inside)
                    await self._start_servers(inside)
                except OSError:
                    return  # the namespace or its helper has ended
                polls += 1
                await asyncio.sleep(POLL_INTERVAL)

    def _close_servers(self, inside: set[ListeningSocket]) -> None:
        for closed_socket in self._servers.keys() - inside:
            server = self._servers.pop(closed_socket)
            if server is not None:
                server.close()

    async def _start_servers(self, inside: set[ListeningSocket]) -> None:
        for new in sorted(inside - self._servers.keys(), key=lambda one: (one.port, one.address)):
            if len(self._servers) < MAX_LISTENERS:
                self._servers[new] = await self._start_server(new)

    async def _start_server(self, listener: ListeningSocket) -> asyncio.Server | None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay_connection(lambda: self._connect_inside(listener), reader, writer)

        if listener.address in (addresses.SOURCE4, addresses.SOURCE6):
            return None
        try:
            return await asyncio.start_server(serve, listener.address, listener.port, family=listener.family)
        except OSError:
            return None

    async def _send_host_ports(self, host: socket.socket, inside: set[ListeningSocket]) -> None:
        """Send the host's ports to the packet rules, except those on which the command listens itself."""
        on_host = {port for one in listening.listening_sockets(host) for port in one.host_ports()}
        left_out = {one.port for one in inside} | self._own_ports
        ports = frozenset(one for one in self._recorded_ports | on_host if one[2] not in left_out)
        added, removed = ports - self._known_ports, self._known_ports - ports
        if added or removed:
            await self._ask_helper({"added": sorted(added), "removed": sorted(removed)})
            self._known_ports = ports

    async def _ask_helper(self, request: dict[str, Any]) -> list[int]:
        """Send a request to the helper, and return the descriptors in its answer. Raises OSError."""
        async with self._helper_lock:
            return await asyncio.to_thread(self._ask_helper_now, request)

    def _ask_helper_now(self, request: dict[str, Any]) -> list[int]:
        channel.send_message(self._helper, request)
        received = channel.receive_message(self._helper)
        if received is None:
            raise ConnectionError("the helper inside has ended")
        return received[1]

    async def _relay_connection(
        self, connect: Callable[[], Awaitable[_Side]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Connect to the other side, and relay the bytes of both."""
        if self._connections >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            inner = await connect()
        except OSError:
            writer.transport.abort()
            return
        else:
            await _relay((reader, writer), inner)
        finally:
            self._connections -= 1

    async def _connect_inside(self, listener: ListeningSocket) -> _Side:
        (descriptor,) = await self._ask_helper({"family": listener.family, "type": int(socket.SOCK_STREAM)})
        endpoint = socket.socket(fileno=descriptor)
        endpoint.setblocking(False)
        try:
            address = _WILDCARDS.get(listener.address, listener.address)
            await asyncio.get_running_loop().sock_connect(endpoint, (address, listener.port))
            return await asyncio.open_connection(sock=endpoint)
        except OSError:
            endpoint.close()
            raise


async def _relay(left: _Side, right: _Side) -> None:
    """Relay bytes until both sides have ended, or one fails."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(left[0], right[1]))
            group.create_task(_copy(right[0], left[1]))
    except* OSError:
        left[1].transport.abort()
        right[1].transport.abort()
    finally:
        left[1].close()
        right[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
