"""Drain one spool: read events, store complete exchanges, and decide how much of the spool can be deleted.

The cursor may pass an event only when its exchange is stored, or parked (`store.ingest.open_exchange_files`). So whatever dies, the events of
every exchange that is not in the database are still on disk; reading some twice is harmless, because ids are the worker's.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from calls.events import (
    Data,
    ExchangeClosed,
    Gap,
    MessageEnded,
    RecordHead,
    ReplayNoted,
    RequestStarted,
    ResponseStarted,
    decode,
    decode_heads,
)
from calls.exchange_builder import ExchangeBuilder
from calls.model import Exchange
from store.ingest.open_exchange_files import OpenExchangeFiles
from store.large.weight import EVENT, LARGE, opens_large, weight_of
from store.spool import Position, Reader
from store.spool.disk import keep_damaged

BATCH = 200
"""Exchanges that make a batch: more are hardly cheaper for Postgres."""

BATCH_WEIGHT = 8 << 20
"""What the events of a batch weigh at most (`store.large.weight`), but for the last one."""

READ_BYTES = 1 << 20
LARGE_PAYLOAD = 1 << 20
"""Bytes of a payload that is not opened here: it goes to its exchange's file as it is."""

LARGE_FILE = LARGE // 4
"""Bytes of a parked exchange of which nothing else is known, from which it is large."""

BEHIND = 2
"""Segments: an exchange that is still open when so many have begun after it is parked, so that they can be deleted."""


# It becomes the name of a file.
_ID = re.compile(r"[0-9a-f-]{36}")

type Event = RequestStarted | ResponseStarted | Data | MessageEnded | ExchangeClosed

DAMAGED = "damaged"
BROKEN_OFF = "the worker broke the exchange off before its end"
WORKER_DIED = "the worker died before the exchange ended: what passed after the last piece is not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeExchange:
    """An exchange that has ended and is too large for this process: all its events lie in a file."""

    id: str
    file: Path
    is_cut_off: bool
    """Whether its worker died before its end."""

    source: str
    """Where it was read (spool and position)."""


@dataclass(slots=True)
class DrainResult:
    """What one look at a spool brought."""

    exchanges: list[Exchange] = field(default_factory=list)
    large: list[LargeExchange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    replays: list[ReplayNoted] = field(default_factory=list)
    records: int = 0
    size: int = 0
    orphaned: bool = False
    """Whether nothing more can come."""

    @property
    def full(self) -> bool:
        """Whether it should be stored before more is read."""
        return len(self.exchanges) >= BATCH or self.size >= BATCH_WEIGHT

    @property
    def empty(self) -> bool:
        """Whether there is nothing to store."""
        return not (self.exchanges or self.gaps or self.replays)


@dataclass(slots=True)
class _Open:
    """An exchange that has begun and not ended."""

    before: Position
    """The place in front of it, which the cursor may not pass."""

    fold: ExchangeBuilder = field(default_factory=ExchangeBuilder)
    records: list[Event] = field(default_factory=list)
    held: int = 0
    """What the records in memory weigh."""

    weight: int = 0
    """What all its events so far weigh, wherever they are."""

    parked: bool = False


class Drain:
    """Reads one spool. Not for two threads at once."""

    def __init__(self, directory: Path, now: Callable[[], int]) -> None:
        self.directory = directory
        self.reader = Reader(directory)
        self.position = self.reader.position
        """How far it has been read."""

        self.buried = False
        """Whether all of it is stored and the spool is gone."""

        self._stored_to = self._safe = self._committed = self.position

        self.held = 0
        """Bytes of open exchanges in memory."""

        self.answered: set[str] = set()
        """Exchanges whose response has ended, and so was acknowledged, but which are not closed."""

        self.large: set[str] = set()
        """Exchanges that were handed on as large and are not yet stored. Their files stay."""

        self._open: dict[str, _Open] = {}
        """In the order in which they began."""

        self._parked = OpenExchangeFiles.found(directory / "open")
        for name in self._parked:
            weight = LARGE + 1 if self._parked.size(name) > LARGE_FILE else 0
            self._open[name] = _Open(self.position, weight=weight, parked=True)
        self._damaged = [f"what was laid aside of {name} cannot be read" for name in self._parked.damaged]
        self._now = now
        self._run = "unknown"
        """The run that began an exchange last: damage in the spool is told to it."""

    def gather(self, budget: int) -> DrainResult:
        """Read on, until there is a batch or no more to read; keep no more than `budget` bytes of open exchanges."""
        found = DrainResult()
        self._end_parked(found)
        while not found.full and (frames := self.reader.read(READ_BYTES)):
            for position, payload in frames:
                self._take(position, payload, found)
                self.position = position
        found.gaps += [self._gap(f"a part of the spool cannot be read: {damage}") for damage in self.reader.damaged()]
        found.gaps += map(self._gap, self._damaged)
        self._damaged.clear()
        self._lay_aside(budget)
        found.orphaned = found.records == 0 and self.reader.orphaned()
        return found

    def finish(self) -> DrainResult:
        """End what an orphaned spool has left open: its worker is dead, nothing more will come."""
        found = DrainResult()
        for name in list(self._open):
            self._end(name, self.position, found, is_cut_off=True)
        for exchange in found.exchanges:
            found.gaps.append(Gap(exchange.run, last_sign(exchange), WORKER_DIED, exchange.id))
        return found

    def stored(self) -> None:
        """All that was gathered is in the database: the spool may forget it, up to the first exchange still open."""
        # The reader's own place is behind the last event where a new segment has begun.
        self._stored_to = max(self.position, self.reader.position)
        self._safe = next((one.before for one in self._open.values() if not one.parked), self._stored_to)

    def reached(self, end: Position) -> bool:
        """Whether everything up to an end of the spool is stored, but for exchanges that were open."""
        return self._stored_to >= end

    @property
    def forgettable(self) -> bool:
        """Whether there is something to commit."""
        return self._safe != self._committed

    def commit(self) -> None:
        """Have the spool forget on disk what it may. Raises OSError."""
        self._parked.sync()
        self.reader.commit(self._safe)
        self._committed = self._safe
        for name in self._parked:
            # Behind the cursor lies nothing of it: forgotten earlier, its last events would come again without a head.
            if name not in self._open and name not in self.large and self._parked.complete_to(name) <= self._safe:
                self._parked.drop(name)

    def large_stored(self, name: str) -> None:
        """A large exchange is in the database: its file may go."""
        self.large.discard(name)

    def set_aside(self, name: str, directory: Path) -> None:
        """A large exchange cannot be stored: leave its file where people find it. Raises OSError."""
        self._parked.set_aside(name, directory)
        self.large.discard(name)

    def _take(self, position: Position, payload: bytes | memoryview, found: DrainResult) -> None:
        found.records += 1
        found.size += EVENT
        if len(payload) > LARGE_PAYLOAD and self._take_unopened(position, payload, found):
            return
        try:
            records = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            name = f"{position.segment:08}-{position.offset}.event"
            kept = keep_damaged(self.directory, name, payload)
            found.gaps.append(self._gap(f"an event in the spool is none that this Playhead knows: {error}{kept}"))
            return
        for record in records:
            if isinstance(record, Gap):
                found.gaps.append(record)
            elif isinstance(record, ReplayNoted):
                found.replays.append(record)
            else:
                self._event(position, record, found)

    def _take_unopened(self, position: Position, payload: bytes | memoryview, found: DrainResult) -> bool:
        """Append a large payload to its exchange's file as it is; False where it is nothing that such a file holds."""
        try:
            heads = decode_heads(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        name = heads[0].id
        if not _ID.fullmatch(name) or any(head.id != name for head in heads):
            return False
        one = self._open.get(name)
        if self._parked.has(name, position) and (one is None or one.parked):
            return True
        if one is None:
            if not isinstance(heads[0], RequestStarted):
                return True  # its beginning is stored or damaged, as in `_event`
            self._run = heads[0].run
            one = self._open[name] = _Open(self.position)
        if one.records or not one.parked:
            one = self._park(name, one)
        one.weight += len(payload) + LARGE
        self._parked.append_payload(name, payload, position)
        self._note_progress(position, heads, found)
        return True

    def _note_progress(self, position: Position, heads: Iterable[RecordHead], found: DrainResult) -> None:
        for head in heads:
            if isinstance(head, MessageEnded) and head.side == "response":
                self.answered.add(head.id)
            elif isinstance(head, ExchangeClosed):
                self._end(head.id, position, found)

    def _event(self, position: Position, record: Event, found: DrainResult) -> None:
        one = self._open.get(record.id)
        if (one is None or one.parked) and self._parked.has(record.id, position):
            return
        if one is None:
            if not isinstance(record, RequestStarted):
                # The rest of an exchange that is stored, read again after a crash; or one whose head was damaged, which
                # has its gap by then.
                return
            self._run = record.run
            if not _ID.fullmatch(record.id):
                found.gaps.append(self._gap(f"{record.id[:80]!r} in the spool is no id of an exchange"))
                return
            one = self._open[record.id] = _Open(self.position)
        one.records.append(record)
        size = EVENT + (weight_of(record.data) if isinstance(record, Data) else 0)
        found.size += size
        one.weight += size
        one.held += size
        self.held += size
        if not one.parked:
            one.fold.feed(record)
        if isinstance(record, MessageEnded) and record.side == "response":
            self.answered.add(record.id)
        elif isinstance(record, ExchangeClosed):
            self._end(record.id, position, found)

    def _end(self, name: str, position: Position, found: DrainResult, *, is_cut_off: bool = False) -> None:
        """The exchange is over: hand it on as far as it goes."""
        one = self._open[name]
        if one.parked and one.records:
            self._parked.append(name, one.records, position)
        elif one.weight > LARGE and not one.parked:
            one = self._park(name, one, position)
        fold = self._refolded(name) if one.parked and one.weight <= LARGE else one.fold
        exchange = fold.exchange() if fold.begun else None
        if exchange is not None and opens_large(exchange):
            one = one if one.parked else self._park(name, one, position)
            one.weight += LARGE
        self.held -= one.held
        del self._open[name]
        self.answered.discard(name)
        if one.weight > LARGE:
            self._hand_on(name, found, is_cut_off=is_cut_off)
        elif exchange is not None:
            found.exchanges.append(exchange)
            found.gaps += gaps_of(exchange, fold)

    def _hand_on(self, name: str, found: DrainResult, *, is_cut_off: bool) -> None:
        self.large.add(name)
        source = f"{self.directory.name} before {self.position}"
        found.large.append(LargeExchange(id=name, file=self._parked.path(name), is_cut_off=is_cut_off, source=source))

    def _refolded(self, name: str) -> ExchangeBuilder:
        fold = ExchangeBuilder()
        for record in self._parked.events(name):
            fold.feed(record)
        return fold

    def _end_parked(self, found: DrainResult) -> None:
        """Hand on again what was stored and parked when an earlier store server died: its end may not be read again."""
        for name in self._parked.ended:
            if name in self._open:
                self._end(name, self.position, found)
        self._parked.ended.clear()

    def _lay_aside(self, budget: int) -> None:
        """Park what is open too long or too large, and add to what is parked. Raises OSError."""
        for name, one in list(self._open.items()):
            late = self.position.segment - one.before.segment >= BEHIND
            if one.records and (one.parked or late or one.weight > LARGE):
                self._park(name, one)
        while self.held > budget:
            self._park(*max(self._open.items(), key=lambda item: item[1].held))

    def _park(self, name: str, one: _Open, position: Position | None = None) -> _Open:
        """Have its events so far, which go up to a position, in its file."""
        if one.records:
            self._parked.append(name, one.records, position or self.position)
        self.held -= one.held
        self._open[name] = parked = _Open(self.position, weight=one.weight, parked=True)
        return parked

    def _gap(self, reason: str) -> Gap:
        return Gap(self._run, self._now(), reason)


def gaps_of(exchange: Exchange, fold: ExchangeBuilder) -> list[Gap]:
    """What is not in the record of an exchange that has ended."""
    gaps = []
    if exchange.outcome == "refused" and not fold.answered:
        # We broke it off and nobody else: how it would have ended is not in the record.
        gaps.append(Gap(exchange.run, last_sign(exchange), exchange.error or BROKEN_OFF, exchange.id))
    if fold.ignored:
        strays = ", ".join(sorted({f"{word} when {state}" for state, word in fold.ignored}))
        reason = f"{len(fold.ignored)} events came that could not be ({strays})"
        gaps.append(Gap(exchange.run, exchange.started_at, reason, exchange.id))
    return gaps


def last_sign(exchange: Exchange) -> int:
    """When the last piece of it arrived."""
    bodies = [exchange.request.body, *([exchange.response.body] if exchange.response else [])]
    return exchange.started_at + max((chunk.at for body in bodies for chunk in body.chunks), default=0)
