"""Accept connections only while files are free for them; further ones wait in the kernel's queue.

asyncio's own servers accept every connection. A process that then has no free file for upstreams refuses requests and
breaks off handshakes.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Final

from proxy.errors import Failure

log = logging.getLogger(__name__)

BACKLOG: Final = 1024

RESERVED_FILES: Final = 64
"""Files reserved for everything but clients and their upstreams: the spool, the event loop, certificates, name lookups and
idle upstream connections."""

RETRY_AFTER: Final = 0.05
"""Seconds before another attempt when no file is free."""

ACCEPTS_PER_TURN: Final = 64
"""Maximum number of connections accepted in one turn of the event loop."""

FULL: Final = (
    "%d clients are connected, which is all that the hard limit of open files (ulimit -Hn) allows: further ones wait unanswered"
    " until others leave; raise the limit, or start more --workers"
)
"""Logged while clients wait, once a minute (`store.log_format`). Without it, all that anybody sees is agents that hang."""

SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connection_limit() -> int:
    """Return how many clients may be connected at once. Each needs one file, and another for its upstream."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 1 << 20
    return max((files - min(RESERVED_FILES, files // 2)) // 2, 1)


def is_short_of_files(spare: int = 1) -> bool:
    """Return whether this process cannot open this many more files now."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(spare))
    except OSError as error:
        return error.errno in SHORTAGES
    finally:
        for file in opened:
            os.close(file)
    return False


class Listener:
    """One listening address. `open_connections` returns their number; `protocol` creates the protocol for a new one."""

    def __init__(self, open_connections: Callable[[], int], protocol: Callable[[], asyncio.Protocol]) -> None:
        self._open_connections = open_connections
        self._protocol = protocol
        self._limit = connection_limit()
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._starting: set[asyncio.Task[None]] = set()
        """Tasks of connections that were accepted and have no protocol yet."""

    async def listen(self, host: str, port: int, *, reuse_port: bool) -> tuple[str, int]:
        """Start to accept, and return the address and port. Raises Failure."""
        loop = asyncio.get_running_loop()
        try:
            for family, _, _, _, address in await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                self._sockets.append(
                    _listening_socket(family, (str(address[0]), self.port or port), reuse_port=reuse_port)
                )
        except OSError as error:
            self.close()
            raise Failure(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port (0 for any free port) or address"
            ) from error
        for one in self._sockets:
            self._start_accepting(one)
        return str(self._sockets[0].getsockname()[0]), self.port

    def accept_on(self, listening: socket.socket) -> None:
        """Start to accept on an existing socket, and close it with the others. Raises ValueError."""
        if listening.type != socket.SOCK_STREAM or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ValueError("not a listening socket")
        self._sockets.append(listening)
        self._start_accepting(listening)

    def _start_accepting(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        listening.setblocking(False)
        # Not `sock_accept`: if it is cancelled while it accepts, the accepted connection is lost.
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    @property
    def port(self) -> int:
        """The listening port, or 0 while not listening."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    def close(self) -> None:
        """Stop accepting, and close the listening sockets."""
        for one in self._sockets:
            if (pause := self._pauses.pop(one, None)) is not None:
                pause.cancel()
            elif one.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(one.fileno())
            one.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._open_connections() + len(self._starting) >= self._limit:
                log.warning(FULL, self._limit)
                self._pause(listening)  # neither engine reports the end of a connection, so retry by time
                return
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # no connection is waiting, or it ended before it was accepted (accept(2))
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error.strerror)
                self._pause(listening)
                return
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            task = asyncio.Task(self._serve(connection), loop=loop, eager_start=True)
            if not task.done():
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError as error:
            connection.close()
            log.warning("a connection could not be served: %s", error.strerror)

    def _pause(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._pauses[listening] = loop.call_later(RETRY_AFTER, self._start_accepting, listening)


def _listening_socket(family: int, address: tuple[str, int], *, reuse_port: bool) -> socket.socket:
    # With its protocol: without, asyncio does not switch off Nagle's algorithm, and an answer in two pieces takes 40 ms longer.
    one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one
