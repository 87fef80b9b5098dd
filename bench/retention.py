"""Measure retention while recording goes on: `python -m bench.retention [--calls N] [--days N] [--output FILE]`.

Records runs over simulated days by the real writer, each with its proof, and starts a store server with three retention
rules. A pass of retention runs while one client requests lists and another records; the store server is killed during
the pass, started again, and continues. Prints the times of the queries before, during and after the pass. Then every
remaining run is verified, a byte of one is changed as a superuser of Postgres could, and the output of `playhead
verify` is shown.

The full run, whose table is in docs/retention.md: `python -m bench.retention --calls 100000`.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from bench.bench_setup import Process
from bench.figures import machine, quantile
from bench.fill_spool import fill, small
from bench.ingest import SIZE
from bench.scale import Report, fetch, fetch_value, wait_until_caught_up
from bench.scale_rows import CALLS_A_RUN, DAY, HOUR, OTHER_PROJECT, write_runs
from proxy.retention_settings import retention_policy
from store.database.connection import Database
from store.datadir import DataDir, open_data_dir
from store.embedded.postgres import ensure_server
from store.proof.sealing import Sealer

RULES: Final = """
[[retention]]
match = { label = { team = "support" } }
keep = "forever"

[[retention]]
match = { model = "claude-*" }
keep = "14d"

[[retention]]
keep = "7d"
"""

QUERIES: Final = (
    "/v1/runs?limit=50",
    "/v1/runs?model=gpt-4.1&limit=20",
    "/v1/runs?label=team=support&limit=20",
    "/v1/calls?limit=50",
    "/v1/calls?error=true&limit=20",
    "/v1/calls?model=claude-opus-4-5&limit=20",
    "/v1/search?q=refund&limit=20",
    "/v1/stats?group_by=model",
)
RECORDED_AT_ONCE: Final = 100
BASELINE: Final = 40.0
"""Seconds in which queries are measured before and after the pass."""

KILLED_AFTER: Final = 3
"""The number of days that are cleared when the store server is killed."""


@dataclass(slots=True)
class Load:
    """A client that requests lists one after another, and a recorder, each in a thread of its own."""

    data: DataDir
    port: int = 0
    times: list[tuple[str, float]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    recorded: int = 0
    is_over: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run both inside the block."""
        threads = [threading.Thread(target=work) for work in (self._ask, self._record)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.is_over = True
            for thread in threads:
                thread.join()

    def take_times(self) -> dict[str, Any]:
        """Return the times of the queries since the last call, of all of them and of each kind."""
        times, self.times = self.times, []
        failures, self.failures = dict(self.failures), Counter()
        each = {path: spread(took for one, took in times if one == path) for path in QUERIES}
        return {"all": spread(took for _, took in times), "failures": failures, "each": each}

    def _ask(self) -> None:
        number = 0
        while not self.is_over:
            path, number = QUERIES[number % len(QUERIES)], number + 1
            began = time.monotonic()
            try:
                get(self.port, path)
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                self.failures[type(error).__name__] += 1
                time.sleep(0.2)
            else:
                self.times.append((path, time.monotonic() - began))

    def _record(self) -> None:
        while not self.is_over:
            name = f"worker-{self.recorded}"
            aside = self.data.root / name
            count, _ = asyncio.run(fill(aside, small(10**7 + self.recorded, RECORDED_AT_ONCE)))
            aside.rename(self.data.spools / name)
            self.recorded += count
            time.sleep(2)


def spread(times: Iterable[float]) -> dict[str, float]:
    """Return the number of times, and their quantiles in milliseconds."""
    ordered = sorted(times)
    if not ordered:
        return {"n": 0}
    p50, p99 = quantile(ordered, 0.5) * 1000, quantile(ordered, 0.99) * 1000
    return {"n": len(ordered), "p50_ms": p50, "p99_ms": p99, "slowest_ms": ordered[-1] * 1000}


def request(port: int, method: str, path: str, timeout: float = 900) -> Any:
    """Send a request to the API."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        content = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{path} answers {response.status}: {content[:300]!r}")
        return json.loads(content)
    finally:
        connection.close()


def get(port: int, path: str) -> Any:
    """Send a GET request to the API."""
    return request(port, "GET", path)


@contextmanager
def running_store(data: DataDir, rules: str = RULES) -> Iterator[tuple[Process, int]]:
    """Start a store server with retention rules, which begins a pass a minute after its start."""
    policy = retention_policy(tomllib.loads(rules).get("retention", []), "90d", None)
    config = {"data": str(data.root), "open_api": True, "retention": msgspec.to_builtins(policy)}
    with Process("proxy.processes.store_server", config) as store_server:
        yield store_server, store_server.read_line()["port"]


def fill_store(data: DataDir, dsn: str, calls: int, days: int, processes: int, report: Report) -> None:
    """Record the runs, wait for the consumers of the feed, and sign checkpoints."""
    with running_store(data, rules=""):
        pass  # makes the tables
    began, now = time.monotonic(), time.time_ns()
    stored = write_runs(
        dsn,
        runs=calls // CALLS_A_RUN,
        processes=processes,
        begin=now - days * DAY,
        lasts=days * DAY - HOUR,
        server=data.signing_keys().server,
    )
    report.add("recorded with proof", {"calls": stored, "seconds": time.monotonic() - began})
    asyncio.run(_seal(data, dsn))
    with running_store(data, rules=""):
        report.add("followers caught up after s", wait_until_caught_up(dsn))
    fetch(dsn, "VACUUM (ANALYZE)")


async def _seal(data: DataDir, dsn: str) -> None:
    keys = data.signing_keys()
    database = Database(dsn, keys.server)
    await database.connect()
    try:
        await Sealer(database, keys, data.checkpoints).seal_all()
    finally:
        await database.close()


def retain(data: DataDir, dsn: str, report: Report) -> None:
    """Run a pass under load, kill the store server during it, and let it continue."""
    load = Load(data)
    with running_store(data) as (store_server, port):
        plan = get(port, "/v1/retention")
        report.add(
            "plan", {name: plan[name] for name in ("runs", "frees", "size", "warnings")} | {"kept": plan["kept"]}
        )
        report.add("goes by rule", dict(Counter(one["rule"] for one in plan["items"])))
        before = {"bytes": fetch_value(dsn, SIZE), "runs": fetch_value(dsn, "SELECT count(*) FROM runs")}
        report.add("before", before)
        load.port = port
        with load.running():
            time.sleep(BASELINE)
            report.add("queries before", load.take_times())
            began = time.monotonic()
            asking = threading.Thread(target=_start_pass, args=(port,))
            asking.start()
            pending = _wait_until_cleared(dsn, KILLED_AFTER)
            os.kill(store_server.pid, signal.SIGKILL)
            asking.join()
            report.add("killed after s", {"seconds": time.monotonic() - began, "days left": pending})
            report.add("queries until then", load.take_times())
            with running_store(data) as (_, load.port):
                again = time.monotonic()
                done = request(load.port, "POST", "/v1/retention/run")
                report.add(
                    "continued", {"seconds": time.monotonic() - again, "runs": done["runs"], "days": len(done["days"])}
                )
                report.add("ways", dict(Counter(day["way"] for day in done["days"])))
                report.add("queries meanwhile", load.take_times())
                time.sleep(BASELINE)
                report.add("queries after", load.take_times())
                load.is_over = True
    with running_store(data) as (_, port):
        wait_until_caught_up(dsn)
        recorded = fetch_value(dsn, "SELECT count(*) FROM exchanges WHERE run LIKE 'tools-%'")
        report.add("recorded meanwhile", {"acknowledged": load.recorded, "stored": recorded})
        after = {
            "bytes": fetch_value(dsn, SIZE),
            "runs": fetch_value(dsn, "SELECT count(*) FROM runs WHERE id LIKE 'run-%'"),
        }
        report.add("after", after)
        report.add("plan again", get(port, "/v1/retention")["runs"])


def _start_pass(port: int) -> None:
    try:
        request(port, "POST", "/v1/retention/run")
    except (OSError, http.client.HTTPException, RuntimeError):
        pass  # the store server was killed, or has begun a pass by itself


def _wait_until_cleared(dsn: str, days: int) -> int:
    """Wait until this number of days is cleared; return how many are left."""
    most = 0
    while True:
        remaining = fetch_value(dsn, "SELECT count(DISTINCT day) FROM expirations")
        most = max(most, remaining)
        if most and remaining <= most - days:
            return int(remaining)
        time.sleep(0.02)


def prove(data: DataDir, dsn: str, report: Report) -> None:
    """Verify the remaining runs, change one byte, and verify again."""
    began, verdicts = time.monotonic(), Counter[str]()
    runs = [
        row["id"] for row in fetch(dsn, "SELECT id FROM runs WHERE project = 'default' AND id LIKE 'run-%' ORDER BY id")
    ]
    with running_store(data) as (_, port):
        for project in ("default", OTHER_PROJECT):
            ids = fetch(dsn, f"SELECT id FROM runs WHERE project = '{project}' ORDER BY id")
            verdicts += Counter(get(port, f"/v1/runs/{row['id']}/verify?project={project}")["verdict"] for row in ids)
            report.add(f"all of {project}", get(port, f"/v1/verify?project={project}")["verdict"])
    report.add("each run that stayed", {**verdicts, "seconds": time.monotonic() - began})
    # A superuser changes one byte of an answer.
    run = runs[len(runs) // 2]
    statement = f"""UPDATE exchanges SET response_body = set_byte(response_body, 30, get_byte(response_body, 30) # 1)
        WHERE project = 'default' AND run = '{run}' AND id = (
            SELECT id FROM exchanges WHERE project = 'default' AND run = '{run}' ORDER BY started_at OFFSET 2 LIMIT 1)"""
    asyncio.run(_execute(dsn, statement))
    for arguments in ((run,), ("--all",)):
        command = [str(Path(sys.executable).with_name("playhead")), "verify", *arguments, "--data", str(data.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report.add(f"playhead verify {' '.join(arguments)}", f"exit {done.returncode}\n{done.stdout}{done.stderr}")


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.retention", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2, help="that fill the tables")
    parser.add_argument("--output", type=Path, help="a file for everything as JSON")
    arguments = parser.parse_args(words)
    report = Report(arguments.output, as_json=False)
    report.add("machine", machine())
    with tempfile.TemporaryDirectory(
        prefix="bench-", ignore_cleanup_errors=True
    ) as name:  # a store server is kept ready there
        Path(name).chmod(0o711)  # as root, Postgres runs as another user
        data = open_data_dir(Path(name) / "data")
        with ensure_server(data.postgres) as server:
            fill_store(data, server.dsn, arguments.calls, arguments.days, arguments.processes, report)
            retain(data, server.dsn, report)
            prove(data, server.dsn, report)


if __name__ == "__main__":
    main()
