"""Compare replay with other tools: `python -m bench.replay_peers [--quick] [--json] [--rounds N] [--sizes 20 200 2000]
[--every N]`.

Each tool records the same JSON calls, which differ in their bodies, and then answers each of them once, in order, for
the same client (`bench.replay_client`, one connection): VCR.py in the client's own process; mitmproxy's server replay;
WireMock over plain HTTP with `--wiremock JAR` (npm ships it: build/*.jar of the package `wiremock`); and a Playhead
worker with a bundle. No upstream is contacted. `direct` is the upstream itself, which shows what the client costs.

Prints for each tool and size the time of a call, its quantiles, the CPU of client and server, the memory, and
`start_ms`, the time from the start of the tool until it can answer.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

from vcr.persisters.filesystem import FilesystemPersister
from vcr.serializers import yamlserializer

from bench import peers
from bench.bench_setup import QUESTION, BenchSetup, open_bench_setup
from bench.figures import Row, Spread, cpu, finish, machine, print_json, rss
from bench.load_client import HOST
from bench.sample_bodies import Bodies
from bench.wire import MeasurementFailed

OURS = "playhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayServer:
    """A running tool, and the client options that reach it."""

    started_ms: float
    options: Mapping[str, Any]
    pid: int | None = None


type Start = Callable[[], Any]
"""A context manager whose value is a running tool."""


def ask_all(setup: BenchSetup, calls: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Send every request once and return what the client measured."""
    line = {"calls": calls, "size": QUESTION, "url": f"https://{HOST}/json", "ca": setup.ca, **options}
    ran = subprocess.run(
        [sys.executable, "-m", "bench.replay_client"],
        input=json.dumps(line),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise MeasurementFailed(f"the client failed: {ran.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


# -- the tools


@contextmanager
def direct(setup: BenchSetup) -> Iterator[ReplayServer]:
    """Contact the upstream itself."""
    yield ReplayServer(started_ms=0.0, options={"url": f"https://localhost:{setup.port}/json"}, pid=setup.upstream.pid)


@contextmanager
def vcr(cassette: Path, setup: BenchSetup) -> Iterator[ReplayServer]:
    # VCR.py loads its cassette in the client's process before the first call; the client measures how long that takes.
    """Answer from a VCR.py cassette."""
    url = f"https://localhost:{setup.port}/json"
    yield ReplayServer(started_ms=0.0, options={"url": url, "cassette": str(cassette), "mode": "none"})


@contextmanager
def playhead(bundle: Path, setup: BenchSetup, name: str) -> Iterator[ReplayServer]:
    """Start a Playhead worker that replays a bundle."""
    began = time.perf_counter()
    worker = setup.start_worker(name, mode="replay", replay=[str(bundle)])
    started = (time.perf_counter() - began) * 1e3
    assert worker.process is not None
    try:
        yield ReplayServer(
            started_ms=started,
            options={"proxy": f"http://{name}:x@127.0.0.1:{worker.port}", "ca": worker.ca},
            pid=worker.process.pid,
        )
    finally:
        worker.process.stop()


@contextmanager
def mitmdump(flows: Path, setup: BenchSetup) -> Iterator[ReplayServer]:
    """Start mitmdump with its server replay."""
    with _mitmdump(setup, "--server-replay", str(flows), "--set", "server_replay_extra=kill") as ready:
        yield ready


@contextmanager
def wiremock(mappings: Path, jar: Path) -> Iterator[ReplayServer]:
    """Start WireMock with stub mappings."""
    port = peers.free()
    line = ["java", "-jar", str(jar), "--port", str(port), "--root-dir", str(mappings), "--disable-banner"]
    began = time.perf_counter()
    with peers.server([*line, "--no-request-journal"], port) as pid:
        yield ReplayServer(
            started_ms=(time.perf_counter() - began) * 1e3, options={"url": f"http://127.0.0.1:{port}/json"}, pid=pid
        )


@contextmanager
def _mitmdump(setup: BenchSetup, *more: str) -> Iterator[ReplayServer]:
    began = time.perf_counter()
    with peers.mitmdump(setup, *more) as worker:
        options = {
            "url": f"https://localhost:{setup.port}/json",
            "proxy": f"http://127.0.0.1:{worker.port}",
            "ca": worker.ca,
        }
        yield ReplayServer(started_ms=(time.perf_counter() - began) * 1e3, options=options, pid=worker.pid)


# -- the recordings


def prepare_peers(setup: BenchSetup, calls: int, jar: Path | None) -> dict[str, Start]:
    """Record the calls with each tool, and return how each is started to replay them."""
    place = setup.directory / f"of-{calls}"
    place.mkdir()
    found: dict[str, Start] = {"direct": partial(direct, setup)}
    found["vcr.py"] = partial(vcr, _cassette(setup, calls, place / "cassette.yaml"), setup)
    found["mitmdump"] = partial(mitmdump, _flows(setup, calls, place / "flows"), setup)
    if jar is not None:
        found["wiremock"] = partial(wiremock, _mappings(calls, place / "wiremock"), jar)
    found[OURS] = partial(playhead, _bundle(setup, calls), setup, f"replaying-{calls}")
    return found


def _cassette(setup: BenchSetup, calls: int, place: Path) -> Path:
    """Record the first call with VCR.py and write the others with its own serializer.

    VCR.py compares each request with all that it has recorded, also while it records.
    """
    ask_all(setup, 1, {"url": f"https://localhost:{setup.port}/json", "cassette": str(place), "mode": "all"})
    requests, responses = FilesystemPersister.load_cassette(place, yamlserializer)
    questions, answers = Bodies(QUESTION, seed=1), Bodies(2048, seed=2)
    many = {"requests": requests * calls, "responses": responses * calls}
    for number in range(1, calls):
        many["requests"][number], many["responses"][number] = copy(requests[0]), deepcopy(responses[0])
        many["requests"][number].body = questions[number]
        many["responses"][number]["body"]["string"] = answers[number]
    FilesystemPersister.save_cassette(place, many, yamlserializer)
    return place


def _flows(setup: BenchSetup, calls: int, place: Path) -> Path:
    with _mitmdump(setup, "-w", str(place)) as ready:
        ask_all(setup, calls, ready.options)
    return place


def _mappings(calls: int, place: Path) -> Path:
    (place / "mappings").mkdir(parents=True)
    questions, answers = Bodies(QUESTION, seed=1), Bodies(2048, seed=2)
    stubs = [
        {
            "request": {
                "method": "POST",
                "urlPath": "/json",
                "bodyPatterns": [{"equalToJson": questions[number].decode()}],
            },
            "response": {
                "status": 200,
                "headers": {"Content-Type": "application/json"},
                "body": answers[number].decode(),
            },
        }
        for number in range(calls)
    ]
    (place / "mappings" / "all.json").write_text(json.dumps({"mappings": stubs}))
    return place


def _bundle(setup: BenchSetup, calls: int) -> Path:
    name = f"recorded-{calls}"
    worker = setup.start_worker(name)
    store_server, api = setup.start_store_server(name)
    assert worker.process is not None
    ask_all(setup, calls, {"proxy": f"http://{name}:x@127.0.0.1:{worker.port}", "ca": worker.ca})
    api.get(f"/runs/{name}/calls", settled="true", limit=1)
    bundle = setup.directory / f"{name}.jsonl"
    with bundle.open("wb") as file:
        file.writelines(api.stream_bytes(f"/runs/{name}/bundle"))
    worker.process.stop()
    store_server.stop()
    return bundle


# -- measuring


def measure_engine(setup: BenchSetup, engine: str, start: Start, calls: int, every: int, number: int) -> Row:
    """Start a tool, send every `every`-th request once, and stop it."""
    many = len(range(0, calls, every))
    with start() as ready:
        before = cpu(ready.pid) if ready.pid else 0.0
        figures = ask_all(setup, calls, {**ready.options, "every": every})
        used = cpu(ready.pid) - before if ready.pid else None
        size = rss(ready.pid) if ready.pid else figures["rss_mib"]
    return Row(
        engine=engine,
        workload=f"{calls} calls",
        unit="call",
        round=number,
        n=many,
        per_s=many / figures["seconds"],
        mean_ms=figures["seconds"] / many * 1e3,
        p50_ms=figures["p50_ms"],
        p99_ms=figures["p99_ms"],
        rss_mib=size,
        detail={
            "start_ms": ready.started_ms + figures["load_ms"],
            "client_cpu_us": figures["cpu"] / many * 1e6,
            **({} if used is None else {"server_cpu_us": used / many * 1e6}),
        },
    )


def compare_peers(rows: list[Row]) -> Iterator[tuple[str, Spread]]:
    """Yield the ratio of each tool's time for a call to Playhead's, round by round."""
    for workload in dict.fromkeys(row.workload for row in rows):
        times = {(row.engine, row.round): row.mean_ms or 0.0 for row in rows if row.workload == workload}
        rounds = sorted({number for _, number in times})
        for engine in dict.fromkeys(engine for engine, _ in times if engine not in (OURS, "direct")):
            pairs = [times[engine, number] / times[OURS, number] for number in rounds]
            yield f"time of a call of {engine} over {OURS}, {workload}", Spread.of(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay_peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure for less than a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="send only every Nth request: VCR.py takes minutes for all of 2,000",
    )
    parser.add_argument("--wiremock", type=Path, metavar="JAR", help="wiremock-standalone-*.jar; needs Java")
    arguments = parser.parse_args()
    if arguments.wiremock and not which("java"):
        parser.error("WireMock needs Java on the PATH")
    rounds, sizes = (2, [20, 200]) if arguments.quick else (arguments.rounds, arguments.sizes)
    rows: list[Row] = []
    began = machine()
    with open_bench_setup() as setup:
        for calls in sizes:
            engines = prepare_peers(setup, calls, arguments.wiremock)
            for number in range(rounds):
                for engine in list(engines)[:: 1 if number % 2 else -1]:
                    rows.append(measure_engine(setup, engine, engines[engine], calls, arguments.every, number))
                    if arguments.json:
                        print_json(rows[-1])
    finish(rows, began, compare_peers(rows), as_json=arguments.json)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
