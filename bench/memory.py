"""What the door keeps in memory: `python -m bench.memory [--quick] [--json] [--calls N]`.

First what 200 open streams at one event a second add to a fresh door, then its size (and the keeper's) after each tenth
of 100,000 calls. Beside ours the bare engine.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.figures import Row, finish, machine, print_json
from bench.recording import OURS, PEER
from bench.stage import Door, Stage, staged

STREAMS = 200
CHUNKS = 10


def streams(stage: Stage, number: int, seconds: float) -> Iterator[Row]:
    """Open streams on fresh doors: what was once used stays with a process."""
    fresh: Mapping[str, Callable[[], Door]] = {
        PEER: lambda: stage.bare(f"bare-{number}"),
        OURS: lambda: stage.ours(f"streams-{number}"),
    }
    for engine, start in fresh.items():
        door = start()
        # The first connections load and build what is needed once.
        stage.ask(door, seconds=1.0)
        what: dict[str, Any] = {"workload": "events", "connections": STREAMS, "rate": 1, "warm": 1.0}
        found = stage.ask(door, seconds=seconds, **what)
        empty, full = (sizes["door"] for sizes in found["rss"])
        detail = {"kib_per_stream": (full - empty) * 1024 / STREAMS}
        yield _row(engine, "streams", number, found, detail)
        assert door.process is not None
        door.process.stop()


def calls(stage: Stage, total: int) -> Iterator[Row]:
    """Calls without end; the size of the processes after each chunk."""
    keeper, _ = stage.keeper("calls")
    doors = {PEER: stage.bare("calls-bare"), OURS: stage.ours("calls")}
    for number in range(CHUNKS):
        for engine, door in doors.items():
            pids = {"keeper": keeper.pid} if engine == OURS else {}
            found = stage.ask(door, calls=total // CHUNKS, seconds=600.0, warm=0.0, pids=pids)
            yield _row(engine, "calls", number, found, {f"{name}_mib": size for name, size in found["rss"][1].items()})


def _row(engine: str, workload: str, number: int, found: Mapping[str, Any], detail: Mapping[str, float]) -> Row:
    return Row(
        engine=engine,
        workload=workload,
        unit="stream" if workload == "streams" else "call",
        round=number,
        n=found["n"],
        per_s=found["n"] / found["seconds"],
        cpu_us=found["cpu"]["door"] / found["n"] * 1e6,
        mean_ms=found["mean_ms"],
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        rss_mib=found["rss"][1]["door"],
        detail=detail,
    )


def measured(stage: Stage, rounds: int, seconds: float, total: int) -> Iterator[Row]:
    """Both, one after the other."""
    for number in range(rounds):
        yield from streams(stage, number, seconds)
    yield from calls(stage, total)


def growth(rows: list[Row]) -> Iterator[tuple[str, float]]:
    """MiB that a process grew by from the second tenth to the last: the first fills what stays."""
    for engine in (PEER, OURS):
        found = [row.detail for row in rows if row.workload == "calls" and row.engine == engine and row.detail]
        for name in found[0]:
            yield f"{name} of {engine} grew from the second tenth to the last", found[-1][name] - found[1][name]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, within a minute")
    parser.add_argument("--json", action="store_true", help="one row a line")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="of the streams")
    told = parser.parse_args()
    rounds, seconds, total = (1, 4.0, 4000) if told.quick else (told.rounds, 20.0, told.calls)
    rows: list[Row] = []
    began = machine()
    with staged() as stage:
        for row in measured(stage, rounds, seconds, total):
            rows.append(row)
            if told.json:
                print_json(row)
    finish(rows, began, growth(rows), as_json=told.json)


if __name__ == "__main__":
    main()
