"""What recording costs at the door: `python -m bench.recording [--quick] [--json] [--rounds N] [--seconds S]`.

Three workloads for each engine, in alternating order, round after round: calls as fast as 32 connections allow (CPU for
each), the same calls at a modest rate (delay), and 50 streams of 50 events a second (CPU and delay for each). The keeper
does not run: what is measured is the door.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bench.figures import Row, added, machine, print_json, ratios, summed_up
from bench.stage import Door, Stage, staged

PEER = "mitmproxy-bare"
OURS = "mitmproxy-record"
BUDGET = 1.25
"""How much more CPU recording may cost."""

ENGINES: Mapping[str, Callable[[Stage], Door]] = MappingProxyType(
    {
        "direct": Stage.direct,
        PEER: Stage.bare,
        OURS: lambda stage: stage.ours(OURS),
        "mitmproxy-passthrough": lambda stage: stage.ours("mitmproxy-passthrough", mode="passthrough"),
    }
)

WORKLOADS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "json": ("call", {}),
        "json-paced": ("call", {"rate": 100.0}),
        "sse": ("event", {"workload": "events", "connections": 50, "rate": 50}),
    }
)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.recording", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, within a minute")
    parser.add_argument("--json", action="store_true", help="one row a line")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each window")
    parser.add_argument("--engines", nargs="+", default=["direct", PEER, OURS], choices=list(ENGINES))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    return parser


def measure(stage: Stage, doors: Sequence[Door], workload: str, number: int, seconds: float) -> list[Row]:
    """One round of one workload. The order turns round, so that neither engine always goes first."""
    order = doors if number % 2 else doors[::-1]
    return [_row(stage, door, workload, number, seconds) for door in order]


def _row(stage: Stage, door: Door, workload: str, number: int, seconds: float) -> Row:
    unit, what = WORKLOADS[workload]
    found = stage.ask(door, seconds=seconds, **what)
    used = found["cpu"].get("door")
    return Row(
        engine=door.name,
        workload=workload,
        unit=unit,
        round=number,
        n=found["n"],
        per_s=found["n"] / found["seconds"],
        cpu_us=used / found["n"] * 1e6 if used is not None else None,
        mean_ms=found["mean_ms"],
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
    )


def report(rows: Sequence[Row]) -> None:
    """For a person."""
    for field in ("per_s", "cpu_us", "mean_ms", "p50_ms", "p99_ms"):
        for (workload, engine), spread in summed_up(rows, field):
            print(f"{field:8} {workload:11} {engine:22} {spread:.2f}")
    for workload in dict.fromkeys(row.workload for row in rows):
        for engine in dict.fromkeys(row.engine for row in rows):
            _compare(rows, workload, engine)


def _compare(rows: Sequence[Row], workload: str, engine: str) -> None:
    if engine not in (PEER, "direct") and (ratio := ratios(rows, workload, engine, PEER)):
        verdict = "within" if ratio.median <= BUDGET else "BEYOND"
        print(f"CPU of {engine} over {PEER}, {workload}: {ratio:.2f} ({verdict} the budget of {BUDGET})")
    for field in ("mean_ms", "p50_ms", "p99_ms"):
        if engine != "direct" and workload != "json" and (more := added(rows, workload, engine, field)):
            print(f"added {field} of {engine}, {workload}: {more:.2f}")


def main() -> None:
    told = options().parse_args()
    rounds, seconds = (2, 1.0) if told.quick else (told.rounds, told.seconds)
    rows: list[Row] = []
    before = machine()
    with staged() as stage:
        doors = [ENGINES[name](stage) for name in told.engines]
        for number in range(rounds):
            for workload in told.workloads:
                rows += measure(stage, doors, workload, number, seconds)
                if told.json:
                    for row in rows[-len(doors) :]:
                        print_json(row)
    if told.json:
        print_json({"machine": before, "load_after": machine()["load"]})
    else:
        print(before, "load after:", machine()["load"])
        report(rows)


if __name__ == "__main__":
    main()
