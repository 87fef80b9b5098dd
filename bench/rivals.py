"""Replay beside others that replay: `python -m bench.rivals [--quick] [--json] [--rounds N] [--sizes 20 200 2000] [--every N]`.

The same distinct JSON calls, told apart by their bodies, are recorded by each and then asked once each, in order, by the same
client (`requests`, one connection), with nobody behind it: VCR.py in the client's own process; mitmproxy's server replay;
WireMock with `--wiremock JAR` (npm ships it: build/*.jar of the package `wiremock`), over plain HTTP; and our worker, from a
bundle. Start: from nothing to ready to answer. `direct` is the upstream itself, and tells what the client costs.
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
from bench.figures import Row, Spread, cpu, finish, machine, print_json, rss
from bench.load import HOST
from bench.stage import QUESTION, Stage, open_stage
from bench.wire import MeasurementFailed
from bench.words import Bodies

OURS = "playhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Something that answers, and what the client is to be told to reach it."""

    started_ms: float
    options: Mapping[str, Any]
    pid: int | None = None


type Start = Callable[[], Any]
"""A context with what is ready to answer."""


def ask_all(stage: Stage, calls: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for every call once, and say what it took."""
    line = {"calls": calls, "size": QUESTION, "url": f"https://{HOST}/json", "ca": stage.ca, **options}
    ran = subprocess.run(
        [sys.executable, "-m", "bench.asker"], input=json.dumps(line), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise MeasurementFailed(f"the client failed: {ran.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


# -- the four


@contextmanager
def direct(stage: Stage) -> Iterator[Ready]:
    yield Ready(started_ms=0.0, options={"url": f"https://localhost:{stage.port}/json"}, pid=stage.upstream.pid)


@contextmanager
def vcr(cassette: Path, stage: Stage) -> Iterator[Ready]:
    # It loads its cassette in the client's process, before the first call: the client says how long that took.
    url = f"https://localhost:{stage.port}/json"
    yield Ready(started_ms=0.0, options={"url": url, "cassette": str(cassette), "mode": "none"})


@contextmanager
def playhead(bundle: Path, stage: Stage, name: str) -> Iterator[Ready]:
    began = time.perf_counter()
    worker = stage.ours(name, mode="replay", replay=[str(bundle)])
    started = (time.perf_counter() - began) * 1e3
    assert worker.process is not None
    try:
        yield Ready(
            started_ms=started,
            options={"proxy": f"http://{name}:x@127.0.0.1:{worker.port}", "ca": worker.ca},
            pid=worker.process.pid,
        )
    finally:
        worker.process.stop()


@contextmanager
def mitmdump(flows: Path, stage: Stage) -> Iterator[Ready]:
    with _mitmdump(stage, "--server-replay", str(flows), "--set", "server_replay_extra=kill") as ready:
        yield ready


@contextmanager
def wiremock(mappings: Path, jar: Path) -> Iterator[Ready]:
    port = peers.free()
    line = ["java", "-jar", str(jar), "--port", str(port), "--root-dir", str(mappings), "--disable-banner"]
    began = time.perf_counter()
    with peers.server([*line, "--no-request-journal"], port) as pid:
        yield Ready(
            started_ms=(time.perf_counter() - began) * 1e3, options={"url": f"http://127.0.0.1:{port}/json"}, pid=pid
        )


@contextmanager
def _mitmdump(stage: Stage, *more: str) -> Iterator[Ready]:
    began = time.perf_counter()
    with peers.mitmdump(stage, *more) as worker:
        options = {
            "url": f"https://localhost:{stage.port}/json",
            "proxy": f"http://127.0.0.1:{worker.port}",
            "ca": worker.ca,
        }
        yield Ready(started_ms=(time.perf_counter() - began) * 1e3, options=options, pid=worker.pid)


# -- what each replays


def rivals(stage: Stage, calls: int, jar: Path | None) -> dict[str, Start]:
    """The same calls, recorded by each."""
    place = stage.directory / f"of-{calls}"
    place.mkdir()
    found: dict[str, Start] = {"direct": partial(direct, stage)}
    found["vcr.py"] = partial(vcr, _cassette(stage, calls, place / "cassette.yaml"), stage)
    found["mitmdump"] = partial(mitmdump, _flows(stage, calls, place / "flows"), stage)
    if jar is not None:
        found["wiremock"] = partial(wiremock, _mappings(calls, place / "wiremock"), jar)
    found[OURS] = partial(playhead, _bundle(stage, calls), stage, f"replaying-{calls}")
    return found


def _cassette(stage: Stage, calls: int, place: Path) -> Path:
    """The first call recorded by VCR.py, the others written beside it by its own serializer: it compares each request with all
    that it has recorded, also while it records."""
    ask_all(stage, 1, {"url": f"https://localhost:{stage.port}/json", "cassette": str(place), "mode": "all"})
    requests, responses = FilesystemPersister.load_cassette(place, yamlserializer)
    questions, answers = Bodies(QUESTION, seed=1), Bodies(2048, seed=2)
    many = {"requests": requests * calls, "responses": responses * calls}
    for number in range(1, calls):
        many["requests"][number], many["responses"][number] = copy(requests[0]), deepcopy(responses[0])
        many["requests"][number].body = questions[number]
        many["responses"][number]["body"]["string"] = answers[number]
    FilesystemPersister.save_cassette(place, many, yamlserializer)
    return place


def _flows(stage: Stage, calls: int, place: Path) -> Path:
    with _mitmdump(stage, "-w", str(place)) as ready:
        ask_all(stage, calls, ready.options)
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


def _bundle(stage: Stage, calls: int) -> Path:
    name = f"recorded-{calls}"
    worker = stage.ours(name)
    store_server, api = stage.store_server(name)
    assert worker.process is not None
    ask_all(stage, calls, {"proxy": f"http://{name}:x@127.0.0.1:{worker.port}", "ca": worker.ca})
    api.get(f"/runs/{name}/calls", settled="true", limit=1)
    bundle = stage.directory / f"{name}.jsonl"
    with bundle.open("wb") as file:
        file.writelines(api.stream_bytes(f"/runs/{name}/bundle"))
    worker.process.stop()
    store_server.stop()
    return bundle


# -- measuring


def measure_engine(stage: Stage, engine: str, start: Start, calls: int, every: int, number: int) -> Row:
    """Start it, ask for each `every`-th call once, stop it."""
    many = len(range(0, calls, every))
    with start() as ready:
        before = cpu(ready.pid) if ready.pid else 0.0
        figures = ask_all(stage, calls, {**ready.options, "every": every})
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


def compare_rivals(rows: list[Row]) -> Iterator[tuple[str, Spread]]:
    """Each rival's time for a call over ours, round by round, without what the client itself takes."""
    for workload in dict.fromkeys(row.workload for row in rows):
        times = {(row.engine, row.round): row.mean_ms or 0.0 for row in rows if row.workload == workload}
        rounds = sorted({number for _, number in times})
        for engine in dict.fromkeys(engine for engine, _ in times if engine not in (OURS, "direct")):
            pairs = [times[engine, number] / times[OURS, number] for number in rounds]
            yield f"time of a call of {engine} over {OURS}, {workload}", Spread.of(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rivals", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, within a minute")
    parser.add_argument("--json", action="store_true", help="one row a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="ask each Nth only: VCR.py takes minutes for all of 2,000"
    )
    parser.add_argument("--wiremock", type=Path, metavar="JAR", help="wiremock-standalone-*.jar; needs Java")
    arguments = parser.parse_args()
    if arguments.wiremock and not which("java"):
        parser.error("WireMock needs Java on the PATH")
    rounds, sizes = (2, [20, 200]) if arguments.quick else (arguments.rounds, arguments.sizes)
    rows: list[Row] = []
    began = machine()
    with open_stage() as stage:
        for calls in sizes:
            engines = rivals(stage, calls, arguments.wiremock)
            for number in range(rounds):
                for engine in list(engines)[:: 1 if number % 2 else -1]:
                    rows.append(measure_engine(stage, engine, engines[engine], calls, arguments.every, number))
                    if arguments.json:
                        print_json(rows[-1])
    finish(rows, began, compare_rivals(rows), as_json=arguments.json)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
