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
from contextlib import closing
from typing import Any

from bench.figures import cpu, cpu_with_children, quantile, rss
from bench.speech import Asking, Http1Asking, Http2Asking
from bench.wire import Connection, MeasurementFailed, through
from bench.words import Bodies

DOMAIN = "bench.example"
HOST = f"api.{DOMAIN}"
HOST_H2 = f"h2.{DOMAIN}"
"""One that speaks HTTP/2."""

NEW_HOST = f"new{{}}.{DOMAIN}"
"""The nth host that nobody has asked before."""

PLAIN, STREAMED = b'"limit": 20', b'"stream": true'
CHANGES = (PLAIN, b'"limit": 21')
"""What makes a request differ outside its key, under a profile that calls `limit` transient."""

LEFT = re.compile(rb'"at":"(\d{19})"')


class Load:
    """Connections through a worker, or past it, and the times that were measured on them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.times: list[float] = []
        self._trust = None if options["plain"] else ssl.create_default_context(cafile=options["ca"])
        if self._trust and not options["verified"]:
            self._trust.check_hostname, self._trust.verify_mode = False, ssl.CERT_NONE
        if self._trust and options["h2"]:
            self._trust.set_alpn_protocols(["h2"])
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self.spoken: dict[int, Asking] = {}

    def connect(self) -> None:
        """Open every connection, one after the other."""
        for _ in range(self.options["connections"]):
            host = HOST_H2 if self.options["h2"] else HOST
            connection = self.connection(host)
            self._connections[connection.fileno()] = connection
            self.spoken[connection.fileno()] = self.speaking(host)
            self._poll.register(connection, select.EPOLLIN)

    def connection(self, host: str) -> Connection:
        """One to that host, as this worker is reached."""
        options = self.options
        authority = options["authority"] or f"{host}:443"
        connection = through(options["proxy"], authority, host, options["upstream"], options["run"], self._trust)
        if options["h2"] and connection.alpn != "h2":
            raise MeasurementFailed("does not speak HTTP/2")
        return connection

    def speaking(self, host: str) -> Asking:
        """How it is asked there."""
        options = self.options
        answer = f"events={options['rate']}" if options["workload"] == "events" else f"size={options['answer']}"
        return (Http2Asking if options["h2"] else Http1Asking)(f"{options['path']}?{answer}", host)

    def run(self) -> dict[str, Any]:
        """Warm up, measure, and say what came of it."""
        empty = self._sizes()
        self.connect()
        self.begin(list(self._connections.values()))
        self._until(time.monotonic() + self.options["warm"])
        self.times.clear()
        before, began = self._read_cpu(), time.monotonic()
        self._until(began + self.options["seconds"])
        after, lasted = self._read_cpu(), time.monotonic() - began
        used = {name: after[name] - before[name] for name in after}
        return {"seconds": lasted, "cpu": used, "rss": [empty, self._sizes()], **self._summarize()}

    def begin(self, connections: list[Connection]) -> None:
        """Ask for the first time on each connection."""
        raise NotImplementedError

    def take(self, connection: Connection, data: bytes) -> None:
        """Something came."""
        raise NotImplementedError

    def ask_due(self, now: float) -> float:
        """Ask what is to be asked by now; when to look again."""
        return now + 1.0

    @property
    def over(self) -> bool:
        """Whether there is nothing more to ask."""
        return False

    def _until(self, end: float) -> None:
        while (now := time.monotonic()) < end and not self.over:
            wait = max(min(end, self.ask_due(now)) - now, 0)
            for number, _ in self._poll.poll(wait):
                connection = self._connections[number]
                data = connection.receive()
                if data == b"":
                    raise MeasurementFailed(f"a connection was closed after {len(self.times)} measured")
                if data is not None:
                    self.take(connection, data)

    def _read_cpu(self) -> dict[str, float]:
        read = {name: (cpu_with_children if name in TREES else cpu)(pid) for name, pid in self.options["pids"].items()}
        return read | {"load": time.process_time()}

    def _sizes(self) -> dict[str, float]:
        return {name: rss(pid) for name, pid in self.options["pids"].items()}

    def _summarize(self) -> dict[str, Any]:
        times = sorted(self.times)
        if not times:
            raise MeasurementFailed("nothing was answered within the window")
        found = {"mean_ms": sum(times) / len(times), "p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99)}
        return {"n": len(times), **{name: value * 1000 for name, value in found.items()}}


TREES = frozenset({"postgres"})
"""Processes that count together with those below them."""


class Calls(Load):
    """One request after the other on each connection: at once, or at a `rate` (requests a second, all connections together)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._bodies = Bodies(options["size"], seed=1)
        self._changes = CHANGES if options["changed"] else (b"", b"")
        self._number = 0
        self._asked: dict[int, float] = {}
        self._waiting: list[tuple[float, int, Connection]] = []
        self._interval = options["connections"] / options["rate"] if options["rate"] else 0.0

    def begin(self, connections: list[Connection]) -> None:
        now = time.monotonic()
        for order, connection in enumerate(connections):
            heapq.heappush(self._waiting, (now + self._interval * order / len(connections), order, connection))

    def ask_due(self, now: float) -> float:
        while self._waiting and self._waiting[0][0] <= now:
            self._ask(heapq.heappop(self._waiting)[2])
        return self._waiting[0][0] if self._waiting else now + 1.0

    @property
    def over(self) -> bool:
        calls = self.options["calls"]
        return calls is not None and self._number >= calls and not self._asked

    def take(self, connection: Connection, data: bytes) -> None:
        number = connection.fileno()
        spoken = self.spoken[number]
        if not spoken.take_answer(data):
            if output := spoken.take_output():
                _send(connection, output)
            return
        asked_at = self._asked.pop(number)
        self.times.append(time.monotonic() - asked_at)
        if self._interval:
            heapq.heappush(self._waiting, (asked_at + self._interval, number, connection))
        else:
            self._ask(connection)

    def _ask(self, connection: Connection) -> None:
        calls, distinct = self.options["calls"], self.options["distinct"]
        if calls is not None and self._number >= calls:
            return
        number = self.options["first"] + (self._number % distinct if distinct else self._number)
        self._number += 1
        self._asked[connection.fileno()] = time.monotonic()
        body = self._bodies[number].replace(*self._changes, 1)
        _send(connection, self.spoken[connection.fileno()].ask(body))

    def _summarize(self) -> dict[str, Any]:
        return super()._summarize() | {"asked": self._number}


class Events(Load):
    """One stream on each connection, each event with the time at which it left the upstream.

    Events are looked for in what comes, however it is framed.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._halves: dict[int, bytes] = {}

    def begin(self, connections: list[Connection]) -> None:
        bodies = Bodies(self.options["size"], seed=1)
        for order, connection in enumerate(connections):
            body = bodies[self.options["first"] + order].replace(PLAIN, STREAMED, 1)
            _send(connection, self.spoken[connection.fileno()].ask(body))

    def take(self, connection: Connection, data: bytes) -> None:
        now = time.monotonic_ns()
        number = connection.fileno()
        # An event may come in two records.
        whole, _, self._halves[number] = (self._halves.get(number, b"") + data).rpartition(b"\n\n")
        self.times.extend((now - int(sent_at)) / 1e9 for sent_at in LEFT.findall(whole))


class Connects(Load):
    """One connection after the other, each with one request: timed from its first packet to the answer's last."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._bodies = Bodies(options["size"], seed=1)
        self._number = 0

    def run(self) -> dict[str, Any]:
        if not self.options["new"]:
            self._once()  # so that the host is known
        before, began = self._read_cpu(), time.monotonic()
        self.times = [self._once() for _ in range(self.options["calls"])]
        after, lasted = self._read_cpu(), time.monotonic() - began
        used = {name: after[name] - before[name] for name in after}
        return {"seconds": lasted, "cpu": used, "asked": self._number, **self._summarize()}

    def _once(self) -> float:
        host = NEW_HOST.format(self._number) if self.options["new"] else HOST
        spoken = self.speaking(host)
        request = spoken.ask(self._bodies[self.options["first"] + self._number])
        self._number += 1
        began = time.monotonic()
        with closing(self.connection(host)) as connection:
            _send(connection, request)
            answer: bytes | None = None
            while answer is None or not spoken.take_answer(answer):
                connection.wait(reading=True)
                answer = connection.receive()
                if answer == b"":
                    raise MeasurementFailed("a connection was closed during its answer")
        return time.monotonic() - began


def _send(connection: Connection, data: bytes) -> None:
    """All of it, waiting where the other side is slow."""
    connection.send(data)
    if connection.waits:
        connection.wait()


KINDS: Mapping[str, type[Load]] = {"json": Calls, "events": Events, "connects": Connects}


def main() -> None:
    options = json.loads(sys.stdin.readline())
    try:
        found = KINDS[options["workload"]](options).run()
    except MeasurementFailed as broken:
        found = {"failed": str(broken)}
    except OSError as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
