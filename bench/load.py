"""Who asks: `python -m bench.load`, told on stdin what to ask and for how long, says on stdout what it saw.

It reads the CPU time of the processes that it is told at both ends of its window, so that connecting and warming up
count for nobody.
"""

import heapq
import json
import re
import select
import ssl
import sys
import time
from collections.abc import Mapping
from typing import Any

from bench.figures import cpu, cpu_with_children, quantile, rss
from bench.wire import Broken, received, send, through
from bench.words import Bodies

HOST = "api.bench.example"

HEAD = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nAccept-Encoding: identity\r\n"
    "User-Agent: bench/1.0 Python/3.13\r\nAuthorization: Bearer sk-bench-0f9d2c4b8a7e61350f9d2c4b8a7e6135\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
)

LEFT = re.compile(rb'"at":"(\d{19})"')


class Load:
    """Connections through a door, or past it, and the times that were measured on them."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told
        self.times: list[float] = []
        self._trust = ssl.create_default_context(cafile=told["ca"])
        self._poll = select.epoll()
        self._connections: dict[int, ssl.SSLSocket] = {}
        self.buffers: dict[int, bytes] = {}

    def connect(self) -> None:
        """Open every connection, one after the other."""
        for _ in range(self.told["connections"]):
            connection = through(self.told["proxy"], HOST, self.told["upstream"], self.told["run"], self._trust)
            self._connections[connection.fileno()] = connection
            self.buffers[connection.fileno()] = b""
            self._poll.register(connection, select.EPOLLIN)

    def run(self) -> dict[str, Any]:
        """Warm up, measure, and say what came of it."""
        empty = self._sizes()
        self.connect()
        self.begin(list(self._connections.values()))
        self._until(time.monotonic() + self.told["warm"])
        self.times.clear()
        before, began = self._used(), time.monotonic()
        self._until(began + self.told["seconds"])
        after, lasted = self._used(), time.monotonic() - began
        used = {name: after[name] - before[name] for name in after}
        return {"seconds": lasted, "cpu": used, "rss": [empty, self._sizes()], **self._found()}

    def begin(self, connections: list[ssl.SSLSocket]) -> None:
        """Ask for the first time on each connection."""
        raise NotImplementedError

    def take(self, connection: ssl.SSLSocket, data: bytes) -> None:
        """Something came."""
        raise NotImplementedError

    def due(self, now: float) -> float:
        """Ask what is to be asked by now; when to look again."""
        return now + 1.0

    @property
    def over(self) -> bool:
        """Whether there is nothing more to ask."""
        return False

    def _until(self, end: float) -> None:
        while (now := time.monotonic()) < end and not self.over:
            wait = max(min(end, self.due(now)) - now, 0)
            for number, _ in self._poll.poll(wait):
                connection = self._connections[number]
                data = received(connection)
                if data == b"":
                    raise Broken(
                        f"a connection was closed after {len(self.times)} measured: {self.buffers[number][:300]!r}"
                    )
                if data is not None:
                    self.take(connection, data)

    def _used(self) -> dict[str, float]:
        read = {name: (cpu_with_children if name in TREES else cpu)(pid) for name, pid in self.told["pids"].items()}
        return read | {"load": time.process_time()}

    def _sizes(self) -> dict[str, float]:
        return {name: rss(pid) for name, pid in self.told["pids"].items()}

    def _found(self) -> dict[str, Any]:
        times = sorted(self.times)
        if not times:
            raise Broken("nothing was answered within the window")
        found = {"mean_ms": sum(times) / len(times), "p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99)}
        return {"n": len(times), **{name: value * 1000 for name, value in found.items()}}


TREES = frozenset({"postgres"})
"""Processes that count together with those below them."""


class Calls(Load):
    """One request after the other on each connection: at once, or at a `rate` (requests a second, all connections together)."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(told)
        self._bodies = Bodies(told["size"], seed=1)
        self._head = HEAD.format(path=told.get("path", "/json"), host=HOST, length=told["size"]).encode()
        self._number = 0
        self._asked: dict[int, float] = {}
        self._waiting: list[tuple[float, int, ssl.SSLSocket]] = []
        self._interval = told["connections"] / told["rate"] if told["rate"] else 0.0

    def begin(self, connections: list[ssl.SSLSocket]) -> None:
        now = time.monotonic()
        for order, connection in enumerate(connections):
            heapq.heappush(self._waiting, (now + self._interval * order / len(connections), order, connection))

    def due(self, now: float) -> float:
        while self._waiting and self._waiting[0][0] <= now:
            self._ask(heapq.heappop(self._waiting)[2])
        return self._waiting[0][0] if self._waiting else now + 1.0

    @property
    def over(self) -> bool:
        calls = self.told["calls"]
        return calls is not None and self._number >= calls and not self._asked

    def take(self, connection: ssl.SSLSocket, data: bytes) -> None:
        number = connection.fileno()
        buffer = self.buffers[number] + data
        if not _whole(buffer):
            self.buffers[number] = buffer
            return
        self.buffers[number] = b""
        asked = self._asked.pop(number)
        self.times.append(time.monotonic() - asked)
        if self._interval:
            heapq.heappush(self._waiting, (asked + self._interval, number, connection))
        else:
            self._ask(connection)

    def _ask(self, connection: ssl.SSLSocket) -> None:
        calls, distinct = self.told["calls"], self.told["distinct"]
        if calls is not None and self._number >= calls:
            return
        number = self.told["first"] + (self._number % distinct if distinct else self._number)
        self._number += 1
        self._asked[connection.fileno()] = time.monotonic()
        send(connection, self._head + self._bodies[number])

    def _found(self) -> dict[str, Any]:
        return super()._found() | {"asked": self._number}


def _whole(buffer: bytes) -> bool:
    """Whether that is an answer, all of it. Raises Broken when it is not a good one."""
    head, blank, body = buffer.partition(b"\r\n\r\n")
    if not blank:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise Broken(f"answered with {buffer[:400]!r}")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if length is None:
        raise Broken(f"an answer without a length: {head!r}")
    return len(body) >= int(length[1])


class Events(Load):
    """One stream on each connection, each event with the time at which it left the upstream."""

    def begin(self, connections: list[ssl.SSLSocket]) -> None:
        path = f"/events?{self.told['rate']}"
        body = Bodies(self.told["size"], seed=1)
        head = HEAD.format(path=path, host=HOST, length=self.told["size"]).encode()
        for order, connection in enumerate(connections):
            send(connection, head + body[self.told["first"] + order])

    def take(self, connection: ssl.SSLSocket, data: bytes) -> None:
        now = time.monotonic_ns()
        number = connection.fileno()
        # An event may come in two records.
        whole, _, rest = (self.buffers[number] + data).rpartition(b"\n\n")
        self.buffers[number] = rest
        self.times.extend((now - int(left)) / 1e9 for left in LEFT.findall(whole))


def main() -> None:
    told = json.loads(sys.stdin.readline())
    kind = Events if told["workload"] == "events" else Calls
    try:
        found = kind(told).run()
    except (Broken, OSError) as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
