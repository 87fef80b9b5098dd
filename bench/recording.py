"""What recording costs at the door: `python -m bench.recording [--quick] [--json] [--rounds N] [--seconds S]`.

Three workloads for each engine, in alternating order, round after round: calls as fast as 32 connections allow (CPU for
each), the same calls at a modest rate (delay), and 50 streams of 50 events a second (CPU and delay for each). The keeper
does not run: what is measured is the door.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bench.figures import Row, Spread, added, finish, machine, print_json, ratios
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
        "sse": ("event", {"workload": "events", "connections": 50, "rate": 50, "warm": 1.0}),
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


def measure(stage: Stage, doors: Sequence[Door], workload: str, number: int, seconds: float, **more: Any) -> list[Row]:
    """One round of one workload. The order turns round, so that neither engine always goes first."""
    order = doors if number % 2 else doors[::-1]
    unit, what = WORKLOADS[workload]
    return [_row(door, workload, unit, number, stage.ask(door, seconds=seconds, **what, **more)) for door in order]


def _row(door: Door, workload: str, unit: str, number: int, found: Mapping[str, Any]) -> Row:
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


def compared(rows: Sequence[Row]) -> Iterator[tuple[str, Spread]]:
    """What the engines cost beside the peer, and what they add to no door at all."""
    for workload in dict.fromkeys(row.workload for row in rows):
        for engine in dict.fromkeys(row.engine for row in rows if row.engine != "direct"):
            if engine != PEER and (ratio := ratios(rows, workload, engine, PEER)):
                budget = f" (budget {BUDGET})" if engine == OURS else ""
                yield f"CPU of {engine} over {PEER}, {workload}{budget}", ratio
            for field in ("mean_ms", "p50_ms", "p99_ms") if workload != "json" else ():
                if more := added(rows, workload, engine, field):
                    yield f"{field} added by {engine}, {workload}", more


def main() -> None:
    told = options().parse_args()
    rounds, seconds = (2, 1.0) if told.quick else (told.rounds, told.seconds)
    rows: list[Row] = []
    began = machine()
    with staged() as stage:
        doors = [ENGINES[name](stage) for name in told.engines]
        for number in range(rounds):
            for workload in told.workloads:
                found = measure(stage, doors, workload, number, seconds)
                rows += found
                for row in found if told.json else ():
                    print_json(row)
    finish(rows, began, compared(rows), as_json=told.json)


if __name__ == "__main__":
    main()
