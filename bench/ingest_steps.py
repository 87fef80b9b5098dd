"""Divide the CPU of a stored call by step: `python -m bench.ingest_steps [--rounds N] [--calls N] [--workloads talk]
[--json]`.

One process does the work of the store server in sequence: it drains a spool with the real ingester, and then each
consumer of the feed processes what was stored. Prints the CPU of this process by step, without the steps nested in it,
and that of Postgres by phase. What the store server computes between batches is not included. Each workload is measured
in rounds, the first of which warms up.
"""

import argparse
import asyncio
import functools
import gc
import inspect
import shutil
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import calls.derive
import calls.redaction.call
import store.ingest.batch_writer
import store.ingest.ingester
import store.search.index
from bench.figures import Spread, cpu_with_children, machine, print_json
from bench.fill_spool import fill
from bench.ingest import WORKLOADS
from calls.derive import deriver
from calls.keys.element_memory import ElementMemory
from calls.redaction.redactor import Redactor
from proxy.processes.store_server import collect_seldom
from store.active_profiles import load_profiles
from store.attribution.grouping import RunGrouping
from store.database.connection import Database
from store.embedded.postgres import ensure_server
from store.feed.consumer import Consumer, ConsumerRunner
from store.feed.model_watch import ModelWatch
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter
from store.ingest.drain import Drain
from store.ingest.ingester import Ingester
from store.proof.sealing import Sealer
from store.proof.signing_keys import SigningKeys
from store.search.fresh_texts import FreshTexts
from store.search.index import TextIndex
from store.sums.call_metrics import CallMetrics
from store.sums.run_sums import RunSums

PATIENCE = 300.0

STEPS: Sequence[tuple[str, object, str]] = (
    ("events", Drain, "gather"),
    ("divide the body", ElementMemory, "take_elements"),
    ("key", calls.derive, "make_key"),
    ("derive", store.ingest.ingester.Ingester, "_derive_batch"),
    ("redact the call", calls.derive, "clean_call"),
    ("run and price", store.ingest.ingester, "assign_run"),
    ("run and price", store.ingest.ingester, "call_cost"),
    ("run and price", RunGrouping, "group_batch"),
    ("row of the exchange", BatchWriter, "_prepare"),
    ("row of the exchange", BatchWriter, "_prepare_or_drop_call"),
    ("row of the call", store.ingest.batch_writer, "call_row"),
    ("entry of the feed", store.ingest.batch_writer, "call_entry"),
    ("proof", store.ingest.batch_writer, "exchange_salts"),
    ("proof", store.ingest.batch_writer, "exchange_record"),
    ("proof", store.ingest.batch_writer, "append_records"),
    ("dedup and compress", BatchWriter, "_plan_rows"),
    ("statements", BatchWriter, "_commit"),
    ("texts for the index", FreshTexts, "note_call"),
    ("words", store.search.index, "_rows_of"),
    ("words", store.search.index, "_rows_of_texts"),
    ("words", store.search.index, "_group_columns"),
)
"""The name of each step, and its functions. A function that this checkout does not have is left out."""


class Clock:
    """Adds up the CPU time of functions by step, without the steps nested in them."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._local = threading.local()
        self._lock = threading.Lock()

    def wrap(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and whose time is added to the step."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_timed(*values: Any, **options: Any) -> Any:
                with self._count(step):
                    return await function(*values, **options)
        else:

            @functools.wraps(function)
            def run_timed(*values: Any, **options: Any) -> Any:
                with self._count(step):
                    return function(*values, **options)

        return run_timed

    @contextmanager
    def _count(self, step: str) -> Iterator[None]:
        inner: list[float] = self._local.__dict__.setdefault("inner", [])
        inner.append(0.0)
        began = time.thread_time()
        try:
            yield
        finally:
            used = time.thread_time() - began
            within = inner.pop()
            if inner:
                inner[-1] += used
            with self._lock:
                self.seconds[step] += used - within


def install(clock: Clock) -> None:
    """Have the clock measure every step."""
    for step, owner, name in STEPS:
        if (function := getattr(owner, name, None)) is not None:
            setattr(owner, name, clock.wrap(step, function))


class StoreUnderTest:
    """A database, its ingester and the consumers of its feed."""

    def __init__(self, database: Database, postgres: int, place: Path) -> None:
        self._database = database
        self._postgres = postgres
        self._place = place
        assert database.store_server is not None
        self._keys = SigningKeys(database.store_server, (Ed25519PrivateKey.generate(),))
        self._clock = Clock()
        install(self._clock)
        profiles, memory, fresh = load_profiles(None), ElementMemory(), FreshTexts()
        clean = Redactor(key=b"bench").redact_text
        self._signal = FeedSignal()
        self._derive = deriver(profiles, clean, memory)
        self._writer = BatchWriter(
            database,
            profile=profiles.digest,
            signal=self._signal,
            note_call=fresh.note_call,
            split=memory.take_elements,
        )
        consumers: tuple[Consumer, ...] = (
            RunSums(database),
            TextIndex(database, deriver(profiles, clean), fresh),
            ModelWatch(),
            CallMetrics(database, time.time_ns()),
        )
        self._consumers = {one.name.partition("/")[0]: ConsumerRunner(database, one, self._signal) for one in consumers}

    async def measure(self, spool: Path, calls: int) -> dict[str, float]:
        """Drain a copy of the spool and process its feed; return the microseconds of CPU of a call, by step."""
        spools = self._place / f"drained-{uuid.uuid4().hex}"
        await asyncio.to_thread(shutil.copytree, spool, spools / spool.name)
        self._clock.seconds.clear()
        costs: dict[str, float] = {}
        with self._measure_phase("drain", costs, calls):
            ingester = Ingester(spools, self._writer, self._derive)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(ingester.run())
                assert await ingester.wait_until_settled(PATIENCE)
                ingester.stop()
                await running
        for name, consumer in self._consumers.items():
            with self._measure_phase(name, costs, calls):
                while await consumer.process_new():
                    pass
        with self._measure_phase("checkpoint", costs, calls):
            await Sealer(self._database, self._keys, self._place / "checkpoints").seal("default")
        await asyncio.to_thread(shutil.rmtree, spools)
        return costs

    @contextmanager
    def _measure_phase(self, phase: str, costs: dict[str, float], calls: int) -> Iterator[None]:
        postgres, own = cpu_with_children(self._postgres), time.process_time()
        self._clock.seconds.clear()
        yield
        used = time.process_time() - own
        steps = dict(self._clock.seconds)
        for step, seconds in steps.items():
            costs[f"{phase}: {step}"] = seconds / calls * 1e6
        costs[f"{phase}: all else"] = (used - sum(steps.values())) / calls * 1e6
        costs[f"{phase}: Postgres"] = (cpu_with_children(self._postgres) - postgres) / calls * 1e6


async def compare(root: Path, rounds: int, calls: int, workloads: Sequence[str]) -> dict[str, dict[str, Spread]]:
    """Measure each workload in turns."""
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in workloads}
    with ensure_server(root / "pg") as server:
        postgres = int((root / "pg" / "data" / "postmaster.pid").read_text().split()[0])
        database = Database(server.dsn, uuid.uuid4())
        await database.prepare()
        store = StoreUnderTest(database, postgres, root)
        gc.disable()
        collect_seldom()
        for number in range(rounds + 1):
            for name in workloads:
                spool = root / f"filled-{name}-{number}"
                count, _ = await fill(spool, WORKLOADS[name](number * 10_000, calls if number else 200))
                steps = await store.measure(spool, count)
                await asyncio.to_thread(shutil.rmtree, spool)
                if number:
                    costs[name].append(steps)
        await database.close()
    return {name: _spreads(some) for name, some in costs.items()}


def _spreads(rounds: Sequence[dict[str, float]]) -> dict[str, Spread]:
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: Spread.of(one.get(name, 0.0) for one in rounds) for name in names}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest_steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000, help="of each workload in each round")
    parser.add_argument("--workloads", nargs="+", default=["small", "talk", "agent"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = machine()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        # As root, Postgres runs as another user, who must be able to pass through.
        Path(name).chmod(0o711)
        found = asyncio.run(compare(Path(name), options.rounds, options.calls, options.workloads))
    if options.json:
        print_json({"machine": began, "found": found})
        return
    print(began)
    for workload, steps in found.items():
        for step, spread in steps.items():
            print(f"{workload:6} {step:30} {spread:>22.0f} us")
        whole = sum(spread.median for spread in steps.values())
        print(f"{workload:6} {'all':30} {whole:>22.0f} us")


if __name__ == "__main__":
    main()
