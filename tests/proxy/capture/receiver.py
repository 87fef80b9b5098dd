"""A fake proxy worker: it takes a captive command's sockets, and answers each connection with its destination."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proxy.capture.connections.original_destination import connection_destination


@dataclass
class Receiver:
    """The connections and messages that arrived."""

    path: Path
    message: dict[str, Any] = field(default_factory=dict)
    destinations: list[tuple[str, int]] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=lambda: {"ready": True})
    launchers: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for each connection that has arrived."""

    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    connected: list[socket.socket] = field(default_factory=list)

    def hang_up(self) -> None:
        """Close the control connections, like a worker that dies."""
        while self.connected:
            _shut(self.connected.pop())


@contextmanager
def receiving(directory: Path) -> Iterator[Receiver]:
    """Listen on a control socket while the block runs."""
    receiver = Receiver(directory / "control.sock")
    with receiver.held, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(receiver.path))
        control.listen()
        _start(lambda: _serve_all(control, receiver))
        try:
            yield receiver
        finally:
            _shut(control)


def _serve_all(control: socket.socket, receiver: Receiver) -> None:
    while True:
        launcher, _ = control.accept()
        _start(partial(_serve, launcher, receiver))


def _serve(launcher: socket.socket, receiver: Receiver) -> None:
    receiver.held.callback(_shut, launcher)
    data, descriptors, _, _ = socket.recv_fds(launcher, 65536, 16)
    receiver.message = json.loads(data)
    for description, descriptor in zip(receiver.message["sockets"], descriptors, strict=True):
        passed = socket.socket(fileno=descriptor)
        passed.settimeout(None)
        receiver.held.callback(_shut, passed)
        if description["kind"] == "tcp":
            _start(partial(_accept, passed, description["destination"], receiver))
        else:
            _start(partial(_name, passed))
    launcher.send(json.dumps(receiver.answer).encode())
    receiver.connected.append(launcher)
    receiver.launchers.release()
    while launcher.recv(65536):
        launcher.send(json.dumps({"connections": []}).encode())


def _accept(listener: socket.socket, kind: Any, receiver: Receiver) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            address, port = connection_destination(connection, kind)
            receiver.destinations.append((str(address), port))
            connection.sendall(f"{address} {port}".encode())


def _name(server: socket.socket) -> None:
    """Answer every name with 198.18.0.9, and with no IPv6 address."""
    level, option = (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO) if server.family == socket.AF_INET6 else (0, 8)
    server.setsockopt(level, option, 1)
    while True:
        query, ancillary, _, client = server.recvmsg(512, 256)
        question = query[12 : query.index(0, 12) + 5]
        (kind,) = struct.unpack("!H", question[-4:-2])
        answer = bytes.fromhex("c00c000100010000003c0004c6120009") if kind == 1 else b""
        head = query[:2] + struct.pack("!5H", 0x8180, 1, bool(answer), 0, 0)
        source = [(one, two, data[:4] + data[8:12] + bytes(4)) for one, two, data in ancillary if one == 0]
        server.sendmsg([head + question + answer], source, 0, client)


def _start(work: Callable[[], None]) -> None:
    def until_closed() -> None:
        with contextlib.suppress(OSError, ValueError):  # it or its other side is closed
            work()

    threading.Thread(target=until_closed, daemon=True).start()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
