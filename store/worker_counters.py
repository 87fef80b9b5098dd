"""What workers have counted: each keeps a file of it beside its spool, and the store server adds them up for `/metrics`.

A counter is named `metric/value`, after the one label that its metric has. What a killed worker counted in its last second is
lost; what the workers of spools that are gone have counted is kept while the store server lives, so that no counter goes back.
"""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

NAME: Final = "counts.json"


class Metric(NamedTuple):
    """A family of counters."""

    label: str
    help: str
    values: tuple[str, ...] = ()
    """Those that are shown before anything was counted."""


METRICS: Final = {
    "connections": Metric(
        "to",
        "Clients' connections, by what took them; one that is handed over in its middle counts twice",
        ("lane_http1", "lane_http2", "mitmproxy", "tunnel"),
    ),
    "handed_over": Metric("reason", "Connections that the lane has handed to mitmproxy, by why"),
    "exchanges": Metric("outcome", "Exchanges that were recorded, by how they ended", ("completed",)),
    "answers": Metric("standing", "Requests that a recording was asked for", ("replayed", "edited", "live", "miss")),
    "errors": Metric("code", "Requests that a worker answered with a problem of its own, by its code"),
}


def write(spool: Path, counts: Mapping[str, int]) -> None:
    """Leave what a worker has counted beside its spool, whole at any time. Raises OSError."""
    part = spool / f"{NAME}.part"
    part.write_text(json.dumps(counts))
    part.replace(spool / NAME)


class WorkerCounters:
    """All that the workers of a data directory have counted, since the store server began."""

    def __init__(self, spools: Path) -> None:
        self._spools = spools
        self._ended: Counter[str] = Counter()
        self._lock = threading.Lock()

    def ended(self, spool: Path) -> None:
        """A worker is gone, and its spool is about to be."""
        with self._lock:
            self._ended += _read(spool / NAME)
            (spool / NAME).unlink(missing_ok=True)

    def total(self) -> Counter[str]:
        """By now."""
        with self._lock:
            return sum(map(_read, self._spools.glob(f"*/{NAME}")), self._ended.copy())


def _read(path: Path) -> Counter[str]:
    try:
        return Counter(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        # It is not synced, so a machine that went down may leave it empty.
        return Counter()


def told(counts: Mapping[str, int]) -> list[str]:
    """Counters as lines of Prometheus's text format."""
    lines = []
    for name, metric in METRICS.items():
        full = f"playhead_proxy_{name}_total"
        known = dict.fromkeys(metric.values, 0)
        seen = {key.removeprefix(f"{name}/"): n for key, n in counts.items() if key.startswith(f"{name}/")}
        lines += [f"# HELP {full} {metric.help}.", f"# TYPE {full} counter"]
        lines += [f'{full}{{{metric.label}="{value}"}} {n}' for value, n in (known | seen).items()]
    return lines
