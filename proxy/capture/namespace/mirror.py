"""Make what a captive command listens on reachable from the host, and what the host listens on known inside.

Who listens is asked of the kernel every few hundredths of a second, on both sides. For each socket that listens inside
there is one on the host at the same address and port, where that is free; a connection to it is continued inside.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Self

from proxy.capture.namespace import addresses, channel, listening, netlink
from proxy.capture.namespace.listening import ListeningSocket

EACH: Final = 0.05
"""Seconds between two looks at who listens inside."""

HOST_EACH: Final = 5
"""Of so many looks one is at the host as well."""

HELPER_WITHIN: Final = 5.0
PIECE: Final = 1 << 16
MOST_LISTENERS: Final = 200
MOST_CONNECTIONS: Final = 512

type _Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class Mirror:
    """Both directions, for as long as the block lasts. Without host ports, of which only packet rules know, one."""

    def __init__(
        self,
        helper: socket.socket,
        diagnostics: socket.socket,
        ours: Collection[int],
        host_ports: Collection[int] | None,
    ) -> None:
        helper.settimeout(HELPER_WITHIN)
        diagnostics.settimeout(HELPER_WITHIN)
        self._helper = helper
        self._asking = asyncio.Lock()
        self._diagnostics = diagnostics
        self._ours = frozenset(ours)
        self._follows_host = host_ports is not None
        self._known_ports = frozenset(host_ports or ())
        self._servers: dict[ListeningSocket, asyncio.Server | None] = {}
        self._services: list[asyncio.Server] = []
        self._connections = 0
        self._watching: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        for server in (*self._servers.values(), *self._services):
            if server is not None:
                server.close()

    async def serve(self, listener: socket.socket, host: str, port: int) -> None:
        """Continue connections to a socket that listens inside at this address of the host."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._continue(lambda: asyncio.open_connection(host, port), reader, writer)

        listener.setblocking(False)
        self._services.append(await asyncio.start_server(serve, sock=listener))

    @property
    def unreachable(self) -> list[ListeningSocket]:
        """What listens inside and could not be made reachable from the host: the place is taken there."""
        return [listener for listener, server in self._servers.items() if server is None]

    async def _watch(self) -> None:
        with netlink.opened(listening.SOCK_DIAG) as host:
            look = 0
            while True:
                try:
                    inside = {one for one in listening.listeners(self._diagnostics) if one.port not in self._ours}
                    await self._follow(inside)
                    if self._follows_host and look % HOST_EACH == 0:
                        await self._tell_host_ports(host, inside)
                except OSError:
                    return  # the namespace, or its helper, is gone
                look += 1
                await asyncio.sleep(EACH)

    async def _follow(self, inside: set[ListeningSocket]) -> None:
        for gone in self._servers.keys() - inside:
            server = self._servers.pop(gone)
            if server is not None:
                server.close()
        for new in sorted(inside - self._servers.keys(), key=lambda one: (one.port, one.address)):
            if len(self._servers) < MOST_LISTENERS:
                self._servers[new] = await self._serving(new)

    async def _serving(self, listener: ListeningSocket) -> asyncio.Server | None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._continue(lambda: self._connected(listener), reader, writer)

        if listener.address in (addresses.SOURCE4, addresses.SOURCE6):
            return None
        try:
            return await asyncio.start_server(serve, listener.address, listener.port, family=listener.family)
        except OSError:
            return None

    async def _tell_host_ports(self, host: socket.socket, inside: set[ListeningSocket]) -> None:
        """A port is the host's where the command has not taken it inside."""
        ports = frozenset(one.port for one in listening.listeners(host)) - {one.port for one in inside} - self._ours
        added, removed = ports - self._known_ports, self._known_ports - ports
        if added or removed:
            await self._ask({"added": sorted(added), "removed": sorted(removed)})
            self._known_ports = ports

    async def _ask(self, request: dict[str, Any]) -> list[int]:
        """The helper's answer: descriptors. Raises OSError."""
        async with self._asking:
            return await asyncio.to_thread(self._ask_now, request)

    def _ask_now(self, request: dict[str, Any]) -> list[int]:
        channel.send(self._helper, request)
        received = channel.receive(self._helper)
        if received is None:
            raise ConnectionError("the helper inside is gone")
        return received[1]

    async def _continue(
        self, connect: Callable[[], Awaitable[_Side]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Connect to the other side, and pass what either says to the other."""
        if self._connections >= MOST_CONNECTIONS:
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

    async def _connected(self, listener: ListeningSocket) -> _Side:
        (descriptor,) = await self._ask({"family": listener.family, "type": int(socket.SOCK_STREAM)})
        made = socket.socket(fileno=descriptor)
        made.setblocking(False)
        try:
            address = _WILDCARDS.get(listener.address, listener.address)
            await asyncio.get_running_loop().sock_connect(made, (address, listener.port))
            return await asyncio.open_connection(sock=made)
        except OSError:
            made.close()
            raise


async def _relay(left: _Side, right: _Side) -> None:
    """Until both have ended, or one breaks off."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass(left[0], right[1]))
            group.create_task(_pass(right[0], left[1]))
    except* OSError:
        left[1].transport.abort()
        right[1].transport.abort()
    finally:
        left[1].close()
        right[1].close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
