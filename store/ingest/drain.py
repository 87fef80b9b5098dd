"""Drain one spool: read events, store complete exchanges, and decide how much of the spool can be deleted.

The cursor passes an event only when its exchange is stored or parked (`store.ingest.open_exchange_files`). So whichever
process dies, the events of every exchange that is not in the database are still on disk. Reading events twice is harmless,
because the worker has assigned the ids.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeGuard, cast, get_args

import msgspec

from calls.events import (
    Data,
    EffectBatch,
    ExchangeClosed,
    Gap,
    MessageEnded,
    Record,
    RecordHead,
    ReplayReported,
    RequestStarted,
    ResponseStarted,
    decode_record_heads,
    decode_records,
)
from calls.exchange_builder import ExchangeBuilder, build_ordinary
from calls.model import Exchange
from store.ingest.open_exchange_files import OpenExchangeFiles
from store.large.weight import EVENT_WEIGHT, LARGE_WEIGHT, body_weight, is_large_decoded
from store.spool import Position, Reader
from store.spool.disk import keep_damaged

BATCH_SIZE = 500
"""Exchanges of a batch at most. Storing a batch, and what follows it, takes some milliseconds of CPU however few it has; larger ones are
hardly cheaper."""

BATCH_WEIGHT = 8 << 20
"""Weight of the events of a batch at most (`store.large.weight`), not counting the last event."""

READ_BYTES = 1 << 20
LARGE_PAYLOAD = 1 << 20
"""Bytes from which a payload is not decoded here, but appended to its exchange's file unchanged."""

LARGE_FILE = LARGE_WEIGHT // 4
"""Bytes of its file from which a recovered exchange counts as large."""

PARK_AFTER_SEGMENTS = 2
"""An exchange that is still open this many segments after its start is parked, so that they can be deleted."""


# An id becomes the name of a file.
_ID = re.compile(r"[0-9a-f-]{36}")

type Event = RequestStarted | ResponseStarted | Data | MessageEnded | ExchangeClosed

_EVENT_TYPES: Final = frozenset(get_args(Event.__value__))

DAMAGED_DIRECTORY = "damaged"
ABORTED_BY_WORKER = "the worker aborted the exchange before its end"
WORKER_DIED = "the worker died before the exchange ended: data after the last piece is not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeExchange:
    """An exchange that has ended and is too large for this process; all its events are in a file."""

    id: str
    file: Path
    is_cut_off: bool
    """Whether its worker died before its end."""

    source: str
    """The spool and position it was read from."""


@dataclass(slots=True)
class DrainResult:
    """What was read from a spool at one time."""

    exchanges: list[Exchange] = field(default_factory=list)
    large: list[LargeExchange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    replays: list[ReplayReported] = field(default_factory=list)
    effects: list[EffectBatch] = field(default_factory=list)
    records: int = 0
    size: int = 0
    is_orphaned: bool = False
    """Whether the spool has no writer and nothing left to read."""

    @property
    def is_full(self) -> bool:
        """Whether to store this before reading more."""
        return len(self.exchanges) >= BATCH_SIZE or self.size >= BATCH_WEIGHT

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return not (self.exchanges or self.gaps or self.replays or self.effects)


@dataclass(slots=True)
class _OpenExchange:
    """An exchange that has begun and not ended."""

    start: Position
    """The position before its first event, which the cursor may not pass."""

    records: list[Event] = field(default_factory=list)
    memory_weight: int = 0
    """Weight of the records in memory."""

    weight: int = 0
    """Weight of all its events so far, in memory and in its file."""

    is_parked: bool = False


class Drain:
    """Reads one spool. Use it in one thread at a time."""

    def __init__(self, directory: Path, now: Callable[[], int]) -> None:
        self.directory = directory
        self.reader = Reader(directory)
        self.position = self.reader.position
        """The position after the last event that was read."""

        self.is_removed = False
        """Whether everything is stored and the spool is removed."""

        self._stored_position = self._safe_position = self._committed_position = self.position

        self.open_weight = 0
        """Weight of the open exchanges in memory."""

        self.unclosed_ids: set[str] = set()
        """Exchanges whose response has ended, so that the client has all of it, but which are not closed."""

        self.large_ids: set[str] = set()
        """Exchanges that were handed over as large and are not stored yet. Their files stay."""

        self._open: dict[str, _OpenExchange] = {}
        """Open exchanges in the order in which they began."""

        self._parked = OpenExchangeFiles.recover(directory / "open")
        for name in self._parked:
            weight = LARGE_WEIGHT + 1 if self._parked.size(name) > LARGE_FILE else 0
            self._open[name] = _OpenExchange(self.position, weight=weight, is_parked=True)
        self._unreadable_files = [
            f"the parked events of exchange {name} cannot be read" for name in self._parked.damaged_ids
        ]
        self._now = now
        self._run = "unknown"
        """The run of the exchange that began last; damage of the spool is reported in it."""

    def gather(self, budget: int) -> DrainResult:
        """Read a batch, or all there is; keep open exchanges of at most the weight `budget` in memory."""
        result = DrainResult()
        self._end_recovered(result)
        while not result.is_full and (frames := self.reader.read(READ_BYTES)):
            for position, payload in frames:
                self._process_payload(position, payload, result)
                self.position = position
        result.gaps += [
            self._new_gap(f"a part of the spool cannot be read: {damage}") for damage in self.reader.take_damage()
        ]
        result.gaps += map(self._new_gap, self._unreadable_files)
        self._unreadable_files.clear()
        self._park_exchanges(budget)
        result.is_orphaned = result.records == 0 and self.reader.is_orphaned()
        return result

    def finish(self) -> DrainResult:
        """End the open exchanges of an orphaned spool, whose worker is dead."""
        result = DrainResult()
        for name in list(self._open):
            self._end_exchange(name, self.position, result, is_cut_off=True)
        for exchange in result.exchanges:
            result.gaps.append(Gap(exchange.run, last_data_at(exchange), WORKER_DIED, exchange.id))
        return result

    def mark_stored(self) -> None:
        """Note that everything gathered is in the database, so that `commit` may pass it up to the first open exchange."""
        # The position of the reader is after that of the last event if a new segment has begun.
        self._stored_position = max(self.position, self.reader.position)
        self._safe_position = next(
            (one.start for one in self._open.values() if not one.is_parked), self._stored_position
        )

    def is_stored_to(self, end: Position) -> bool:
        """Whether everything up to this position is stored, except exchanges that were open."""
        return self._stored_position >= end

    @property
    def can_commit(self) -> bool:
        """Whether there is something to commit."""
        return self._safe_position != self._committed_position

    def commit(self) -> None:
        """Move the cursor of the spool, and delete segments and files before it. Raises OSError."""
        self._parked.sync()
        self.reader.commit(self._safe_position)
        self._committed_position = self._safe_position
        for name in self._parked:
            # Only once the cursor has passed all its events: otherwise the last of them would be read again, and without a start.
            if (
                name not in self._open
                and name not in self.large_ids
                and self._parked.complete_position(name) <= self._safe_position
            ):
                self._parked.delete(name)

    def mark_large_stored(self, name: str) -> None:
        """Note that a large exchange is in the database, so that `commit` may delete its file."""
        self.large_ids.discard(name)

    def set_aside(self, name: str, directory: Path) -> None:
        """Move the file of a large exchange that cannot be stored to `directory`. Raises OSError."""
        self._parked.set_aside(name, directory)
        self.large_ids.discard(name)

    def _process_payload(self, position: Position, payload: bytes | memoryview, result: DrainResult) -> None:
        result.records += 1
        result.size += EVENT_WEIGHT
        if len(payload) > LARGE_PAYLOAD and self._park_undecoded(position, payload, result):
            return
        try:
            records = decode_records(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            name = f"{position.segment:08}-{position.offset}.event"
            suffix = keep_damaged(self.directory, name, payload)
            result.gaps.append(self._new_gap(f"an event in the spool is unknown to this Playhead: {error}{suffix}"))
            return
        if _are_of_one_exchange(records):  # nearly always
            self._process_events(position, records, result)
            return
        for record in records:
            if isinstance(record, Gap):
                result.gaps.append(record)
            elif isinstance(record, ReplayReported):
                result.replays.append(record)
            elif isinstance(record, EffectBatch):
                result.size += len(record.items)
                result.effects.append(record)
            else:
                self._process_events(position, [record], result)

    def _park_undecoded(self, position: Position, payload: bytes | memoryview, result: DrainResult) -> bool:
        """Append a large payload to its exchange's file without decoding it; False if it is not of one exchange."""
        try:
            heads = decode_record_heads(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        name = heads[0].id
        if not _ID.fullmatch(name) or any(head.id != name for head in heads):
            return False
        one = self._open.get(name)
        if self._parked.has_event(name, position) and (one is None or one.is_parked):
            return True
        if one is None:
            if not isinstance(heads[0], RequestStarted):
                return True  # its exchange is stored or its start was damaged, as in `_process_event`
            self._run = heads[0].run
            one = self._open[name] = _OpenExchange(self.position)
        if one.records or not one.is_parked:
            one = self._park(name, one)
        one.weight += len(payload) + LARGE_WEIGHT
        self._parked.append_payload(name, payload, position)
        self._process_heads(position, heads, result)
        return True

    def _process_heads(self, position: Position, heads: Iterable[RecordHead], result: DrainResult) -> None:
        for head in heads:
            if isinstance(head, MessageEnded) and head.side == "response":
                self.unclosed_ids.add(head.id)
            elif isinstance(head, ExchangeClosed):
                self._end_exchange(head.id, position, result)

    def _process_events(self, position: Position, events: list[Event], result: DrainResult) -> None:
        """Add events of one exchange that arrived together, of which only the last may be its end."""
        first, last = events[0], events[-1]
        name = first.id
        one = self._open.get(name)
        if (one is None or one.is_parked) and self._parked.has_event(name, position):
            return
        if one is None:
            if type(first) is not RequestStarted:
                # The exchange is stored and read again after a crash, or its start was damaged and has its gap already.
                return
            self._run = first.run
            if not _ID.fullmatch(name):
                result.gaps.append(self._new_gap(f"the spool has an event with the invalid exchange id {name[:80]!r}"))
                return
            one = self._open[name] = _OpenExchange(self.position)
        one.records += events
        size = EVENT_WEIGHT * len(events)
        for event in events:
            # Types are compared: for the classes of msgspec, `isinstance` takes three times as long.
            if type(event) is Data:
                size += body_weight(event.data)
            elif type(event) is MessageEnded and event.side == "response":
                self.unclosed_ids.add(name)
        result.size += size
        one.weight += size
        one.memory_weight += size
        self.open_weight += size
        if type(last) is ExchangeClosed:
            self._end_exchange(name, position, result)

    def _end_exchange(self, name: str, position: Position, result: DrainResult, *, is_cut_off: bool = False) -> None:
        """Add an exchange that has ended to the result, or hand it over if it is large."""
        one = self._open[name]
        if one.is_parked and one.records:
            self._parked.append(name, one.records, position)
        elif one.weight > LARGE_WEIGHT and not one.is_parked:
            one = self._park(name, one, position)
        exchange, gaps = (None, []) if one.weight > LARGE_WEIGHT else self._build_exchange(name, one)
        if exchange is not None and is_large_decoded(exchange):
            one = one if one.is_parked else self._park(name, one, position)
            one.weight += LARGE_WEIGHT
        self.open_weight -= one.memory_weight
        del self._open[name]
        self.unclosed_ids.discard(name)
        if one.weight > LARGE_WEIGHT:
            self._hand_over_large(name, result, is_cut_off=is_cut_off)
        elif exchange is not None:
            result.exchanges.append(exchange)
            result.gaps += gaps

    def _hand_over_large(self, name: str, result: DrainResult, *, is_cut_off: bool) -> None:
        self.large_ids.add(name)
        source = f"{self.directory.name} before {self.position}"
        result.large.append(LargeExchange(id=name, file=self._parked.path(name), is_cut_off=is_cut_off, source=source))

    def _build_exchange(self, name: str, one: _OpenExchange) -> tuple[Exchange | None, list[Gap]]:
        """Build an exchange that has ended, and its gaps; None if its events have no request."""
        if not one.is_parked and (exchange := build_ordinary(one.records)) is not None:
            return exchange, []
        builder = ExchangeBuilder()
        for record in self._parked.events(name) if one.is_parked else one.records:
            builder.feed(record)
        if not builder.has_begun:
            return None, []
        exchange = builder.build()
        return exchange, exchange_gaps(exchange, builder)

    def _end_recovered(self, result: DrainResult) -> None:
        """End the recovered exchanges whose last event is in their file, because it may not be read again."""
        for name in self._parked.complete_ids:
            if name in self._open:
                self._end_exchange(name, self.position, result)
        self._parked.complete_ids.clear()

    def _park_exchanges(self, budget: int) -> None:
        """Park exchanges that are open too long or too large, and append to parked ones. Raises OSError."""
        for name, one in list(self._open.items()):
            is_late = self.position.segment - one.start.segment >= PARK_AFTER_SEGMENTS
            if one.records and (one.is_parked or is_late or one.weight > LARGE_WEIGHT):
                self._park(name, one)
        while self.open_weight > budget:
            self._park(*max(self._open.items(), key=lambda item: item[1].memory_weight))

    def _park(self, name: str, one: _OpenExchange, position: Position | None = None) -> _OpenExchange:
        """Append the events in memory, which are all up to `position`, to the exchange's file."""
        if one.records:
            self._parked.append(name, one.records, position or self.position)
        self.open_weight -= one.memory_weight
        self._open[name] = parked = _OpenExchange(self.position, weight=one.weight, is_parked=True)
        return parked

    def _new_gap(self, reason: str) -> Gap:
        return Gap(self._run, self._now(), reason)


def _are_of_one_exchange(records: list[Record]) -> TypeGuard[list[Event]]:
    """Whether records are events of one exchange, of which only the first may begin it and only the last end it."""
    if len(records) == 1:  # as the recorder writes most of them
        return type(records[0]) in _EVENT_TYPES
    types = list(map(type, records))
    if not _EVENT_TYPES.issuperset(types) or RequestStarted in types[1:] or ExchangeClosed in types[:-1]:
        return False
    ids = [event.id for event in cast("list[Event]", records)]
    return bool(ids) and ids.count(ids[0]) == len(ids)


def exchange_gaps(exchange: Exchange, builder: ExchangeBuilder) -> list[Gap]:
    """The gaps of an exchange that has ended."""
    gaps = []
    if exchange.outcome == "refused" and not builder.is_answered:
        # The worker aborted the exchange, so the record does not show how it would have ended.
        gaps.append(Gap(exchange.run, last_data_at(exchange), exchange.error or ABORTED_BY_WORKER, exchange.id))
    if builder.ignored_events:
        kinds = ", ".join(sorted({f"{event} when {state}" for state, event in builder.ignored_events}))
        reason = f"{len(builder.ignored_events)} events came out of order and were ignored ({kinds})"
        gaps.append(Gap(exchange.run, exchange.started_at, reason, exchange.id))
    return gaps


def last_data_at(exchange: Exchange) -> int:
    """When the last piece of the exchange arrived."""
    bodies = [exchange.request.body, *([exchange.response.body] if exchange.response else [])]
    return exchange.started_at + max((chunk.at for body in bodies for chunk in body.chunks), default=0)
