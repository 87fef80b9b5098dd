"""The load generator of the benchmarks.

`python -m bench.load_client` reads its options as one line of JSON from stdin (`bench.bench_setup.DEFAULTS` lists
them), runs a workload for a number of seconds or calls, and writes the latencies and the CPU time of the given
processes to stdout as JSON. CPU is read when the measured window begins and ends, so connecting and warming up are not
included.
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
from bench.http_codecs import ClientCodec, Http1Client, Http2Client
from bench.sample_bodies import Bodies
from bench.wire import Connection, MeasurementFailed, through

DOMAIN = "bench.example"
HOST = f"api.{DOMAIN}"
"""The host that is requested over HTTP/1.1."""

HOST_H2 = f"h2.{DOMAIN}"
"""The host that is requested over HTTP/2."""

NEW_HOST = f"new{{}}.{DOMAIN}"
"""The nth host that is requested for the first time."""

PLAIN, STREAMED = b'"limit": 20', b'"stream": true'
CHANGES = (PLAIN, b'"limit": 21')
"""A part of a request body and its replacement, which does not change the request's key under a profile that calls
`limit` transient.
"""

SENT_AT = re.compile(rb'"at":"(\d{19})"')
"""Finds the time at which an event left the upstream."""


class Load:
    """A workload: connections through a worker, or directly to the upstream, and the latencies measured on them."""

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
        self.codecs: dict[int, ClientCodec] = {}

    def connect(self) -> None:
        """Open all connections, one after another."""
        for _ in range(self.options["connections"]):
            host = HOST_H2 if self.options["h2"] else HOST
            connection = self.open_connection(host)
            self._connections[connection.fileno()] = connection
            self.codecs[connection.fileno()] = self.make_codec(host)
            self._poll.register(connection, select.EPOLLIN)

    def open_connection(self, host: str) -> Connection:
        """Open a connection to a host through the worker."""
        options = self.options
        authority = options["authority"] or f"{host}:443"
        connection = through(options["proxy"], authority, host, options["upstream"], options["run"], self._trust)
        if options["h2"] and connection.alpn != "h2":
            raise MeasurementFailed("does not speak HTTP/2")
        return connection

    def make_codec(self, host: str) -> ClientCodec:
        """Return the HTTP codec for a new connection."""
        options = self.options
        answer = f"events={options['rate']}" if options["workload"] == "events" else f"size={options['answer']}"
        return (Http2Client if options["h2"] else Http1Client)(f"{options['path']}?{answer}", host)

    def run(self) -> dict[str, Any]:
        """Warm up, measure, and return the results."""
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
        """Send or schedule the first request of each connection."""
        raise NotImplementedError

    def take(self, connection: Connection, data: bytes) -> None:
        """Process data that was received."""
        raise NotImplementedError

    def ask_due(self, now: float) -> float:
        """Send the requests that are due, and return the time at which the next one is."""
        return now + 1.0

    @property
    def is_over(self) -> bool:
        """Whether no request is left to send or to be answered."""
        return False

    def _until(self, end: float) -> None:
        while (now := time.monotonic()) < end and not self.is_over:
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
"""Processes that are counted together with their descendants."""


class CallLoad(Load):
    """Send one request after another on each connection: at once, or at `rate` requests a second over all connections."""

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
    def is_over(self) -> bool:
        calls = self.options["calls"]
        return calls is not None and self._number >= calls and not self._asked

    def take(self, connection: Connection, data: bytes) -> None:
        number = connection.fileno()
        codec = self.codecs[number]
        if not codec.take_answer(data):
            if output := codec.take_output():
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
        _send(connection, self.codecs[connection.fileno()].ask(body))

    def _summarize(self) -> dict[str, Any]:
        return super()._summarize() | {"asked": self._number}


class StreamLoad(Load):
    """Receive one stream on each connection, and measure how long each event was under way.

    Events are found in the received bytes, whatever their framing.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._halves: dict[int, bytes] = {}

    def begin(self, connections: list[Connection]) -> None:
        bodies = Bodies(self.options["size"], seed=1)
        for order, connection in enumerate(connections):
            body = bodies[self.options["first"] + order].replace(PLAIN, STREAMED, 1)
            _send(connection, self.codecs[connection.fileno()].ask(body))

    def take(self, connection: Connection, data: bytes) -> None:
        now = time.monotonic_ns()
        number = connection.fileno()
        # An event may come in two records.
        whole, _, self._halves[number] = (self._halves.get(number, b"") + data).rpartition(b"\n\n")
        self.times.extend((now - int(sent_at)) / 1e9 for sent_at in SENT_AT.findall(whole))


class ConnectLoad(Load):
    """Open one connection after another, each for one request; measure from its first packet to the last of the
    response.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._bodies = Bodies(options["size"], seed=1)
        self._number = 0

    def run(self) -> dict[str, Any]:
        if not self.options["new"]:
            self._measure_once()  # creates the host's certificate
        before, began = self._read_cpu(), time.monotonic()
        self.times = [self._measure_once() for _ in range(self.options["calls"])]
        after, lasted = self._read_cpu(), time.monotonic() - began
        used = {name: after[name] - before[name] for name in after}
        return {"seconds": lasted, "cpu": used, "asked": self._number, **self._summarize()}

    def _measure_once(self) -> float:
        """Return the seconds that a connection and its request took."""
        host = NEW_HOST.format(self._number) if self.options["new"] else HOST
        codec = self.make_codec(host)
        request = codec.ask(self._bodies[self.options["first"] + self._number])
        self._number += 1
        began = time.monotonic()
        with closing(self.open_connection(host)) as connection:
            _send(connection, request)
            answer: bytes | None = None
            while answer is None or not codec.take_answer(answer):
                connection.wait(reading=True)
                answer = connection.receive()
                if answer == b"":
                    raise MeasurementFailed("a connection was closed during its answer")
        return time.monotonic() - began


def _send(connection: Connection, data: bytes) -> None:
    """Send all of the data, and wait until the socket takes it."""
    connection.send(data)
    if connection.waits:
        connection.wait()


KINDS: Mapping[str, type[Load]] = {"json": CallLoad, "events": StreamLoad, "connects": ConnectLoad}
"""The class of each workload."""


def main() -> None:
    """Run the workload that stdin describes."""
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
