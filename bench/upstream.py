"""The API that is asked: `python -m bench.upstream`, told on stdin, one thread, no framework.

A path with `size=2048` in its query is answered with a body of so many bytes, no two alike; one with `events=50` with a stream
of so many events a second, each a chunk of its own that carries the time at which it left.
"""

import heapq
import json
import random
import select
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from functools import cache, partial
from itertools import count
from typing import Any

from bench.wire import Broken, received, secured, send
from bench.words import Bodies, prose

EVENT = 200
"""Bytes of an event."""

HEAD = (
    "HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 20:00:00 GMT\r\nServer: bench\r\nContent-Type: {}\r\n"
    "X-Request-Id: req_4f1c2a90d7\r\n{}\r\n\r\n"
)
EVENTS_HEAD = HEAD.format("text/event-stream", "Cache-Control: no-cache\r\nTransfer-Encoding: chunked").encode()


class Upstream:
    """Connections, what came on each, and the streams' next events by their times."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(told["certificate"])
        listeners = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(1 + told["more"])]
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._poll = select.epoll()
        for number in self._listeners:
            self._poll.register(number, select.EPOLLIN)
        self._poll.register(sys.stdin, select.EPOLLIN)
        self._connections: dict[int, ssl.SSLSocket] = {}
        self._buffers: dict[int, bytes] = {}
        self._due: list[tuple[float, int, float, ssl.SSLSocket]] = []
        self._size = int(told["answer"])
        self._answers = cache(partial(Bodies, seed=2))
        self._events = _events()
        self._number = count()

    @property
    def ports(self) -> list[int]:
        """Where it listens: as many places as there are to be upstreams."""
        return [listener.getsockname()[1] for listener in self._listeners.values()]

    def serve(self) -> None:
        """Until stdin ends."""
        while True:
            wait = max(self._due[0][0] - time.monotonic(), 0) if self._due else -1
            for number, _ in self._poll.poll(wait):
                if number == sys.stdin.fileno():
                    return
                self._attend(number)
            self._send_due(time.monotonic())

    def _attend(self, number: int) -> None:
        if number in self._listeners:
            self._accept(self._listeners[number])
        elif number in self._connections and (data := received(self._connections[number])) is not None:
            self._read(number, data)

    def _accept(self, listener: socket.socket) -> None:
        plain, _ = listener.accept()
        try:
            connection = secured(plain, self._context, server_side=True)
        except OSError:
            return  # a door that gave up: whoever waits for it will say so
        self._connections[connection.fileno()] = connection
        self._buffers[connection.fileno()] = b""
        self._poll.register(connection, select.EPOLLIN)

    def _read(self, number: int, data: bytes) -> None:
        buffer = self._buffers[number] + data
        head, blank, rest = buffer.partition(b"\r\n\r\n")
        whole = bool(blank) and len(rest) >= _length(head)
        self._buffers[number] = b"" if whole else buffer
        if not data:
            self._drop(number)
        elif whole:
            try:
                self._answer(self._connections[number], head.split(b" ", 2)[1])
            except OSError:
                self._drop(number)  # whoever asked has left: its window was over

    def _drop(self, number: int) -> None:
        self._poll.unregister(number)
        self._connections.pop(number).close()
        del self._buffers[number]

    def _answer(self, connection: ssl.SSLSocket, path: bytes) -> None:
        asked, _, value = path.rpartition(b"=")
        if asked.endswith(b"events"):
            self._begin_stream(connection, float(value))
        else:
            size = int(value) if asked.endswith(b"size") else self._size
            body = self._answers(size)[next(self._number)]
            send(connection, HEAD.format("application/json", f"Content-Length: {len(body)}").encode() + body)

    def _begin_stream(self, connection: ssl.SSLSocket, rate: float) -> None:
        send(connection, EVENTS_HEAD)
        number = next(self._number)
        # Spread over the interval by the golden ratio: events of many streams do not leave at one moment.
        begin = time.monotonic() + (number * 0.618 % 1) / rate
        heapq.heappush(self._due, (begin, number, 1 / rate, connection))

    def _send_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            due, number, interval, connection = heapq.heappop(self._due)
            # A closed connection has no number.
            if connection.fileno() in self._connections and self._sent(connection):
                heapq.heappush(self._due, (due + interval, number, interval, connection))

    def _sent(self, connection: ssl.SSLSocket) -> bool:
        event = self._events[next(self._number) % len(self._events)] % time.monotonic_ns()
        try:
            send(connection, b"%x\r\n%s\r\n" % (len(event), event))
        except (OSError, Broken):
            self._drop(connection.fileno())
            return False
        return True


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line[:15].lower() == b"content-length:":
            return int(line[15:])
    return 0


def _events(variety: int = 512) -> list[bytes]:
    """Templates of events of one size, to be given the time at which they leave."""
    frame = (
        'data: {"at":"%019d","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"TEXT"}}]}\n\n'
    )
    room = EVENT - len(frame % 0) + len("TEXT")
    draw = random.Random(3)
    return [frame.replace("TEXT", prose(draw, room)).encode() for _ in range(variety)]


def main() -> None:
    upstream = Upstream(json.loads(sys.stdin.readline()))
    sys.stdout.write(json.dumps({"ready": True, "ports": upstream.ports}) + "\n")
    sys.stdout.flush()
    upstream.serve()


if __name__ == "__main__":
    main()
