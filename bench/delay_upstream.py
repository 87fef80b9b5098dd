"""The upstream of `bench.delay`.

`python -m bench.delay_upstream` reads its configuration as one line of JSON from stdin and writes its two ports, with
TLS and without, to stdout as JSON. It responds to `/json?wait=MS` with a whole JSON answer and to `/stream?wait=MS`
with events, MS milliseconds after the request. An answer contains the times at which the request was read and the
answer was sent, so that the upstream's own delay can be subtracted.
"""

import heapq
import json
import re
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

from bench.http_codecs import EVENTS, JSON, RESPONSE_HEADERS, Http1Server
from bench.sample_bodies import Bodies
from bench.wire import Connection, MeasurementFailed

PIECES: Final = 6
"""Events of a stream."""

BETWEEN: Final = 0.004
"""Seconds between two events."""

ANSWER_BYTES: Final = 2048

_PATH: Final = re.compile(rb"/(json|stream)\?wait=(\d+)$")
_END: Final = b"0\r\n\r\n"


def _head(*headers: Mapping[str, str]) -> str:
    return "HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for part in headers for name, value in part.items())


_JSON_HEAD: Final = _head(RESPONSE_HEADERS, JSON) + "X-Read: %019d\r\nX-Sent: %019d\r\nContent-Length: %d\r\n\r\n"
_STREAM_HEAD: Final = (
    _head(RESPONSE_HEADERS, EVENTS) + "X-Read: %019d\r\nX-Sent: %019d\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_EVENT: Final = 'data: {"at":"%019d","choices":[{"index":0,"delta":{"content":" some words of an answer"}}]}\n\n'


class DelayUpstream:
    """A server that sends each answer when it is due."""

    def __init__(self, certificate: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._poll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, ssl.SSLContext | None]] = {}
        for trust in (context, None):
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            self._listeners[listener.fileno()] = listener, trust
            self._poll.register(listener, select.EPOLLIN)
        self._poll.register(sys.stdin, select.EPOLLIN)
        self._connections: dict[int, tuple[Connection, Http1Server]] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._bodies = Bodies(ANSWER_BYTES, seed=2)

    @property
    def ports(self) -> list[int]:
        """The ports with TLS and without."""
        return [int(listener.getsockname()[1]) for listener, _ in self._listeners.values()]

    def serve(self) -> None:
        """Serve until stdin is closed."""
        while True:
            wait = max(self._due[0][0] - time.monotonic(), 0) if self._due else -1
            for number, _ in self._poll.poll(wait):
                if number == sys.stdin.fileno():
                    return
                if number in self._listeners:
                    self._accept(*self._listeners[number])
                else:
                    self._read(number)
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        plain, _ = listener.accept()
        try:
            connection = Connection(plain, context, **({"server_side": True} if context else {}))
        except OSError:
            return  # the other side has left, and reports it
        self._connections[connection.fileno()] = connection, Http1Server()
        self._poll.register(connection, select.EPOLLIN)
        if context:
            self._read(connection.fileno())

    def _read(self, number: int) -> None:
        connection, parser = self._connections[number]
        try:
            data = connection.receive()
        except OSError:
            data = b""
        if data == b"":
            self._poll.unregister(number)
            connection.close()
            del self._connections[number]
        elif data is not None:
            read_at = time.monotonic_ns()
            for _, path in parser.paths(data):
                self._plan_answer(connection, path, read_at)

    def _plan_answer(self, connection: Connection, path: bytes, read_at: int) -> None:
        known = _PATH.search(path)
        if known is None:
            connection.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        due = read_at / 1e9 + int(known[2]) / 1000
        if known[1] == b"json":
            self._plan(due, lambda: self._send_json(connection, read_at))
            return
        for piece in range(PIECES):
            self._plan(due + piece * BETWEEN, lambda piece=piece: self._send_piece(connection, read_at, piece))  # type: ignore[misc]

    def _plan(self, due: float, send: Callable[[], None]) -> None:
        # What was planned before comes first, also if this process was not running when it was due.
        if not self._due and due <= time.monotonic():
            send()
        else:
            heapq.heappush(self._due, (due, next(self._order), send))

    def _send_json(self, connection: Connection, read_at: int) -> None:
        body = self._bodies[next(self._order)]
        head = _JSON_HEAD % (read_at, time.monotonic_ns(), len(body))
        self._send(connection, head.encode() + body)

    def _send_piece(self, connection: Connection, read_at: int, piece: int) -> None:
        now = time.monotonic_ns()
        event = (_EVENT % now).encode()
        chunk = b"%x\r\n%s\r\n" % (len(event), event)
        head = (_STREAM_HEAD % (read_at, now)).encode() if piece == 0 else b""
        self._send(connection, head + chunk + (_END if piece == PIECES - 1 else b""))

    def _send(self, connection: Connection, data: bytes) -> None:
        if connection.fileno() in self._connections:
            try:
                connection.send(data)
                connection.wait()
            except (OSError, MeasurementFailed):
                pass  # the other side has left, which the next read reports


def main() -> None:
    """Serve until stdin is closed."""
    config: Mapping[str, Any] = json.loads(sys.stdin.readline())
    upstream = DelayUpstream(config["certificate"])
    sys.stdout.write(json.dumps({"ports": upstream.ports}) + "\n")
    sys.stdout.flush()
    upstream.serve()


if __name__ == "__main__":
    main()
