"""Read the CPU and memory of processes, and summarize and print the rows of a benchmark."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one engine under one workload in one round."""

    engine: str
    workload: str
    unit: str
    """What is counted, such as a call or an event."""

    round: int
    n: int
    per_s: float
    cpu_us: float | None = None
    """User and system time of the worker for each unit; None where there is no worker."""

    mean_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    rss_mib: float | None = None
    detail: Mapping[str, float] | None = None
    """Further figures of this benchmark."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the range of its values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} [{self.low:{spec}}-{self.high:{spec}}]"


def cpu(pid: int) -> float:
    """Return the seconds of user and system time of a process, including threads that have ended."""
    # clock_getcpuclockid(3) of Linux: the process's own clock counts in nanoseconds, /proc/PID/stat in ticks of 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def cpu_with_children(pid: int) -> float:
    """Return the same for a process and its descendants, including those that have ended and were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children_seconds = (int(fields[13]) + int(fields[14])) / TICK
    return cpu(pid) + children_seconds + sum(map(_while_it_lives, children(pid)))


def _while_it_lives(child: int) -> float:
    """Return 0 for a process that has ended since it was listed: its parent has counted it."""
    try:
        return cpu_with_children(child)
    except OSError:
        return 0.0


def children(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def rss(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / (1 << 20)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of values in ascending order."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


FIELDS = ("per_s", "cpu_us", "mean_ms", "p50_ms", "p99_ms", "rss_mib")


def summed_up(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the spread of every figure over the rounds, by workload and engine."""
    for workload, engine in dict.fromkeys((row.workload, row.engine) for row in rows):
        found = [row for row in rows if (row.workload, row.engine) == (workload, engine)]
        for field in (*FIELDS, *(found[0].detail or ())):
            known = [value for row in found if (value := _figure(row, field)) is not None]
            if known:
                yield {"workload": workload, "engine": engine, "field": field, "spread": Spread.of(known)}


def _figure(row: Row, field: str) -> float | None:
    return row.detail.get(field) if row.detail and field in row.detail else getattr(row, field, None)


def finish(
    rows: Sequence[Row],
    began: Mapping[str, object],
    compared: Iterable[tuple[str, Spread | float]] = (),
    *,
    as_json: bool,
) -> None:
    """Print the spreads, the comparisons and the machine: the end of every benchmark."""
    for line in summed_up(rows):
        if as_json:
            print_json(line)
        else:
            sys.stdout.write("{workload:14} {engine:22} {field:13} {spread:.2f}\n".format(**line))
    for name, value in compared:
        if as_json:
            print_json({"compared": name, "value": value})
        else:
            sys.stdout.write(f"{name}: {value:.2f}\n")
    print_json({"machine": began, "load_after": os.getloadavg()[0]})


def print_json(what: object) -> None:
    """Print one line of JSON and flush it."""
    data = asdict(what) if isinstance(what, Row) else what
    sys.stdout.write(json.dumps(data, default=asdict) + "\n")
    sys.stdout.flush()


def machine() -> dict[str, object]:
    """Describe the machine and its load."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": unknown")
    return {
        "cpu": model.partition(": ")[2],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
