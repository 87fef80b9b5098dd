"""Measure whether open streams of events slow ingest down: `python -m bench.events [--streams N] [--rounds N] [--calls
N]`.

A running store server drains the same calls without a stream of `/v1/events` and with many, in turns. Each stream must
receive every call. Prints the calls a second and the CPU of a call, and the ratio of each pair. The clients that read
the streams share the machine's cores with the server.
"""

import argparse
import asyncio
import http.client
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.bench_setup import Process
from bench.figures import Row, Spread, finish, machine
from bench.ingest import RunningStore, measure
from bench.wire import MeasurementFailed
from store.datadir import open_data_dir
from store.embedded.postgres import ensure_server

PATIENCE = 120.0
"""Seconds within which the streams must have received all events."""


@dataclass(slots=True)
class Streams:
    """Clients that read streams of events in a thread of their own."""

    port: int
    count: int
    received: list[int] = field(default_factory=list)
    """The number of calls that each client has received."""

    _connected: threading.Event = field(default_factory=threading.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None

    def run(self) -> None:
        """Read all streams until `stop`."""
        asyncio.run(self._read_all())

    def wait_until_connected(self) -> None:
        """Wait until every stream has begun."""
        if not self._connected.wait(PATIENCE):
            raise MeasurementFailed("the streams of events did not begin")

    def stop(self) -> None:
        """Close all streams."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _read_all(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.received = [0] * self.count
        started_events = [asyncio.Event() for _ in range(self.count)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._read(number, started_events[number])) for number in range(self.count)]
            for event in started_events:
                await event.wait()
            self._connected.set()
            await self._stop.wait()
            for task in tasks:
                task.cancel()

    async def _read(self, number: int, started_event: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /v1/events?type=call HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            async for line in reader:
                if line.startswith(b": connected"):
                    started_event.set()
                self.received[number] += line.startswith(b"event: call")
        finally:
            writer.close()


@contextmanager
def running_store() -> Iterator[tuple[RunningStore, int]]:
    """Start a store server with an embedded Postgres and an API without tokens; yield it and its port."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        data = open_data_dir(Path(name) / "data")
        Path(name).chmod(0o711)
        with Process("proxy.processes.store_server", {"data": str(data.root), "open_api": True}) as process:
            port = int(process.read_line()["port"])
            with ensure_server(data.postgres) as server:
                postgres = int((data.postgres / "data" / "postmaster.pid").read_text().split()[0])
                yield RunningStore(data=data, store_server=process.pid, postgres=postgres, dsn=server.dsn), port


@contextmanager
def open_streams(port: int, count: int) -> Iterator[Streams]:
    """Keep this number of streams open inside the block."""
    streams = Streams(port, count)
    if not count:
        yield streams
        return
    thread = threading.Thread(target=streams.run)
    thread.start()
    try:
        streams.wait_until_connected()
        yield streams
    finally:
        streams.stop()
        thread.join()


def measure_pair(store: RunningStore, port: int, number: int, calls: int, streams: int) -> list[Row]:
    """Measure without and with streams, in an order that changes with each round."""
    rows: dict[int, Row] = {}
    for place, count in enumerate((0, streams) if number % 2 else (streams, 0)):
        # The index of words, which follows ingest, takes CPU and holds events back that are stored meanwhile.
        wait_until_caught_up(port)
        with open_streams(port, count) as clients:
            row = asyncio.run(measure(store, "small", 2 * number + place, calls))
            wait_until_received(clients, calls)
        rows[count] = Row(
            engine=f"{count} streams",
            workload="small",
            unit="call",
            round=number,
            n=row.n,
            per_s=row.per_s,
            cpu_us=row.cpu_us,
        )
    return [rows[0], rows[streams]]


def wait_until_caught_up(port: int) -> None:
    """Wait until all consumers of the feed have processed what is stored. Raises MeasurementFailed."""
    for _ in range(12):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/v1/stats?group_by=day&settled=true")
            if json.loads(connection.getresponse().read())["settled"]:
                return
        finally:
            connection.close()
    raise MeasurementFailed("the index of words did not catch up")


def wait_until_received(clients: Streams, calls: int) -> None:
    """Wait until every stream has received every call. Raises MeasurementFailed."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        if all(count >= calls for count in clients.received):
            break
        pause.wait(0.05)
    if any(count != calls for count in clients.received):
        raise MeasurementFailed(f"of {calls} calls the streams got {sorted(set(clients.received))}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.events", description=__doc__)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began, rows = machine(), []
    with running_store() as (store, port):
        asyncio.run(measure(store, "small", 10**6, 200))
        for number in range(arguments.rounds):
            rows += measure_pair(store, port, number, arguments.calls, arguments.streams)
    without, with_streams = rows[::2], rows[1::2]
    pairs = list(zip(without, with_streams, strict=True))
    compared = [("calls a second, with streams / without", Spread.of(many.per_s / none.per_s for none, many in pairs))]
    costs = [many.cpu_us / none.cpu_us for none, many in pairs if many.cpu_us and none.cpu_us]
    compared.append(("CPU a call, with streams / without", Spread.of(costs)))
    finish(rows, began, compared, as_json=arguments.json)


if __name__ == "__main__":
    main()
