"""Read the CPU time that each call of `bench.delay` costs in the worker's main thread and its other threads, the store
server and Postgres.

The time of a thread is that of its scheduler statistics, in nanoseconds. On a busy machine it is more reliable than a
delay, because waiting for a processor is not included.
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
    """The processes of one arm."""

    worker: int
    store_server: int
    postgres: int

    def read_cpu(self) -> list[float]:
        """Return the seconds that each of `PARTS` has used so far."""
        main = _thread_seconds(Path(f"/proc/{self.worker}/task/{self.worker}"))
        postgres = cpu(self.postgres) + sum(map(_seconds, children(self.postgres)))
        return [main, cpu(self.worker) - main, cpu(self.store_server), postgres]


def _thread_seconds(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def _seconds(pid: int) -> float:
    """Return the seconds of a Postgres process. Those of a process that ends are lost."""
    try:
        return cpu(pid)
    except OSError:
        return 0.0


def table(cpu_times: Mapping[str, Sequence[Sequence[float]]], title: str) -> list[str]:
    """Format the median of each part over the turns, in µs a call, by arm."""
    lines = [f"| {title} | {' | '.join(PARTS)} | together |", f"| --- |{' --- |' * (len(PARTS) + 1)}"]
    for name, turns in cpu_times.items():
        parts = [statistics.median(turn[part] for turn in turns) for part in range(len(PARTS))]
        together = statistics.median(map(sum, turns))
        lines.append(f"| {name} | {' | '.join(f'{part:.0f}' for part in [*parts, together])} |")
    return lines
