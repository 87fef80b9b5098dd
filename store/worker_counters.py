"""Add up the counters of the workers for `/metrics`. Each worker writes its counters to a file in its spool.

A counter is named `metric/value`, after the value of the metric's only label. The last second of a killed worker's counts is
lost. Counts of removed spools are kept as long as the store server runs, so that no counter decreases.
"""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

COUNTERS_FILE: Final = "counts.json"


class Metric(NamedTuple):
    """A family of counters."""

    label: str
    help: str
    values: tuple[str, ...] = ()
    """The values that are shown even with a count of zero."""


METRICS: Final = {
    "connections": Metric(
        "to",
        "Connections from clients, by what handled them; one that is handed over counts twice",
        ("lane_http1", "lane_http2", "mitmproxy", "tunnel"),
    ),
    "handed_over": Metric("reason", "Connections that the lane handed over to mitmproxy, by reason"),
    "exchanges": Metric("outcome", "Recorded exchanges, by outcome", ("completed",)),
    "answers": Metric(
        "standing", "Requests during replays, by how they were answered", ("replayed", "edited", "live", "miss")
    ),
    "errors": Metric(
        "code", "Requests that a worker answered with an error of its own, and handshakes that clients ended, by code"
    ),
}


def write_counters(spool: Path, counts: Mapping[str, int]) -> None:
    """Replace the file of a worker's counters atomically. Raises OSError."""
    part = spool / f"{COUNTERS_FILE}.part"
    part.write_text(json.dumps(counts))
    part.replace(spool / COUNTERS_FILE)


class WorkerCounters:
    """The sum of the counters of all workers of a data directory since the store server started."""

    def __init__(self, spools: Path) -> None:
        self._spools = spools
        self._retired: Counter[str] = Counter()
        self._lock = threading.Lock()

    def retire_spool(self, spool: Path) -> None:
        """Keep the counts of a spool that is about to be removed."""
        with self._lock:
            self._retired += _read_counters(spool / COUNTERS_FILE)
            (spool / COUNTERS_FILE).unlink(missing_ok=True)

    def total(self) -> Counter[str]:
        """The current sum."""
        with self._lock:
            return sum(map(_read_counters, self._spools.glob(f"*/{COUNTERS_FILE}")), self._retired.copy())


def _read_counters(path: Path) -> Counter[str]:
    try:
        return Counter(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        # The file is not synced, so it may be empty after a power failure.
        return Counter()


def prometheus_lines(counts: Mapping[str, int]) -> list[str]:
    """Format counters as lines of Prometheus's text format."""
    lines = []
    for name, metric in METRICS.items():
        full = f"playhead_proxy_{name}_total"
        zeros = dict.fromkeys(metric.values, 0)
        counted = {key.removeprefix(f"{name}/"): n for key, n in counts.items() if key.startswith(f"{name}/")}
        lines += [f"# HELP {full} {metric.help}.", f"# TYPE {full} counter"]
        lines += [f'{full}{{{metric.label}="{value}"}} {n}' for value, n in (zeros | counted).items()]
    return lines
