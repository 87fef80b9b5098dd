"""The CPU time that `bench.delay` spends on each call: in the worker's main thread and its other threads, the store server, Postgres.

A thread's time is that of its scheduler statistics, which count in nanoseconds what it was on a processor. It says more than a delay
does while the machine is busy: who waits for a processor spends nothing.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figures import children, cpu

PARTS: Final = ("worker's main thread", "worker's other threads", "store server", "Postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes of one proxy."""

    worker: int
    store_server: int
    postgres: int

    def read_cpu(self) -> list[float]:
        """Return the seconds that each of `PARTS` has had so far."""
        main = _thread_seconds(Path(f"/proc/{self.worker}/task/{self.worker}"))
        postgres = cpu(self.postgres) + sum(map(_seconds, children(self.postgres)))
        return [main, cpu(self.worker) - main, cpu(self.store_server), postgres]


def _thread_seconds(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def _seconds(pid: int) -> float:
    """Of a server process of Postgres; those that end take their time with them."""
    try:
        return cpu(pid)
    except OSError:
        return 0.0


def table(cpu_times: Mapping[str, Sequence[Sequence[float]]], title: str) -> list[str]:
    """Write the medians of each part over the turns, in µs a call, by proxy."""
    lines = [f"| {title} | {' | '.join(PARTS)} | together |", f"| --- |{' --- |' * (len(PARTS) + 1)}"]
    for name, turns in cpu_times.items():
        parts = [statistics.median(turn[part] for turn in turns) for part in range(len(PARTS))]
        together = statistics.median(map(sum, turns))
        lines.append(f"| {name} | {' | '.join(f'{part:.0f}' for part in [*parts, together])} |")
    return lines
