"""Start the engines that `bench.engines` compares, and run the workloads on them."""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from bench import peers
from bench.bench_setup import BenchSetup, Process, Worker
from bench.figures import cpu, cpu_with_children
from bench.load_client import HOST
from bench.replay import record_calls
from bench.wire import MeasurementFailed
from bench.workloads import STORED, STORED_CALLS, WORKLOADS
from proxy.processes.store_client import Api

PROFILE: Final = f"""\
[[profile]]
name = "bench/1"
match = {{ host = "{HOST}", method = "POST", path = "/**" }}
transient = ["$.limit"]
unknown = "key"
"""

PATIENCE: Final = 120.0
"""Seconds within which all recorded calls must be in their rows."""


@dataclass(kw_only=True)
class Sources:
    """The files that all rounds share."""

    setup: BenchSetup
    nginx: str

    @cached_property
    def recording(self) -> str:
        """A bundle of distinct calls."""
        place = self.setup.directory / "recording.jsonl"
        with self.setup.open_round("recording") as setup:
            shutil.move(record_calls(setup), place)
        return str(place)


@dataclass(kw_only=True)
class Engines:
    """The engines of one round, each started at its first use."""

    setup: BenchSetup
    sources: Sources
    _workers: dict[str, Worker] = field(default_factory=dict)

    def ask(self, name: str, workload: str, seconds: float) -> dict[str, Any]:
        """Run a workload on an engine, and return what was measured. Raises MeasurementFailed."""
        what = {"seconds": seconds, **WORKLOADS[workload].asks}
        if WORKLOADS[workload].unit == "stream":
            return self._measure_stream_memory(name, what)
        if name == STORED:
            return self.stored_worker.ask()
        return self.setup.run_load(self._worker(name), **what)

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            self._workers[name] = ENGINES[name](self)
        return self._workers[name]

    def _measure_stream_memory(self, name: str, what: Mapping[str, Any]) -> dict[str, Any]:
        """Measure the memory that open streams add to a new engine: a process does not return memory that it has used
        once.
        """
        with self.setup.open_round(f"memory-{name}") as setup:
            fresh = Engines(setup=setup, sources=self.sources)
            # The first calls load and build what is needed once.
            setup.run_load(fresh._worker(name), seconds=0.5)
            found = setup.run_load(fresh._worker(name), **what)
        empty, full = (sizes.get("worker", 0.0) for sizes in found["rss"])
        return found | {"detail": {"kib": (full - empty) * 1024 / what["connections"]}}

    @cached_property
    def stored_worker(self) -> "StoredWorker":
        worker = self.start_ours(STORED)
        store_server, api = self.setup.start_store_server(STORED)
        data = self.setup.command_processes(STORED).data.postgres / "data"
        postgres = int((data / "postmaster.pid").read_text().split()[0])
        return StoredWorker(self.setup, worker, store_server, api, postgres)

    def enter(self, peer: AbstractContextManager[Worker]) -> Worker:
        """Start another tool until the end of the round."""
        return self.setup.stack.enter_context(peer)

    def start_ours(self, name: str, engine: str = "lane", **differences: Any) -> Worker:
        """Start a Playhead worker."""
        return self.setup.start_worker(name, engine=engine, **differences)

    def start_replay(self, name: str, engine: str) -> Worker:
        """Start a Playhead worker that replays the recording."""
        source = {"replay": [self.sources.recording], "replay_options": {"after_last": "repeat-last"}}
        return self.start_ours(name, engine, mode="replay", profiles_toml=PROFILE, **source)


@dataclass(slots=True)
class StoredWorker:
    """A worker with its store server and Postgres."""

    setup: BenchSetup
    worker: Worker
    store_server: Process
    api: Api
    postgres: int

    def ask(self) -> dict[str, Any]:
        """Record calls until each is in its rows; return the CPU of all three processes."""
        run = f"stored-{self.setup.first}"
        before = self._read_cpu()
        found = self.setup.run_load(self.worker, calls=STORED_CALLS, seconds=PATIENCE, warm=0.0, run=run)
        self._wait_until_stored(run, found["asked"])
        parts = {f"{part}_us": (late - before[part]) / found["asked"] * 1e6 for part, late in self._read_cpu().items()}
        return found | {"cpu_us": sum(parts.values()), "detail": parts}

    def _read_cpu(self) -> dict[str, float]:
        worker = cpu(self.worker.pids["worker"])
        return {"worker": worker, "store": cpu(self.store_server.pid), "postgres": cpu_with_children(self.postgres)}

    def _wait_until_stored(self, run: str, calls: int) -> None:
        end = time.monotonic() + PATIENCE
        self.api.get(f"/runs/{run}/calls", settled="true", limit=1)
        while (count := self.api.get(f"/runs/{run}")["exchanges"]) != calls:
            if time.monotonic() > end:
                raise MeasurementFailed(f"of {calls} calls {count} were in their rows after {PATIENCE:.0f} s")
            time.sleep(0.2)


def _mitmdump(engines: Engines) -> Worker:
    return engines.enter(peers.mitmdump(engines.setup, "-w", str(engines.setup.directory / "flows")))


ENGINES: Final[Mapping[str, Callable[[Engines], Worker]]] = MappingProxyType(
    {
        "direct": lambda engines: engines.setup.direct_worker(),
        "nginx": lambda engines: engines.enter(peers.nginx(engines.setup, engines.sources.nginx)),
        "lane-relay": lambda engines: engines.start_ours("lane-relay", mode="passthrough"),
        "lane-record": lambda engines: engines.start_ours("lane-record"),
        STORED: lambda engines: engines.stored_worker.worker,
        "lane-replay": lambda engines: engines.start_replay("lane-replay", "lane"),
        "mitmproxy-bare": lambda engines: engines.setup.bare_mitmproxy(),
        "mitmproxy-record": lambda engines: engines.start_ours("mitmproxy-record", "mitmproxy"),
        "mitmproxy-replay": lambda engines: engines.start_replay("mitmproxy-replay", "mitmproxy"),
        "mitmdump": _mitmdump,
        "hoverfly": lambda engines: engines.enter(peers.hoverfly(engines.setup)),
        "timefork": lambda engines: engines.enter(peers.timefork(engines.setup)),
    }
)
