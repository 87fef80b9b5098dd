"""Run uvicorn inside the store server's own event loop, on a socket that is already bound."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import cast

import uvicorn
from fastapi import FastAPI

from store.api.limits.connections import ApiConnection, connection_limit

GRACE = 2
"""Seconds that open requests have to finish when the store server stops."""


BACKLOG = 2048
"""Connections that the system holds until they are accepted."""

ACCEPTS_PER_TURN = 32
"""Connections that are accepted in one turn of the event loop: each is a file before `ApiConnection` can count it."""

TICK = 1.0
"""Seconds between two updates of the Date header."""


class _Server(uvicorn.Server):
    """A server that installs no signal handlers, and ends at once: uvicorn's own looks ten times a second whether it should."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            # asyncio takes the backlog as the number of connections to accept in a turn, too.
            each.listen(BACKLOG)

    def end(self) -> None:
        """Serve no more."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        # Its first tick of each second updates the header.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        # Otherwise there is nobody for whom to wait a tenth of a second.
        for server in self.servers:
            server.close()
        for each in sockets or ():
            each.close()


@contextlib.asynccontextmanager
async def run_server(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the app inside the block; the socket accepts connections from its first line on."""
    protocol = partial(ApiConnection, waiting={}, limit=connection_limit())
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        log_config=None,
        backlog=ACCEPTS_PER_TURN,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE,
    )
    server = _Server(config)
    # Connections inherit it. A head and its body are sent one after the other: the second would wait 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.listen(BACKLOG)
    async with asyncio.TaskGroup() as group:
        served = group.create_task(server.serve([listener]))
        try:
            yield
        finally:
            server.end()
            await served
