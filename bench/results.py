"""The results of `bench.engines`: for each engine and workload the medians of the rounds, with every round.

A result is one line of JSON that contains the machine and the date. `bench.table` and `bench.plot` read these lines.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.figures import Row, Spread
from bench.workloads import WORKLOADS

FIGURES: Final = ("cpu_us", "mean_ms", "p50_ms", "p99_ms")

KEPT_UP: Final = 0.97
"""The least part of a stream's events that must have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One engine under one workload."""

    engine: str
    workload: str
    unit: str
    cpu_us: float | None = None
    """User and system time of the engine's process for each unit. This and the following are medians of the rounds."""

    p50_ms: float | None = None
    p99_ms: float | None = None
    n: int = 0
    """The number of units in all rounds."""

    rounds: int = 0
    per_s: float | None = None
    spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The lowest and highest of the rounds."""

    each: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The values of every round, for ratios of figures that were measured side by side."""

    why: str | None = None
    """The reason why there are no figures."""

    machine: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(asdict(self))

    def over(self, figure: str) -> Spread | None:
        """Return the spread of one figure over the rounds."""
        return Spread.of(self.each[figure]) if self.each.get(figure) else None


def results(rows: Sequence[Row], machine: Mapping[str, Any]) -> Iterator[Result]:
    """Summarize the rounds of each engine and workload, in the order of their first row."""
    for engine, workload in dict.fromkeys((row.engine, row.workload) for row in rows):
        found = [row for row in rows if (row.engine, row.workload) == (engine, workload)]
        each = _each(found)
        over = {name: Spread.of(values) for name, values in each.items()}
        yield Result(
            engine=engine,
            workload=workload,
            unit=found[0].unit,
            cpu_us=_median(over, "cpu_us"),
            p50_ms=_median(over, "p50_ms"),
            p99_ms=_median(over, "p99_ms"),
            per_s=_median(over, "per_s"),
            n=sum(row.n for row in found),
            rounds=len(found),
            spread={name: [spread.low, spread.high] for name, spread in over.items()},
            each=each,
            machine=machine,
        )


def _median(over: Mapping[str, Spread], name: str) -> float | None:
    return over[name].median if name in over else None


def _each(rows: Sequence[Row]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        figures = {name: getattr(row, name) for name in (*FIGURES, "per_s")} | dict(row.detail or {})
        for name, value in figures.items():
            if value is not None:
                columns.setdefault(name, []).append(round(value, 4))
    return columns


def lagging(result: Result) -> str | None:
    """Return why the figures of events are not valid: fewer arrived than were due, and delayed events are sent in
    batches.
    """
    requested_rate = WORKLOADS[result.workload].events_a_second
    if requested_rate is None or result.per_s is None or result.per_s >= KEPT_UP * requested_rate:
        return None
    return f"{result.per_s:,.0f} of {requested_rate:,.0f} events a second came through: too much for it, or for the machine"


def read(lines: Iterable[str]) -> list[Result]:
    """Read results from lines of JSON. Other lines are skipped."""
    documents = (json.loads(line) for line in lines if line.startswith("{"))
    return [Result(**found) for found in documents if "engine" in found and "each" in found]


# -- what was promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A promised limit of a figure, and its measured value."""

    description: str
    goal: float
    least: bool = False
    """Whether the limit is a minimum."""

    found: Spread
    spelled: str = ".2f"

    @property
    def is_met(self) -> bool:
        return self.found.median >= self.goal if self.least else self.found.median <= self.goal


def targets(all_results: Sequence[Result]) -> Iterator[Target]:
    """Yield every target that these results can decide."""
    # A result with a reservation settles nothing.
    by_workload = {(result.engine, result.workload): result for result in all_results if not result.why}
    for description, ours, peer, workload, goal, least in RATIOS:
        if ratio := _ratio_by_round(by_workload.get((ours, workload)), by_workload.get((peer, workload)), "cpu_us"):
            yield Target(description=f"{description}, {workload}", goal=goal, least=least, found=ratio)
    for description, ours, peer, workload, figure, goal in DELAYS:
        if more := _ratio_by_round(
            by_workload.get((ours, workload)), by_workload.get((peer, workload)), figure, added=True
        ):
            yield Target(description=description, goal=goal, found=more)
    for description, engine, workload, figure, goal in COSTS:
        if (result := by_workload.get((engine, workload))) and (spread := result.over(figure)):
            yield Target(description=description, goal=goal, found=spread, spelled=".0f")
    for result in all_results:
        if (result.engine, result.workload) == ("lane-record", "sse400"):
            yield from _throughput_targets(result)


def _throughput_targets(streams: Result) -> Iterator[Target]:
    """Yield what arrived through one worker, and what would arrive if it had a whole core."""
    used, came = streams.over("cpu_us"), streams.over("per_s")
    if used and came:
        description = "events a second that came through one recording worker, of 20,000 (sse400)"
        # Windows end between two events.
        yield Target(description=description, goal=19_900, least=True, found=came, spelled=".0f")
        description = "the same if it had all of a core: a second over the CPU for each"
        most = Spread(1e6 / used.median, 1e6 / used.high, 1e6 / used.low)
        yield Target(description=description, goal=20_000, least=True, found=most, spelled=".0f")


RATIOS: Final = (
    ("CPU of lane-record over nginx", "lane-record", "nginx", "small", 2.0, False),
    ("CPU of lane-record over nginx", "lane-record", "nginx", "sse50", 1.6, False),
    ("CPU of lane-record over nginx", "lane-record", "nginx", "sse200", 1.6, False),
    ("CPU of lane-record over nginx", "lane-record", "nginx", "sse400", 1.6, False),
    ("CPU of mitmproxy-bare over lane-record", "mitmproxy-bare", "lane-record", "small", 15.0, True),
    ("CPU of hoverfly over lane-record", "hoverfly", "lane-record", "small", 8.0, True),
    ("CPU of lane-record over mitmproxy-bare", "lane-record", "mitmproxy-bare", "sse50", 1.25, False),
    ("CPU of mitmproxy-record over mitmproxy-bare", "mitmproxy-record", "mitmproxy-bare", "small", 1.25, False),
    ("CPU of mitmproxy-record over mitmproxy-bare", "mitmproxy-record", "mitmproxy-bare", "small-paced", 1.25, False),
    ("CPU of mitmproxy-record over mitmproxy-bare", "mitmproxy-record", "mitmproxy-bare", "sse50", 1.25, False),
)
PACED: Final = "ms that recording adds to a call's p50 at 100 a second"
EVENTS: Final = "ms that {} adds to an event's mean delay (sse50)"
DELAYS: Final = (
    (PACED, "lane-record", "direct", "small-paced", "p50_ms", 0.3),
    (EVENTS.format("lane-record"), "lane-record", "direct", "sse50", "mean_ms", 1.0),
    (EVENTS.format("mitmproxy-record"), "mitmproxy-record", "direct", "sse50", "mean_ms", 1.0),
)
COSTS: Final = (
    ("CPU µs of a replayed call that did not change", "lane-replay", "replay", "cpu_us", 40.0),
    (
        "CPU µs of a small call recorded to its rows: worker, store server and Postgres",
        "lane-record-stored",
        "small",
        "cpu_us",
        1000.0,
    ),
)


def _ratio_by_round(ours: Result | None, peer: Result | None, figure: str, *, added: bool = False) -> Spread | None:
    """Return the ratio of two results in each round, or with `added` their difference."""
    if ours is None or peer is None:
        return None
    pairs = list(zip(ours.each.get(figure, ()), peer.each.get(figure, ()), strict=False))
    found = [mine - theirs if added else mine / theirs for mine, theirs in pairs]
    return Spread.of(found) if found else None
