"""Run uvicorn inside the store server's own event loop, on a socket that is already bound."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI

GRACE = 2
"""Seconds that open requests have to finish when the store server stops."""


class _Server(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def run_server(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serve the app inside the block; the socket accepts connections from its first line on."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=GRACE
    )
    server = _Server(config)
    listener.listen(config.backlog)
    async with asyncio.TaskGroup() as group:
        served = group.create_task(server.serve([listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await served
