"""Measure the memory of a recording worker and the store server over many small calls: `python -m bench.soak`.

A leak of a hundred bytes a call becomes visible after 200,000 calls, which take ten minutes. The calls use CONNECT and
TLS on a few connections at a time, each of which is closed after a hundred calls; all requests differ. Prints the
memory of both processes in rows, and fails if the worker grew by more than `MOST_GROWTH` after the first quarter.
"""

import argparse
import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.sample_bodies import Bodies

HOST = "api.soak.example"
CONNECTIONS = 16
CALLS_A_CONNECTION = 100
"""Calls on one connection."""

ROWS = 20
WARM_PART = 0.25
"""The part of the calls after which memory should not grow: by then caches and allocators are full."""

MOST_GROWTH = 8 << 20
"""Bytes that a worker may grow after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUp:
    """A running `playhead up`."""

    port: int
    ca: str
    worker: int
    store_server: int


@contextmanager
def start_up(directory: Path, engine: str, upstream: int) -> Iterator[MeasuredUp]:
    """Start `playhead up` on free ports, with one host that is mapped to the upstream."""
    config = directory / "playhead.toml"
    config.write_text(f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{upstream}"\n')
    line = [str(Path(sys.executable).with_name("playhead")), "up", "--engine", engine, "--data", str(directory / "d")]
    line += ["--config", str(config), "--proxy-port", "0", "--api-port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        fields = dict(word.partition("=")[::2] for word in process.stdout.readline().split())
        pids = {
            module: pid
            for pid in _children(process.pid)
            for module in ("proxy.worker.process", "proxy.processes.store_server")
            if _runs_module(pid, module)
        }
        port = int(fields["proxy"].rpartition(":")[2])
        yield MeasuredUp(
            port=port,
            ca=fields["ca"],
            worker=pids["proxy.worker.process"],
            store_server=pids["proxy.processes.store_server"],
        )
        process.terminate()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs_module(pid: int, module: str) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2:-1] == [module.encode()]


def rss(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Upstream(asyncio.Protocol):
    """An upstream that answers each request with 2 KiB, all different."""

    bodies = Bodies(2048, seed=2)
    number = count()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._left = b""

    def data_received(self, data: bytes) -> None:
        data = self._left + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            length = int(data[:end].lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(data) < end + 4 + length:
                break
            data = data[end + 4 + length :]
            body = self.bodies[next(self.number)]
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            self._transport.write(head + body)
        self._left = data


class Clients:
    """Clients that make a number of calls over a few connections."""

    def __init__(self, processes: MeasuredUp, calls: int) -> None:
        self._processes = processes
        self._trust = ssl.create_default_context(cafile=processes.ca)
        self._bodies = Bodies(1024, seed=1)
        self._left = iter(range(calls))
        self.done = 0

    async def ask_all(self) -> None:
        """Make all calls."""
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(self._ask_in_run(f"soak-{number}"))

    async def _ask_in_run(self, run: str) -> None:
        while mine := [number for _, number in zip(range(CALLS_A_CONNECTION), self._left, strict=False)]:
            reader, writer = await self._connect(run)
            for number in mine:
                body = self._bodies[number]
                head = f"POST /v1/notes HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"a call was answered with {answer[:80]!r}")
                await reader.readexactly(2048)
                self.done += 1
            writer.close()

    async def _connect(self, run: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._processes.port)
        credentials = base64.b64encode(f"{run}:x".encode()).decode()
        writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(self._trust, server_hostname=HOST)
        return reader, writer


async def measure_memory(processes: MeasuredUp, calls: int) -> list[tuple[int, int, int]]:
    """Return rows of the calls made and the memory of worker and store server, and print each as it is measured."""
    clients, began, rows = Clients(processes, calls), time.monotonic(), list[tuple[int, int, int]]()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(clients.ask_all())
        while len(rows) <= ROWS:
            while not asking.done() and clients.done < calls * len(rows) // ROWS:  # noqa: ASYNC110 - they are busy
                await asyncio.sleep(0.05)
            rows.append((clients.done, rss(processes.worker), rss(processes.store_server)))
            progress = {"calls": clients.done, "seconds": round(time.monotonic() - began, 1)}
            memory = {"worker_mib": round(rows[-1][1] / 2**20, 1), "store_server_mib": round(rows[-1][2] / 2**20, 1)}
            print(json.dumps(progress | memory), flush=True)
    return rows


@contextmanager
def start_upstream() -> Iterator[int]:
    """Start the upstream in a thread with an event loop of its own; yield its port."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Upstream, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    server.close()
    loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--engine", choices=["lane", "mitmproxy"], default="lane")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="playhead-soak-") as place:
        # The embedded Postgres drops to another user where we are root.
        Path(place).chmod(0o711)
        with start_upstream() as port, start_up(Path(place), arguments.engine, port) as processes:
            rows = asyncio.run(measure_memory(processes, arguments.calls))
    warm = next(worker for done, worker, _ in rows if done >= arguments.calls * WARM_PART)
    grown = rows[-1][1] - warm
    print(json.dumps({"engine": arguments.engine, "worker_grew_mib": round(grown / 2**20, 1)}))
    if grown > MOST_GROWTH:
        raise SystemExit(f"the worker grew by {grown >> 10} KiB after the first quarter of the calls: something leaks")


if __name__ == "__main__":
    main()
