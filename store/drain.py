"""One spool on its way to the database: events in, finished exchanges out, and how far the spool can be forgotten.

The cursor may pass an event only when its exchange is stored, or parked (`store.parked`). So whatever dies, the events of
every exchange that is not in the database are still on disk; reading some twice is harmless, because ids are the door's.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from calls.events import Closed, Data, Ended, Gap, ReplayNoted, RequestStarted, ResponseStarted, decode
from calls.fold import Fold
from calls.model import Exchange
from store.parked import Parked
from store.spool import Position, Reader

BATCH = 200
"""Exchanges that make a batch: more are hardly cheaper for Postgres."""

BATCH_BYTES = 8 << 20
READ_BYTES = 1 << 20
BEHIND = 2
"""Segments: an exchange that is still open when so many have begun after it is parked, so that they can be deleted."""


# It becomes the name of a file.
_ID = re.compile(r"[0-9a-f-]{36}")

type Event = RequestStarted | ResponseStarted | Data | Ended | Closed

DAMAGED = "damaged"
BROKEN_OFF = "the door broke the exchange off before its end"
DOOR_DIED = "the door died before the exchange ended: what passed after the last piece is not recorded"


@dataclass(slots=True)
class Gathered:
    """What one look at a spool brought."""

    exchanges: list[Exchange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    replays: list[ReplayNoted] = field(default_factory=list)
    records: int = 0
    size: int = 0
    orphaned: bool = False
    """Whether nothing more can come."""

    @property
    def full(self) -> bool:
        """Whether it should be stored before more is read."""
        return len(self.exchanges) >= BATCH or self.size >= BATCH_BYTES

    @property
    def empty(self) -> bool:
        """Whether there is nothing to store."""
        return not (self.exchanges or self.gaps or self.replays)


@dataclass(slots=True)
class _Open:
    """An exchange that has begun and not ended."""

    before: Position
    """The place in front of it, which the cursor may not pass."""

    fold: Fold = field(default_factory=Fold)
    records: list[Event] = field(default_factory=list)
    held: int = 0
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

        self._open: dict[str, _Open] = {}
        """In the order in which they began."""

        self._parked = Parked.found(directory / "open")
        for name in self._parked:
            self._open[name] = _Open(self.position, parked=True)
        self._damaged = [f"what was laid aside of {name} cannot be read" for name in self._parked.damaged]
        self._now = now
        self._run = "unknown"
        """The run that began an exchange last: damage in the spool is told to it."""

    def gather(self, budget: int) -> Gathered:
        """Read on, until there is a batch or no more to read; keep no more than `budget` bytes of open exchanges."""
        found = Gathered()
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

    def finish(self) -> Gathered:
        """End what an orphaned spool has left open: its door is dead, nothing more will come."""
        found = Gathered()
        for name in list(self._open):
            self._end(name, self.position, found)
        for exchange in found.exchanges:
            found.gaps.append(Gap(exchange.run, _last_sign(exchange), DOOR_DIED, exchange.id))
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
            if name not in self._open and self._parked.complete_to(name) <= self._safe:
                self._parked.drop(name)

    def _take(self, position: Position, payload: bytes, found: Gathered) -> None:
        found.records += 1
        found.size += len(payload)
        try:
            records = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._set_aside(position, payload)
            found.gaps.append(self._gap(f"an event in the spool is none that this Playhead knows: {error}"))
            return
        for record in records:
            if isinstance(record, Gap):
                found.gaps.append(record)
            elif isinstance(record, ReplayNoted):
                found.replays.append(record)
            else:
                self._event(position, record, len(payload) // len(records), found)

    def _event(self, position: Position, record: Event, size: int, found: Gathered) -> None:
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
        one.held += size
        self.held += size
        if not one.parked:
            one.fold.feed(record)
        if isinstance(record, Ended) and record.side == "response":
            self.answered.add(record.id)
        elif isinstance(record, Closed):
            self._end(record.id, position, found)

    def _end(self, name: str, position: Position, found: Gathered) -> None:
        """The exchange is over: hand it on as far as it goes."""
        one = self._open[name]
        if one.parked and one.records:
            self._parked.append(name, one.records, position)
        del self._open[name]
        self.answered.discard(name)
        self.held -= one.held
        fold = self._refolded(name) if one.parked else one.fold
        if not fold.begun:
            return
        exchange = fold.exchange()
        found.exchanges.append(exchange)
        if exchange.outcome == "refused" and not fold.answered:
            # We broke it off and nobody else: how it would have ended is not in the record.
            found.gaps.append(Gap(exchange.run, _last_sign(exchange), exchange.error or BROKEN_OFF, exchange.id))
        if fold.ignored:
            strays = ", ".join(sorted({f"{word} when {state}" for state, word in fold.ignored}))
            reason = f"{len(fold.ignored)} events came that could not be ({strays})"
            found.gaps.append(Gap(exchange.run, exchange.started_at, reason, exchange.id))

    def _refolded(self, name: str) -> Fold:
        fold = Fold()
        for record in self._parked.events(name):
            fold.feed(record)
        return fold

    def _end_parked(self, found: Gathered) -> None:
        """Hand on again what was stored and parked when an earlier keeper died: its end may not be read again."""
        for name in self._parked.ended:
            if name in self._open:
                self._end(name, self.position, found)
        self._parked.ended.clear()

    def _lay_aside(self, budget: int) -> None:
        """Park what is open too long or too large, and add to what is parked. Raises OSError."""
        for name, one in list(self._open.items()):
            late = self.position.segment - one.before.segment >= BEHIND
            if one.records and (one.parked or late):
                self._park(name, one)
        while self.held > budget:
            self._park(*max(self._open.items(), key=lambda item: item[1].held))

    def _park(self, name: str, one: _Open) -> None:
        self._parked.append(name, one.records, self.position)
        self.held -= one.held
        self._open[name] = _Open(self.position, parked=True)

    def _set_aside(self, position: Position, payload: bytes) -> None:
        """Keep what is not understood beside what the reader could not read: it may be somebody's evidence."""
        aside = self.directory / DAMAGED
        aside.mkdir(mode=0o700, exist_ok=True)
        (aside / f"{position.segment:08}-{position.offset}.event").write_bytes(payload)

    def _gap(self, reason: str) -> Gap:
        return Gap(self._run, self._now(), reason)


def _last_sign(exchange: Exchange) -> int:
    """When the last piece of it arrived."""
    bodies = [exchange.request.body, *([exchange.response.body] if exchange.response else [])]
    return exchange.started_at + max((chunk.at for body in bodies for chunk in body.chunks), default=0)
