"""Measure what it costs to store calls: `python -m bench.ingest [--quick] [--json] [--rounds N] [--calls N]`.

A spool is filled first, and then given to a running store server. The workloads are small tool calls, and conversations
and agents of twenty turns, each of which repeats its history. Prints the calls stored a second, the CPU of the store
server and of Postgres for each call, and the growth of the tables, their TOAST tables and their indexes.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import asyncpg

from bench.bench_setup import Process
from bench.figures import Row, cpu, cpu_with_children, finish, machine, print_json, rss
from bench.fill_spool import Sample, agents, fill, small, talks
from bench.wire import MeasurementFailed
from store.datadir import DataDir, open_data_dir
from store.embedded.postgres import ensure_server

WORKLOADS: Mapping[str, Callable[[int, int], Iterator[Sample]]] = MappingProxyType(
    {"small": small, "talk": talks, "agent": agents}
)

PATIENCE = 300.0
"""Seconds within which a spool must be drained."""

# Every table, its toast and its indexes; of partitions the leaves.
SIZE = """
SELECT sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStore:
    """A running store server and its Postgres."""

    data: DataDir
    store_server: int
    postgres: int
    dsn: str

    def read_cpu(self) -> tuple[float, float]:
        """Return the seconds of CPU of the store server, and of all processes of Postgres."""
        return cpu(self.store_server), cpu_with_children(self.postgres)

    async def count_exchanges(self) -> tuple[int, int]:
        """Return the number of exchanges, and the bytes of all tables and indexes."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval("SELECT count(*) FROM exchanges"), await connection.fetchval(SIZE)
        finally:
            await connection.close()


@contextmanager
def run_store_server(place: Path | None = None) -> Iterator[RunningStore]:
    """Start a store server with an embedded Postgres, over the data directory `place` or a temporary one."""
    with ExitStack() as stack:
        if place is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            # As root, Postgres runs as another user, who must be able to pass through.
            place.chmod(0o711)
        data = open_data_dir(place / "data")
        store_server = stack.enter_context(Process("proxy.processes.store_server", {"data": str(data.root)}))
        store_server.read_line()
        server = stack.enter_context(ensure_server(data.postgres))
        postgres = int((data.postgres / "data" / "postmaster.pid").read_text().split()[0])
        yield RunningStore(data=data, store_server=store_server.pid, postgres=postgres, dsn=server.dsn)


async def measure(store: RunningStore, workload: str, number: int, calls: int) -> Row:
    """Fill a spool, give it to the store server, and wait until it is drained."""
    aside = store.data.root / f"filled-{workload}-{number}"
    count, raw = await fill(aside, WORKLOADS[workload](number * calls, calls))
    exchanges, size = await store.count_exchanges()
    before, began = store.read_cpu(), time.monotonic()
    lasted = _wait_until_drained(aside.rename(store.data.spools / aside.name)) - began
    after = store.read_cpu()
    now, grown = await store.count_exchanges()
    if now - exchanges != count:
        raise MeasurementFailed(f"of {count} calls {now - exchanges} reached Postgres")
    store_server, postgres = ((late - early) / count * 1e6 for early, late in zip(before, after, strict=True))
    stored = (grown - size) / count
    return Row(
        engine="store+postgres",
        workload=workload,
        unit="call",
        round=number,
        n=count,
        per_s=count / lasted,
        cpu_us=store_server + postgres,
        rss_mib=rss(store.store_server),
        detail={
            "store_server_us": store_server,
            "postgres_us": postgres,
            "per_core_s": 1e6 / (store_server + postgres),
            "stored_bytes": stored,
            "raw_bytes": raw / count,
            "stored_share": stored * count / raw,
        },
    )


def _wait_until_drained(spool: Path) -> float:
    """Wait until the store server has removed the spool; return when."""
    deadline = time.monotonic() + PATIENCE
    while spool.exists():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the store server did not drain {spool.name} within {PATIENCE:.0f} s")
        time.sleep(0.02)
    return time.monotonic()


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, within a minute")
    parser.add_argument("--json", action="store_true", help="one row a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000, help="of each workload in each round")
    return parser


def main() -> None:
    arguments = options().parse_args()
    rounds, calls = (2, 1000) if arguments.quick else (arguments.rounds, arguments.calls)
    rows: list[Row] = []
    began = machine()
    with run_store_server() as store:
        asyncio.run(measure(store, "small", 10**6, 200))  # the first batch makes partitions and opens connections
        for number in range(rounds):
            for workload in WORKLOADS:
                rows.append(asyncio.run(measure(store, workload, number, calls)))
                if arguments.json:
                    print_json(rows[-1])
    finish(rows, began, as_json=arguments.json)


if __name__ == "__main__":
    main()
