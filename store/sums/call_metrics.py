"""Count the calls that are stored, by kind, provider and model, for `/metrics`: a consumer of the feed.

The counts begin with the store server. Each exchange counts, also one that is tried again. Names of models come from clients, so
only so many are counted by their names; all others count as `other`.
"""

import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

import asyncpg

from calls.model import Usage
from store.database.connection import Database
from store.feed.entries import CallStored, FeedEntry, decode_entries
from store.feed.feed import FeedRow

MOST_SERIES: Final = 100
"""Kinds, providers and models that are counted by their names: the first ones since the start."""

LONGEST_NAME: Final = 100
OTHER: Final = "other"

BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""The upper bounds of the latencies' buckets, in seconds."""


MOST_ROWS: Final = 10_000
"""Rows of the feed that are counted before there is a position."""


class Series(NamedTuple):
    """What is counted together."""

    kind: str
    provider: str
    model: str


@dataclass(slots=True)
class _Latencies:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, nanoseconds: int | None) -> None:
        if nanoseconds is not None:
            self.counts[bisect_left(BOUNDS, nanoseconds / 1e9)] += 1
            self.seconds += nanoseconds / 1e9


@dataclass(slots=True)
class _Counts:
    calls: int = 0
    errors: int = 0
    cost: Decimal = Decimal(0)
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Usage.__slots__, 0))
    first_byte: _Latencies = field(default_factory=_Latencies)
    duration: _Latencies = field(default_factory=_Latencies)

    def add(self, call: CallStored) -> None:
        self.calls += 1
        self.errors += call.is_error
        self.cost += Decimal(call.cost_usd or 0)
        for name in Usage.__slots__:
            self.tokens[name] += getattr(call, name) or 0
        self.first_byte.add(call.first_byte)
        self.duration.add(call.duration)


class CallMetrics:
    """The consumer. Its position is stored, so calls that are stored while it does not run are counted once it does."""

    name = "metrics/1"

    def __init__(self, database: Database, started_at: int) -> None:
        """`started_at`: nanoseconds since the Unix epoch, from which calls are counted that were stored before it is asked."""
        self._database = database
        self._started_at = started_at
        self._counts: dict[Series, _Counts] = {}
        self._counted: set[uuid.UUID] = set()
        """Rows of the feed that were counted before there was a position."""

    async def process(self, _: asyncpg.Connection, __: str, rows: Sequence[FeedRow]) -> None:
        """Count the calls of all projects."""
        for row in rows:
            if row.position.row not in self._counted:
                self._count_entries(row.entries)

    async def rebuild(self, project: str) -> AsyncIterator[None]:
        """Count what was stored since the start: the first calls of a project come before its first position."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(NEW_ROWS, project, self._started_at, MOST_ROWS)
        for row in rows:
            self._counted.add(row["id"])
            self._count_entries(decode_entries(row["entries"]))
        yield

    def _count_entries(self, entries: Iterable[FeedEntry]) -> None:
        for entry in entries:
            # A call that is moved to another run was counted before.
            if isinstance(entry, CallStored) and entry.previous_run is None:
                self.count(entry)

    def count(self, call: CallStored) -> None:
        """Count a call."""
        self._counts_of(_series(call)).add(call)

    def _counts_of(self, series: Series) -> _Counts:
        if (counts := self._counts.get(series)) is None:
            if len(self._counts) >= MOST_SERIES:
                series = Series(series.kind, OTHER, OTHER)
            counts = self._counts.setdefault(series, _Counts())
        return counts

    def lines(self) -> Iterator[str]:
        """Yield lines in the text format of Prometheus."""
        counts_by_series = sorted(self._counts.items())
        for name, what, attribute in (
            ("calls_total", "Exchanges of calls that were stored since the start", "calls"),
            ("call_errors_total", "Exchanges of calls that failed", "errors"),
            ("call_cost_usd_total", "What is known of their cost, in US dollars", "cost"),
        ):
            yield from _head(name, what, "counter")
            yield from (
                f"playhead_{name}{_labels(one)} {getattr(counts, attribute)}" for one, counts in counts_by_series
            )
        yield from _head("call_tokens_total", "Their tokens, as each provider counts them", "counter")
        for one, counts in counts_by_series:
            for name, count in counts.tokens.items():
                yield f"playhead_call_tokens_total{_labels(one, {'type': name.removesuffix('_tokens')})} {count}"
        yield from _histogram(
            "call_first_byte_seconds",
            "Time to their first byte",
            {one: counts.first_byte for one, counts in counts_by_series},
        )
        yield from _histogram(
            "call_duration_seconds", "Time to their end", {one: counts.duration for one, counts in counts_by_series}
        )


def _series(call: CallStored) -> Series:
    # Providers of tools are hosts, of which there may be any number.
    if call.kind != "model":
        return Series(call.kind, "", "")
    return Series(call.kind, call.provider[:LONGEST_NAME], (call.model or "")[:LONGEST_NAME])


def _histogram(name: str, what: str, latencies_by_series: Mapping[Series, _Latencies]) -> Iterator[str]:
    yield from _head(name, what, "histogram")
    for one, latencies in latencies_by_series.items():
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), latencies.counts, strict=True):
            total += count
            yield f"playhead_{name}_bucket{_labels(one, {'le': bound})} {total}"
        yield f"playhead_{name}_sum{_labels(one)} {latencies.seconds:.6f}"
        yield f"playhead_{name}_count{_labels(one)} {total}"


def _head(name: str, what: str, kind: str) -> Iterator[str]:
    yield f"# HELP playhead_{name} {what}."
    yield f"# TYPE playhead_{name} {kind}"


def _labels(series: Series, more: Mapping[str, str] | None = None) -> str:
    labels = {"kind": series.kind, "provider": series.provider, "model": series.model, **(more or {})}
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


NEW_ROWS = "SELECT id, entries FROM feed WHERE project = $1 AND stored_at >= $2 LIMIT $3"
