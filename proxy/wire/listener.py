"""Accept connections, and no more of them than there are files for: the others wait in the kernel's queue.

asyncio's own servers accept whatever comes. A process without free files then refuses its clients' requests, because there
is none left for their upstreams, and breaks off handshakes.
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
"""Files that are left for everything but clients and their upstreams: the spool, the loop, leaves, names, idle upstreams."""

WAIT: Final = 0.05
"""Seconds between two looks for a free file while there is none."""

AT_ONCE: Final = 64
"""Connections that are accepted before others have their turn."""

SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connection_limit() -> int:
    """How many clients may be connected at once: each takes a file, and another one for its upstream."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 1 << 20
    return max((files - min(RESERVED_FILES, files // 2)) // 2, 1)


def is_short_of_files(spare: int = 1) -> bool:
    """Whether this process cannot open so many more files just now."""
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
    """One listening address. `open_connections` says how many there are; `protocol` makes what serves one."""

    def __init__(self, open_connections: Callable[[], int], protocol: Callable[[], asyncio.Protocol]) -> None:
        self._open_connections = open_connections
        self._protocol = protocol
        self._limit = connection_limit()
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        """Connections that were accepted and are not served yet."""

    async def listen(self, host: str, port: int, *, reuse_port: bool) -> tuple[str, int]:
        """Begin to accept; the address and port. Raises Failure."""
        loop = asyncio.get_running_loop()
        try:
            for family, _, _, _, address in await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                self._sockets.append(_bound(family, (str(address[0]), self.port or port), reuse_port=reuse_port))
        except OSError as error:
            self.close()
            raise Failure(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port (0 takes a free one) or address"
            ) from error
        for one in self._sockets:
            self._begin(one)
        return str(self._sockets[0].getsockname()[0]), self.port

    def accept_on(self, listening: socket.socket) -> None:
        """Begin to accept on a socket that was made elsewhere, and close it with the others. Raises ValueError."""
        if listening.type != socket.SOCK_STREAM or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ValueError("it is no listening socket")
        self._sockets.append(listening)
        self._begin(listening)

    def _begin(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        listening.setblocking(False)
        # Not `sock_accept`: what it has accepted is lost where it is cancelled in the same moment.
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    @property
    def port(self) -> int:
        """Where it listens; 0 while it does not."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    def close(self) -> None:
        """Accept nothing more."""
        for one in self._sockets:
            if (pause := self._pauses.pop(one, None)) is not None:
                pause.cancel()
            elif one.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(one.fileno())
            one.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if self._open_connections() + len(self._beginning) >= self._limit:
                self._pause(listening)  # connections end in either engine, and neither tells
                return
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # nobody is there, or left before it was accepted (accept(2))
            except OSError as error:
                if error.errno not in SHORTAGES:
                    log.warning("a connection could not be accepted: %s", error.strerror)
                self._pause(listening)
                return
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            task = asyncio.Task(self._serve(connection), loop=loop, eager_start=True)
            if not task.done():
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError as error:
            connection.close()
            log.warning("a connection could not be served: %s", error.strerror)

    def _pause(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._pauses[listening] = loop.call_later(WAIT, self._begin, listening)


def _bound(family: int, address: tuple[str, int], *, reuse_port: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
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
