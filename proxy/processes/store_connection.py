"""The store server that a command uses: one that runs already, or one that starts while the command runs."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from proxy.errors import Failure
from proxy.processes.store_client import Api
from store.datadir import DataDir

BACKLOG: Final = 128
"""Connections that wait for a store server that is starting."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What a store server that is started gets from the command that starts it: so nothing comes between them."""

    lock: int
    """The descriptor of the data directory's lock, which is held."""

    listener: int
    """The descriptor of the socket that listens for the API: connections wait until the store server serves them."""


@contextmanager
def reserve_store_server(data: DataDir, host: str, port: int) -> Iterator[Reservation | None]:
    """Hold the data directory's lock and listen on the port of its API; None if another process has the lock.

    What a started store server was passed stays with it when this context ends.
    """
    with ExitStack() as stack:
        lock = data.store_lock.acquire_exclusive()
        if lock is None:
            yield None
            return
        stack.callback(os.close, lock)
        # It is of one that was killed.
        data.withdraw("store")
        listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux":
            # As in `store.server`: the port is reserved.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise Failure(f"cannot listen on {host}:{port}: {error.strerror}; try again") from error
        yield Reservation(lock=lock, listener=listener.fileno())


class StoreConnection:
    """The store server of a command."""

    def __init__(self, url: str, found: "Api | asyncio.Task[Api | Failure]") -> None:
        self.url = url
        self._found = found

    @property
    def is_starting(self) -> bool:
        """Whether the store server was started and may not be ready yet."""
        return not isinstance(self._found, Api)

    async def api(self) -> Api:
        """Return a client of it once it is ready. Raises Failure if it could not be started."""
        found = self._found if isinstance(self._found, Api) else await self._found
        if isinstance(found, Failure):
            raise found
        return found
