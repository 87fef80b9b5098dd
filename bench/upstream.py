"""The upstream of `bench.engines` and other benchmarks: one thread without a framework.

`python -m bench.upstream` reads its configuration as one line of JSON from stdin, writes its ports to stdout as JSON,
and serves until stdin is closed. A path with `size=2048` in its query is answered with a body of that many bytes, all
different; one with `events=50` with a stream of that many events a second, each a chunk that contains the time at which
it was sent.
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
from contextlib import suppress
from functools import cache, partial
from itertools import count
from typing import Any

from bench.http_codecs import ClientGone, Http1Server, Http2Server, ServerCodec
from bench.sample_bodies import Bodies, prose
from bench.wire import Connection, MeasurementFailed

EVENT = 200
"""Bytes of an event."""


class Upstream:
    """A server with its connections and streams. The next events of all streams are in a heap by their times."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._contexts = [_context(options["certificate"], alpn) for alpn in ("http/1.1", "h2")]
        listeners = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(2 + options["more"])]
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._newer = listeners[1].fileno()
        self._poll = select.epoll()
        for number in self._listeners:
            self._poll.register(number, select.EPOLLIN)
        self._poll.register(sys.stdin, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._spoken: dict[int, ServerCodec] = {}
        self._due: list[tuple[float, int, float, Connection, int]] = []
        self._size = int(options["answer"])
        self._answers = cache(partial(Bodies, seed=2))
        self._events = _events()
        self._number = count()

    @property
    def ports(self) -> list[int]:
        """The ports: for HTTP/1.1, for HTTP/2, and `more` for hosts that are requested once."""
        return [listener.getsockname()[1] for listener in self._listeners.values()]

    def serve(self) -> None:
        """Serve until stdin is closed."""
        while True:
            wait = max(self._due[0][0] - time.monotonic(), 0) if self._due else -1
            for number, what in self._poll.poll(wait):
                if number == sys.stdin.fileno():
                    return
                self._attend(number, what)
            self._send_due(time.monotonic())

    def _attend(self, number: int, what: int) -> None:
        if number in self._listeners:
            self._accept(self._listeners[number])
            return
        try:
            if what & select.EPOLLOUT:
                self._send(number)
            if number in self._connections and (data := self._connections[number].receive()) is not None:
                self._read(number, data)
        except (OSError, MeasurementFailed):
            self._drop(number)  # whoever asked has left: its window was over

    def _accept(self, listener: socket.socket) -> None:
        plain, _ = listener.accept()
        newer = listener.fileno() == self._newer
        try:
            connection = Connection(plain, self._contexts[newer], server_side=True)
        except OSError:
            return  # a worker that gave up: whoever waits for it will say so
        self._connections[connection.fileno()] = connection
        self._spoken[connection.fileno()] = Http2Server() if newer else Http1Server()
        self._poll.register(connection, select.EPOLLIN)
        self._attend(connection.fileno(), select.EPOLLIN)

    def _read(self, number: int, data: bytes) -> None:
        if not data:
            self._drop(number)
            return
        spoken = self._spoken[number]
        for stream, path in spoken.paths(data):
            with suppress(ClientGone):
                self._answer(number, spoken, stream, path)
        self._send(number, spoken.take_output())

    def _drop(self, number: int) -> None:
        self._poll.unregister(number)
        self._connections.pop(number).close()
        del self._spoken[number]

    def _send(self, number: int, data: bytes = b"") -> None:
        """Send what the socket takes, and the rest when there is room: a slow worker must not delay other streams."""
        connection = self._connections[number]
        waited = connection.waits
        connection.send(data)
        if connection.waits != waited:
            self._poll.modify(number, select.EPOLLIN | (0 if waited else select.EPOLLOUT))

    def _answer(self, number: int, spoken: ServerCodec, stream: int, path: bytes) -> None:
        name, _, value = path.rpartition(b"=")
        if name.endswith(b"events"):
            self._send(number, spoken.stream(stream))
            self._begin_stream(self._connections[number], stream, float(value))
        else:
            size = int(value) if name.endswith(b"size") else self._size
            self._send(number, spoken.answer(stream, self._answers(size)[next(self._number)]))

    def _begin_stream(self, connection: Connection, stream: int, rate: float) -> None:
        number = next(self._number)
        # Spread over the interval by the golden ratio: events of many streams do not leave at one moment.
        begin = time.monotonic() + (number * 0.618 % 1) / rate
        heapq.heappush(self._due, (begin, number, 1 / rate, connection, stream))

    def _send_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            due, number, interval, connection, stream = heapq.heappop(self._due)
            # A closed connection has no number.
            if connection.fileno() in self._connections and self._send_event(connection.fileno(), stream):
                # Who is late leaves events out: a heap of them at once would be cheaper for a worker than events are.
                later = due + interval if due + interval > now else now + interval
                heapq.heappush(self._due, (later, number, interval, connection, stream))

    def _send_event(self, number: int, stream: int) -> bool:
        """Send an event, unless the last one is still unsent; whether the stream continues."""
        if self._connections[number].waits:
            return True
        event = self._events[next(self._number) % len(self._events)] % time.monotonic_ns()
        try:
            self._send(number, self._spoken[number].piece(stream, event))
        except ClientGone:
            return False
        except OSError:
            self._drop(number)
            return False
        return True


def _context(certificate: str, alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols([alpn])
    return context


def _events(variety: int = 512) -> list[bytes]:
    """Return templates of events of one size, which contain the time at which they are sent."""
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
