"""Answer a command's seccomp notifications: note the destination of each system call, and let it continue or refuse it. Linux only."""

import ctypes
import errno
import fcntl
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

from proxy.capture.watch.local_services import absolute_path, outside_service, unix_path
from proxy.capture.watch.process_memory import (
    MESSAGES_STEP,
    descriptor_link,
    duplicate_socket,
    ip_address,
    message_address,
    socket_address,
    socket_type,
)
from proxy.capture.watch.seccomp import ANSWER, CONTINUE, IO_URING, RECEIVE, REQUEST, RESPONSE, call_numbers

log = logging.getLogger(__name__)

START_TIMEOUT: Final = 30.0
"""Seconds that the command may take to install its filter."""

UDP_DELAY: Final = 0.1
"""Seconds after which a connected UDP socket counts. Resolvers connect some for a moment, to look up a route; on a busy
machine the moment was more than 20 ms."""

MAX_PENDING: Final = 256
MAX_OWN_SOCKETS: Final = 10_000
"""The maximum number of unix sockets of a command that are known as its own."""

DNS: Final = 53
MESSAGES: Final = 8
"""The maximum number of datagrams of one call whose addresses are read."""


class EscapeListener(Protocol):
    """Receives the destinations that were reached past the worker."""

    def is_own(self, host: str, port: int) -> bool:
        """Whether this address is one of Playhead's own, or one that may be reached."""

    def note(self, protocol: str, host: str, port: int, *, is_refused: bool = False) -> None:
        """Note a connection or a datagram to this address, which is not one of Playhead's own."""


class Supervisor(threading.Thread):
    """A thread that answers one command's notifications."""

    def __init__(self, channel: socket.socket, observer: EscapeListener, *, refuses: bool = False) -> None:
        """`refuses`: connections past the worker are refused, and not only noted."""
        super().__init__(name="watch connections", daemon=True)
        self._refuses = refuses
        self._channel = channel
        self._observer = observer
        self._stop_pipe, self._wake = os.pipe()
        self._listener: int | None = None
        self._listening: set[int] = set()
        """Ports on which the command itself listens."""

        self._own_paths: set[str] = set()
        """Unix sockets that it bound."""

        self._own_files: set[tuple[int, int]] = set()
        """Those on which it listens, by device and inode: they may be renamed."""

        self._pending: deque[tuple[float, int, int, str, tuple[str, int]]] = deque(maxlen=MAX_PENDING)
        self.has_begun = threading.Event()
        self.reason: str | None = None
        """Why there is no filter; None if there is one."""

    def run(self) -> None:
        """Answer notifications until no process with the filter is left, or until `stop`."""
        try:
            self._listener = self._receive_listener()
        finally:
            self.has_begun.set()
        if self._listener is not None:
            self._answer_all(self._listener)

    def stop(self) -> int | None:
        """Stop the thread. Returns the listener if processes are left whose notifications must be answered."""
        os.write(self._wake, b".")
        self.join()
        for descriptor in (self._stop_pipe, self._wake):
            os.close(descriptor)
        self._channel.close()
        listener = self._listener
        if listener is None:
            return None
        ready = select.poll()
        ready.register(listener, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in ready.poll(0)):
            os.close(listener)
            return None
        return listener

    def _receive_listener(self) -> int | None:
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._stop_pipe, select.POLLIN)
        events = dict(waiting.poll(START_TIMEOUT * 1000))
        if self._channel.fileno() not in events:
            self.reason = "the command did not begin"
            return None
        message, descriptors, _, _ = socket.recv_fds(self._channel, 256, 1)
        if not descriptors:
            self.reason = (
                f"this system does not allow watching system calls (seccomp): {message.decode() or 'no answer'}"
            )
            return None
        self._channel.send(b".")
        return descriptors[0]

    def _answer_all(self, listener: int) -> None:
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        waiting.register(self._stop_pipe, select.POLLIN)
        while True:
            events = dict(waiting.poll(UDP_DELAY * 1000 if self._pending else None))
            self._note_pending()
            if events.get(listener, 0) & select.POLLIN:
                self._answer(listener)
            elif events:
                return

    def _answer(self, listener: int) -> None:
        request = bytearray(REQUEST.size)
        try:
            fcntl.ioctl(listener, RECEIVE, request)
        except OSError:
            return  # the calling process has ended
        name, pid, _, number, _, _, *arguments = REQUEST.unpack(request)
        if number == call_numbers()[IO_URING]:
            with suppress(OSError):
                fcntl.ioctl(listener, ANSWER, RESPONSE.pack(name, 0, -errno.EPERM, 0))
            self._observer.note("io_uring", IO_URING, 0, is_refused=True)
            return
        found: list[tuple[str, tuple[str, int]]] = []
        try:
            found = [one for one in self._destinations(pid, number, arguments) if not self._observer.is_own(*one[1])]
        except Exception:  # a guard: each further call would wait for a thread that has ended
            log.exception("a connection of the command was not noticed")
        is_refused = self._refuses and bool(found)
        answer = (-errno.ECONNREFUSED, 0) if is_refused else (0, CONTINUE)
        with suppress(OSError):
            fcntl.ioctl(listener, ANSWER, RESPONSE.pack(name, 0, *answer))
        for protocol, (host, port) in found:
            self._observer.note(protocol, host, port, is_refused=is_refused)

    # -- the destination of a call

    def _destinations(self, pid: int, number: int, arguments: list[int]) -> list[tuple[str, tuple[str, int]]]:
        calls = call_numbers()
        descriptor = ctypes.c_int(arguments[0]).value
        if number == calls["listen"]:
            self._note_listening(pid, descriptor)
            return []
        if number == calls["bind"]:
            self._note_bound(pid, unix_path(pid, socket_address(pid, arguments[1], arguments[2])))
            return []
        addresses: list[tuple[str, int] | None] = []
        if number == calls["connect"]:
            raw = socket_address(pid, arguments[1], arguments[2])
            if (service := outside_service(pid, raw)) and not self._is_own_socket(pid, service[1]):
                return [(service[0], (service[1], 0))]
            addresses = [ip_address(raw)]
        elif number == calls["sendto"]:
            addresses = [ip_address(socket_address(pid, arguments[4], arguments[5]))]
        elif number == calls["sendmsg"]:
            addresses = [message_address(pid, arguments[1])]
        elif number == calls["sendmmsg"]:
            count = min(arguments[2], MESSAGES)
            addresses = [message_address(pid, arguments[1] + n * MESSAGES_STEP) for n in range(count)]
        found = [one for one in addresses if one is not None]
        return self._escapes(pid, descriptor, found, connects=number == calls["connect"]) if found else []

    def _escapes(
        self, pid: int, descriptor: int, addresses: list[tuple[str, int]], *, connects: bool
    ) -> list[tuple[str, tuple[str, int]]]:
        kind = socket_type(pid, descriptor)
        if kind == socket.SOCK_DGRAM:
            # Names are resolved as usual, and a datagram to loopback may be for a service of the command itself.
            addresses = [one for one in addresses if one[1] != DNS and not _is_loopback(one[0])]
            if not connects:
                return [("udp", one) for one in addresses]
            link = descriptor_link(pid, descriptor)
            for one in addresses if link else ():
                self._pending.append((time.monotonic() + UDP_DELAY, pid, descriptor, link, one))
            return []
        return [("tcp", one) for one in addresses if not self._is_own(pid, one)]

    def _is_own(self, pid: int, address: tuple[str, int]) -> bool:
        """Whether it is a loopback address on which the command itself listens, or on which no program does."""
        host, port = address
        return _is_loopback(host) and (port in self._listening or not _is_listening(pid, port))

    def _note_listening(self, pid: int, descriptor: int) -> None:
        duplicate = duplicate_socket(pid, descriptor)
        if duplicate is None:
            return
        with duplicate, suppress(OSError):
            if duplicate.family in (socket.AF_INET, socket.AF_INET6):
                self._listening.add(duplicate.getsockname()[1])
            elif duplicate.family == socket.AF_UNIX and isinstance(path := duplicate.getsockname(), str) and path:
                found = os.stat(f"/proc/{pid}/root{absolute_path(pid, path)}")
                if len(self._own_files) < MAX_OWN_SOCKETS:
                    self._own_files.add((found.st_dev, found.st_ino))

    def _note_bound(self, pid: int, path: str) -> None:
        """Note a unix socket, unless the call is going to fail because there is one: it may be another program's."""
        if path and len(self._own_paths) < MAX_OWN_SOCKETS and not os.path.lexists(f"/proc/{pid}/root{path}"):
            self._own_paths.add(path)

    def _is_own_socket(self, pid: int, path: str) -> bool:
        if path in self._own_paths:
            return True
        with suppress(OSError):
            found = os.stat(f"/proc/{pid}/root{path}")
            return (found.st_dev, found.st_ino) in self._own_files
        return False

    def _note_pending(self) -> None:
        now = time.monotonic()
        while self._pending and self._pending[0][0] <= now:
            _, pid, descriptor, link, (host, port) = self._pending.popleft()
            if descriptor_link(pid, descriptor) == link:
                self._observer.note("udp", host, port)


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.", "0.")) or host in ("::1", "::")


def _is_listening(pid: int, port: int) -> bool:
    """Whether any program listens on a port in the network namespace of a process."""
    suffix = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}") as table:
            for line in table:
                fields = line.split(None, 4)
                if len(fields) > 4 and fields[3] == "0A" and fields[1].endswith(suffix):
                    return True
    return False
