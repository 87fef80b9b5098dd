"""Measure queries and ingest with full tables: `python -m bench.scale [--calls N] [--output FILE] [--checkout DIR]`.

Records runs of one morning by the real writer (`bench.scale_rows`), waits for the consumers of the feed, copies these
rows to other days and hours (`bench.scale_copies`), and measures every list, filter, search and sum over REST, and the
requests for a single run, with one client and with four; with `--erase N`, also the erasure of runs. Printed beside the
time of each request is the CPU time that the store server and Postgres spent on it, which depends less on other work on
the machine. Ingest is measured through a running store server with empty tables and with full ones; with `--checkout`,
also against another checkout, in turns.

The full run, whose table is in docs/scale.md: `python -m bench.scale --calls 1000000 --rounds 5 --output scale.json`.
"""

import argparse
import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import asyncpg

from bench.bench_setup import Process
from bench.figures import Row, Spread, machine, print_json, quantile
from bench.ingest import RunningStore, measure
from bench.scale_copies import MORNING, copy_runs
from bench.scale_queries import Query, details, queries
from bench.scale_rows import BATCH_RUNS, CALLS_A_RUN, DAY, HOUR, write_runs
from bench.wire import MeasurementFailed
from store.datadir import DataDir, open_data_dir
from store.embedded.postgres import ensure_server
from store.query.rest_shapes import rfc3339

REQUESTS: Final = 100
"""The most requests of each query by one client."""

PATIENCE: Final = 2.0
"""Seconds after which a query is not repeated, once it was sent `FEWEST` times."""

FEWEST: Final = 5
CATCH_UP: Final = 7200.0
"""Seconds within which the consumers of the feed must have processed everything."""

TARGETS_MS: Final = {"list": 100.0, "filter": 100.0, "one": 300.0, "search": 300.0, "stats": 1000.0, "all": 300.0}

OPENING_TIME: Final = 5.0
"""Seconds after the start in which the store server opens its connections: a request meanwhile takes up to 150 ms."""

SIZES: Final = """
SELECT coalesce(root.relname, c.relname) AS table, sum(pg_relation_size(c.oid))::bigint AS rows,
    sum(pg_total_relation_size(c.oid) - pg_relation_size(c.oid) - pg_indexes_size(c.oid))::bigint AS toast,
    sum(pg_indexes_size(c.oid))::bigint AS indexes
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class root ON root.oid = i.inhparent
WHERE c.relkind = 'r' GROUP BY 1 HAVING sum(pg_total_relation_size(c.oid)) > 1000000 ORDER BY sum(pg_total_relation_size(c.oid)) DESC
"""

INDEX_SIZES: Final = """
SELECT coalesce(root.relname, c.relname) AS index, sum(pg_relation_size(c.oid))::bigint AS bytes
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class root ON root.oid = i.inhparent
WHERE c.relkind = 'i' GROUP BY 1 HAVING sum(pg_relation_size(c.oid)) > 1000000 ORDER BY 2 DESC
"""

BEHIND: Final = """
SELECT count(*) FROM (SELECT project, max(transaction) AS newest FROM feed GROUP BY project) AS written
CROSS JOIN unnest(ARRAY['sums/5', 'texts/1', 'models/1']) AS known (consumer)
LEFT JOIN feed_positions USING (project, consumer)
WHERE feed_positions.transaction IS NULL OR feed_positions.transaction < newest
"""
"""Counts the consumers that have not processed the newest entry of a project; one without a position is rebuilding its
result.
"""


UNSUMMED: Final = """
SELECT count(*) FROM (
    SELECT summed_days.day, is_valid, linked_at, sum(summed_days.changes) OVER (PARTITION BY project ORDER BY summed_days.day) AS changes
    FROM summed_days LEFT JOIN model_days USING (project, day)
) AS days WHERE (NOT is_valid OR linked_at IS DISTINCT FROM changes) AND day < extract(epoch FROM now() - interval '1 day') * 1e9
"""
"""Counts the past days whose sums or models are not computed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTimes:
    """The times of a query."""

    group: str
    name: str
    target: str
    clients: int
    n: int
    items: int
    first_ms: float
    p50_ms: float
    p99_ms: float
    """The slowest time, if there are fewer than a hundred."""

    cpu_ms: float
    """CPU time of the store server and Postgres for one request, on average."""

    load: float
    problem: str | None = None

    @property
    def verdict(self) -> str:
        if self.problem:
            return self.problem
        limit = TARGETS_MS.get(self.group)
        return "" if limit is None else "ok" if self.p99_ms <= limit else f"over {limit:.0f} ms"

    def line(self) -> str:
        figures = f"{self.first_ms:9.1f} {self.p50_ms:9.1f} {self.p99_ms:9.1f} {self.cpu_ms:8.1f}"
        return f"{self.group:7} {self.name:44} {self.clients:2} {self.n:4} {self.items:5} {figures}  {self.verdict}"


HEAD: Final = f"{'group':7} {'query':44} {'cl':>2} {'n':>4} {'items':>5} {'first ms':>9} {'p50 ms':>9} {'p99 ms':>9} {'cpu ms':>8}  target"


class Client:
    """A connection to the API that stays open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, target: str, method: str = "GET") -> tuple[float, int, dict[str, Any]]:
        """Send one request; return the milliseconds, the status and the answer if it is a JSON object."""
        began = time.perf_counter()
        self._connection.request(method, target)
        response = self._connection.getresponse()
        body = response.read()
        took = (time.perf_counter() - began) * 1000
        is_json = response.headers.get_content_subtype().endswith("json")
        found = json.loads(body) if is_json else {}
        return took, response.status, found if isinstance(found, dict) else {}


def measure_query(port: int, query: Query, clients: int, cpu_seconds: Callable[[], float] = float) -> QueryTimes:
    """Send a query repeatedly by this number of clients. `cpu_seconds` returns the CPU time that the servers have used."""
    client = Client(port)
    cursor = None
    for _ in range(query.page - 1):
        _, status, page = client.get(query.target(cursor))
        if status != 200 or page.get("next") is None:
            return _without_times(query, clients, page.get("detail", "") or "has no such page")
        cursor = page["next"]
    target = query.target(cursor)
    first, status, answer = client.get(target)
    if status != 200:
        return _without_times(query, clients, f"{status} {answer.get('detail', '')[:60]}")
    spent = cpu_seconds()
    with ThreadPoolExecutor(clients) as pool:
        times = sorted(
            each for some in pool.map(lambda _: _repeat(Client(port), target), range(clients)) for each in some
        )
    return QueryTimes(
        group=query.group,
        name=query.name,
        target=target,
        clients=clients,
        n=len(times),
        items=len(answer.get("items", ())),
        first_ms=first,
        p50_ms=quantile(times, 0.5),
        p99_ms=quantile(times, 0.99),
        cpu_ms=(cpu_seconds() - spent) / len(times) * 1000,
        load=os.getloadavg()[0],
    )


def _repeat(client: Client, target: str) -> list[float]:
    times: list[float] = []
    deadline = time.monotonic() + PATIENCE
    while len(times) < REQUESTS and (len(times) < FEWEST or time.monotonic() < deadline):
        took, status, _ = client.get(target)
        if status != 200:
            raise MeasurementFailed(f"{target} was answered with {status}, once with 200")
        times.append(took)
    return times


def _without_times(query: Query, clients: int, problem: str) -> QueryTimes:
    return QueryTimes(
        group=query.group,
        name=query.name,
        target=query.target(),
        clients=clients,
        n=0,
        items=0,
        first_ms=0.0,
        p50_ms=0.0,
        p99_ms=0.0,
        cpu_ms=0.0,
        load=os.getloadavg()[0],
        problem=problem,
    )


@contextmanager
def running_store(data: DataDir, dsn: str) -> Iterator[tuple[RunningStore, int]]:
    """Start a store server over the tables; yield it and the port of its API."""
    with Process("proxy.processes.store_server", {"data": str(data.root), "open_api": True}) as store_server:
        port = store_server.read_line()["port"]
        postgres = int((data.postgres / "data" / "postmaster.pid").read_text().split()[0])
        yield RunningStore(data=data, store_server=store_server.pid, postgres=postgres, dsn=dsn), port


async def _fetch(dsn: str, statement: str) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [dict(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


def fetch(dsn: str, statement: str) -> list[dict[str, Any]]:
    """Return the rows of a statement."""
    return asyncio.run(_fetch(dsn, statement))


def fetch_value(dsn: str, statement: str) -> Any:
    """Return the only value of a statement."""
    return next(iter(fetch(dsn, statement)[0].values()))


def wait_until_caught_up(dsn: str, statement: str = BEHIND) -> float:
    """Wait until every consumer has processed the whole feed, or until the statement returns zero; return the seconds."""
    began = time.monotonic()
    while fetch_value(dsn, statement):
        if time.monotonic() - began > CATCH_UP:
            raise MeasurementFailed(f"the followers did not catch up within {CATCH_UP:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - began


def measure_ingest(store: RunningStore, rounds: int, calls: int, offset: int) -> list[Row]:
    """Ingest through the running store server, round by round."""
    asyncio.run(measure(store, "small", 10**6 + offset, 200))
    return [
        asyncio.run(measure(store, workload, offset + number, calls))
        for number in range(rounds)
        for workload in ("small", "agent")
    ]


def ingest_spreads(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Spread]]:
    """Return rate and CPU of each workload."""
    return {
        workload: {
            field: Spread.of(row[field] for row in rows if row["workload"] == workload) for field in ("per_s", "cpu_us")
        }
        for workload in dict.fromkeys(row["workload"] for row in rows)
    }


def compare_checkouts(other: Path, rounds: int, calls: int) -> dict[str, Any]:
    """Measure ingest of this checkout and of another in turns; return the ratios of the pairs."""
    here = Path(__file__).resolve().parent.parent
    pairs = [(_ingest_of(other, calls), _ingest_of(here, calls)) for _ in range(rounds)]
    ratios: dict[str, Any] = {"rounds": [{"other": old, "here": new} for old, new in pairs]}
    for workload in ("small", "talk", "agent"):
        for field in ("per_s", "cpu_us"):
            ratios[f"{workload} {field}"] = Spread.of(new[workload][field] / old[workload][field] for old, new in pairs)
    return ratios


def _ingest_of(checkout: Path, calls: int) -> dict[str, dict[str, Any]]:
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), "-m", "bench.ingest", "--json", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--calls", str(calls)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MeasurementFailed(f"bench.ingest in {checkout} failed: {done.stderr[-500:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["workload"]: row for row in rows if "engine" in row and "per_s" in row}


class Report:
    """The results so far, written to the file after each step, so that an interrupted run leaves its results."""

    def __init__(self, output: Path | None, as_json: bool) -> None:
        self._output = output
        self._as_json = as_json
        self.found: dict[str, Any] = {}

    def add(self, name: str, value: Any, lines: Callable[[], Iterator[str]] | None = None) -> None:
        """Add a figure, and print it."""
        self.found[name] = value
        if self._output:
            self._output.write_text(json.dumps(self.found, default=_jsonable, indent=1))
        if self._as_json:
            print_json({name: json.loads(json.dumps(value, default=_jsonable))})
        else:
            for line in lines() if lines else (f"{name}: {_text(value)}",):
                print(line, flush=True)


def _jsonable(value: Any) -> Any:
    return asdict(value) if isinstance(value, Row | Spread | QueryTimes) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, Spread):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items() if name != "rounds")
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def size_lines(sizes: Sequence[Mapping[str, Any]], indexes: Sequence[Mapping[str, Any]], calls: int) -> Iterator[str]:
    """Format the bytes per call of tables and indexes."""
    yield f"\n{'table':40} {'rows':>9} {'toast':>9} {'indexes':>9}  bytes per call"
    for row in sizes:
        rows, toast, index = (row[name] / calls for name in ("rows", "toast", "indexes"))
        yield f"{row['table']:40} {rows:9.0f} {toast:9.0f} {index:9.0f}"
    yield f"\n{'index':44} bytes per call"
    for row in indexes:
        yield f"{row['index']:44} {row['bytes'] / calls:9.0f}"


def run_all(arguments: argparse.Namespace, report: Report) -> None:
    """Run all measurements in order."""
    report.add("machine", machine() | {"date": time.strftime("%F %H:%M UTC", time.gmtime())})
    report.add("arguments", {name: str(value) for name, value in vars(arguments).items()})
    if arguments.checkout:
        report.add(
            "ingest, this checkout / other",
            compare_checkouts(arguments.checkout.resolve(), arguments.rounds, arguments.ingest),
        )
    # The end of a day, so that days and hours of a filter are whole ones.
    newest = time.time_ns() // DAY * DAY
    runs = max(min(arguments.calls, arguments.recorded) // CALLS_A_RUN, BATCH_RUNS)
    with ExitStack() as stack:
        place = arguments.data or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory))
        )
        place.mkdir(exist_ok=True, parents=True)
        # As root, Postgres runs as another user, who must be able to pass through.
        place.chmod(0o711)
        data = open_data_dir(place / "data")
        server = stack.enter_context(ensure_server(data.postgres))
        note = place / "filled.json"
        if note.exists():
            # The newest time is that of the day on which they were filled.
            filled = json.loads(note.read_text())
        else:
            filled = {"newest": newest, "runs": runs} | fill_all(data, server.dsn, runs, arguments, report, newest)
            note.write_text(json.dumps(filled, default=_jsonable))
        with running_store(data, server.dsn) as (store, port):
            report.add(
                "sums made after s", wait_until_caught_up(server.dsn) + wait_until_caught_up(server.dsn, UNSUMMED)
            )
            time.sleep(OPENING_TIME)
            report.add("load", os.getloadavg())
            report_queries(store, port, filled["runs"], filled["newest"], arguments, report)
            for erasure in measure_erasures(store, port, arguments.erase, filled["newest"]):
                report.add("erase a run", erasure)
            if not arguments.ingest:
                return
            after = [asdict(row) for row in measure_ingest(store, arguments.rounds, arguments.ingest, int(time.time()))]
            report.add("ingest, full tables", ingest_spreads(after))
            report.add("ingest, full / empty", ingest_ratios(filled["before"], after))


def measure_erasures(store: RunningStore, port: int, count: int, newest: int) -> Iterator[dict[str, float]]:
    """Erase a run on each of this many days, and yield the time of each. Tables that are kept lose these runs."""
    client = Client(port)
    for day in range(3, 3 + count):
        times = urlencode({"since": rfc3339(newest - (day + 1) * DAY), "until": rfc3339(newest - day * DAY)})
        for run in client.get(f"/v1/runs?limit=1&{times}")[2]["items"]:
            spent, began = sum(store.read_cpu()), time.monotonic()
            _, status, erased = client.get(f"/v1/runs/{run['id']}", "DELETE")
            if status != 200 or erased["remains"]:
                raise MeasurementFailed(f"{run['id']} was erased with {status}: {erased}")
            took, cpu_seconds = time.monotonic() - began, sum(store.read_cpu()) - spent
            yield {"exchanges": run["exchanges"], "s": took, "cpu s": cpu_seconds, "load": os.getloadavg()[0]}


def _largest_run(port: int) -> tuple[str, str]:
    """Return the run with the most tokens, and its first call."""
    client = Client(port)
    run = client.get("/v1/runs?limit=1&sort=tokens")[2]["items"][0]["id"]
    return run, client.get(f"/v1/runs/{run}/calls?limit=1")[2]["items"][0]["id"]


def fill_all(
    data: DataDir, dsn: str, runs: int, arguments: argparse.Namespace, report: Report, newest: int
) -> dict[str, Any]:
    """Measure ingest with empty tables, and fill them; return what was measured."""
    before: list[dict[str, Any]] = []
    with running_store(data, dsn) as (store, _):  # which makes the tables
        if arguments.ingest:
            before += [asdict(row) for row in measure_ingest(store, arguments.rounds, arguments.ingest, 0)]
            report.add("ingest, empty tables", ingest_spreads(before))
    recorded = fill_tables(dsn, runs, arguments, report, newest)
    with running_store(data, dsn):
        report.add("followers caught up after s", wait_until_caught_up(dsn))
    fetch(dsn, "VACUUM (ANALYZE)")
    report_sizes(dsn, report, "sizes of what was recorded")
    copy_tables(dsn, runs, arguments.calls // recorded - 1, arguments.days, report, newest)
    report_sizes(dsn, report, "sizes with the copies")
    return {"before": before}


def ingest_ratios(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the ratios of the medians."""
    empty, full = ingest_spreads(before), ingest_spreads(after)
    return {
        f"{workload} {field}": full[workload][field].median / empty[workload][field].median
        for workload in empty
        for field in ("per_s", "cpu_us")
    }


def fill_tables(dsn: str, runs: int, arguments: argparse.Namespace, report: Report, newest: int) -> int:
    """Record runs by the real writer; return the number of calls."""
    wal = fetch_value(dsn, "SELECT pg_current_wal_lsn() - '0/0'")
    began = time.monotonic()
    calls = write_runs(dsn, runs=runs, processes=arguments.processes, begin=newest - DAY, lasts=(MORNING - 1) * HOUR)
    lasted = time.monotonic() - began
    wal = fetch_value(dsn, "SELECT pg_current_wal_lsn() - '0/0'") - wal
    filled = {
        "calls": calls,
        "seconds": lasted,
        "calls a second": calls / lasted,
        "WAL bytes a call": float(wal) / calls,
    }
    report.add("fill", filled | {"load": os.getloadavg()[0]})
    return calls


def copy_tables(dsn: str, runs: int, copies: int, days: int, report: Report, newest: int) -> None:
    """Copy the recorded runs."""
    began = time.monotonic()
    if copies > 0:
        copy_runs(dsn, runs=runs, copies=copies, days=days, newest=newest)
        fetch(dsn, "VACUUM (ANALYZE)")
    calls = fetch_value(dsn, "SELECT count(*) FROM calls")
    run_count = fetch_value(dsn, "SELECT count(*) FROM runs")
    report.add("copied", {"copies": copies, "seconds": time.monotonic() - began, "calls": calls, "runs": run_count})


def report_sizes(dsn: str, report: Report, name: str) -> None:
    """Add the bytes of tables and indexes per exchange, including those with which ingest was measured."""
    calls = fetch_value(dsn, "SELECT count(*) FROM exchanges")
    sizes, indexes = fetch(dsn, SIZES), fetch(dsn, INDEX_SIZES)
    report.add(name, {"calls": calls, "tables": sizes, "indexes": indexes}, lambda: size_lines(sizes, indexes, calls))


def report_queries(
    store: RunningStore, port: int, runs: int, newest: int, arguments: argparse.Namespace, report: Report
) -> None:
    """Measure all queries by this number of clients at once."""
    found: list[QueryTimes] = []
    for clients in arguments.clients:
        for query in (*queries(runs, newest), *details(*_largest_run(port))):
            if not any(words in f"{query.group} {query.name}" for words in arguments.match):
                continue
            found.append(measure_query(port, query, clients, lambda: sum(store.read_cpu())))
            head = [f"\n{HEAD}"] if len(found) == 1 else []
            report.add("queries", found, lambda head=head: iter([*head, found[-1].line()]))  # type: ignore[misc]
    over = [one.name for one in found if one.verdict not in ("", "ok")]
    report.add("over their target or not measured", over)


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000, help="in the tables (20000: a look)")
    parser.add_argument(
        "--recorded", type=int, default=20_000, help="of these written by ingest, the others are copies"
    )
    parser.add_argument("--days", type=int, default=30, help="over which they are spread")
    parser.add_argument("--processes", type=int, default=2, help="that fill the tables")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4], help="that ask at once (1 4)")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement of ingest")
    parser.add_argument("--ingest", type=int, default=2000, help="calls of each workload in each round of ingest, or 0")
    parser.add_argument("--erase", type=int, default=0, help="runs that are erased for good, each of another day")
    parser.add_argument("--match", nargs="+", default=[""], help="only queries with one of these texts in their names")
    parser.add_argument("--checkout", type=Path, help="another checkout, to compare its ingest with this one's")
    parser.add_argument("--directory", type=Path, help="where the tables are made, for a disk with room")
    parser.add_argument("--data", type=Path, help="a directory whose tables are kept, and not filled again")
    parser.add_argument("--output", type=Path, help="a file for everything as JSON, written after each step")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each figure")
    return parser


def main(words: Sequence[str] | None = None) -> None:
    arguments = options().parse_args(words)
    run_all(arguments, Report(arguments.output, arguments.json))


if __name__ == "__main__":
    main()
