"""Entries of the feed as events for clients: their names, their members in JSON, and the filters of events.

An event's id is the position of its entry, so a client that names the last one it has seen misses nothing and gets nothing twice.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Self, assert_never

import asyncpg
import msgspec

from store.feed.entries import (
    CallStored,
    FeedEntry,
    GapStored,
    ModelChanged,
    ReplayStored,
    RunBegan,
    RunChanged,
    RunDeleted,
    RunEnded,
)
from store.feed.feed import FeedPosition, FeedRow

type EventName = Literal["run.began", "run.ended", "run.changed", "run.deleted", "call", "gap", "replay", "drift"]


class InvalidEventId(ValueError):
    """The text is no id of an event."""


class EventId(NamedTuple):
    """The place of an event: a row of the feed, and one of its entries."""

    position: FeedPosition
    place: int

    @classmethod
    def parse(cls, words: str) -> Self:
        """Parse the text that `str` returned. Raises `InvalidEventId`."""
        try:
            transaction, row, place = words.split("-")
            if not (len(row) == 32 and transaction.isdecimal() and place.isdecimal() and words.isascii()):
                raise ValueError(words)
            event_id = cls(FeedPosition(int(transaction), uuid.UUID(row)), int(place))
        except ValueError:
            raise InvalidEventId(f"invalid event id {words[:80]!r}: use the id of an event of this API") from None
        if event_id.position.transaction >= 1 << 63:
            raise InvalidEventId(f"invalid event id {words[:80]!r}: use the id of an event of this API")
        return event_id

    def __str__(self) -> str:
        return f"{self.position.transaction}-{self.position.row.hex}-{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilters:
    """Filters of events. All given ones must fit; of several values, one. Those of calls let no other event pass."""

    types: Sequence[EventName] = ()
    runs: Sequence[str] = ()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """Labels of the run, which `pass_entry` does not know and `load_labelled_runs` looks up; None for any value."""

    other_labels: Sequence[tuple[str, str | None]] = ()
    """Labels that the run must not have."""

    kinds: Sequence[str] = ()
    providers: Sequence[str] = ()
    models: Sequence[str] = ()
    hosts: Sequence[str] = ()
    tools: Sequence[str] = ()
    operations: Sequence[str] = ()
    dialects: Sequence[str] = ()
    actors: Sequence[str] = ()
    statuses: Sequence[range] = ()
    error: bool | None = None
    min_cost: Decimal | None = None
    min_duration: int | None = None
    """Nanoseconds."""

    def pass_entry(self, entry: FeedEntry) -> bool:
        """Whether the entry fits."""
        if self.types and event_name(entry) not in self.types:
            return False
        if self.runs and not {entry.run, getattr(entry, "replay", entry.run)} & {*self.runs}:
            return False
        return self._pass_call(entry) if isinstance(entry, CallStored) else not self._are_of_calls

    @property
    def _are_of_calls(self) -> bool:
        values = (self.kinds, self.providers, self.models, self.hosts, self.tools, self.operations, self.dialects)
        others = (self.error, self.min_cost, self.min_duration)
        return any((*values, self.actors, self.statuses)) or any(value is not None for value in others)

    def _pass_call(self, call: CallStored) -> bool:
        own_tools = (call.operation, call.host) if call.kind == "tool" else ()
        is_among = (
            (self.kinds, (call.kind,)),
            (self.providers, (call.provider,)),
            (self.models, (call.model, call.model_returned)),
            (self.hosts, (call.host,)),
            (self.operations, (call.operation,)),
            (self.dialects, (call.dialect,)),
            (self.actors, (call.actor,)),
        )
        return (
            (
                not self.tools
                or any(_is_tool(tool, pattern) for tool in (*call.tools, *own_tools) for pattern in self.tools)
            )
            and all(
                not allowed_values or not set(allowed_values).isdisjoint(values) for allowed_values, values in is_among
            )
            and (not self.statuses or any(call.status in one for one in self.statuses))
            and self.error in (None, call.is_error)
            and (self.min_cost is None or Decimal(call.cost_usd or 0) >= self.min_cost)
            and (self.min_duration is None or (call.duration or 0) >= self.min_duration)
        )


def _is_tool(name: str, pattern: str) -> bool:
    return name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))


def new_events(row: FeedRow, after: EventId | None, filters: EventFilters) -> Iterator[tuple[EventId, FeedEntry]]:
    """Yield the entries of a row that follow an event and fit."""
    last_place = after.place if after is not None and after.position == row.position else -1
    for place, entry in enumerate(row.entries):
        if place > last_place and filters.pass_entry(entry):
            yield EventId(row.position, place), entry


async def load_labelled_runs(
    connection: asyncpg.Connection, project: str, runs: Sequence[str], filters: EventFilters
) -> set[str]:
    """Return those of the runs whose labels fit. A run that was deleted has none."""
    exact = msgspec.json.encode({name: value for name, value in filters.labels.items() if value is not None}).decode()
    pairs = [{name: value} for name, value in filters.other_labels if value is not None]
    others = [msgspec.json.encode(one).decode() for one in pairs]
    names = [name for name, value in filters.other_labels if value is None]
    rows = await connection.fetch(LABELLED, project, runs, exact, list(filters.labels), others, names)
    return {row["id"] for row in rows}


LABELLED = """
SELECT id FROM runs WHERE project = $1 AND id = ANY ($2::text[]) AND labels @> $3::text::jsonb AND labels ?& $4::text[]
    AND NOT labels @> ANY ($5::text[]::jsonb[]) AND NOT labels ?| $6::text[]
"""


def event_name(entry: FeedEntry) -> EventName:
    """The name of an entry's event."""
    match entry:
        case RunBegan():
            return "run.began"
        case RunEnded():
            return "run.ended"
        case RunChanged():
            return "run.changed"
        case RunDeleted():
            return "run.deleted"
        case CallStored():
            return "call"
        case GapStored():
            return "gap"
        case ReplayStored():
            return "replay"
        case ModelChanged():
            return "drift"
        case _:
            assert_never(entry)


def event_members(entry: FeedEntry) -> dict[str, Any]:
    """The members of an entry's event, without those that every event has: its run and its time."""
    match entry:
        case RunBegan() | RunChanged() | RunDeleted():
            return {}
        case RunEnded():
            return {"reason": "reported" if entry.is_reported else "idle"}
        case CallStored():
            return _call_members(entry)
        case GapStored():
            return {"reason": entry.reason, "exchange": entry.exchange, "count": entry.count}
        case ReplayStored():
            counts = ("served", "missed", "unused", "live", "edited", "drifted")
            return {"replay": entry.replay, "verdict": entry.verdict} | {name: getattr(entry, name) for name in counts}
        case ModelChanged():
            names = ("call", "provider", "model", "returned", "fingerprint", "was_returned", "was_fingerprint")
            return {name: getattr(entry, name) for name in names}
        case _:
            assert_never(entry)


def _call_members(call: CallStored) -> dict[str, Any]:
    names = ("id", "kind", "provider", "dialect", "operation", "host", "model", "model_returned", "actor", "tools")
    tokens = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    return {
        **{name: getattr(call, name) for name in names},
        "system_fingerprint": call.fingerprint,
        "status": call.status,
        "outcome": call.outcome,
        "complete": call.is_complete,
        "error": call.is_error,
        "usage": {name: getattr(call, name) for name in tokens},
        "cost_usd": None if call.cost_usd is None else float(call.cost_usd),
        "first_byte_ms": None if call.first_byte is None else call.first_byte / 1_000_000,
        "duration_ms": None if call.duration is None else call.duration / 1_000_000,
        "previous_run": call.previous_run,
    }
