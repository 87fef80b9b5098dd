"""Remember what a run has stored already, so that only new content is written.

A cache: what it forgets is stored a second time, no more. What it holds must be true, so it learns only what is
committed, and drops a run whose incarnation is another one than it remembers (the run was deleted, with its parts).
"""

import datetime as dt
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from store.database.blobs import ElementPlace, Primer

type Scope = tuple[str, dt.date]
"""A run and the day of its parts."""


PRIMER_WEIGHT = 50
"""A primer counts as so many places: it is 4 KiB."""


@dataclass(slots=True)
class _Entry:
    incarnation: uuid.UUID
    places: dict[bytes, ElementPlace]
    primer: Primer | None = None

    @property
    def weight(self) -> int:
        return 1 + len(self.places) + (PRIMER_WEIGHT if self.primer else 0)


class Before(NamedTuple):
    """What a run has brought before."""

    places: Mapping[bytes, ElementPlace]
    primer: Primer | None
    seen: bool
    """Whether anything of it is stored."""


_NOTHING: Final = Before(MappingProxyType({}), None, seen=False)


class DedupCache:
    """The places of elements, by run and day; the runs that were quiet longest are forgotten first."""

    def __init__(self, limit: int = 200_000) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[Scope, _Entry] = OrderedDict()

    def of(self, scope: Scope, incarnation: uuid.UUID) -> Before:
        """Where the elements of this run are kept, and what to compress with."""
        entry = self._entries.get(scope)
        if entry is None or entry.incarnation != incarnation:
            return _NOTHING
        self._entries.move_to_end(scope)
        return Before(entry.places, entry.primer, seen=True)

    def learn(
        self, scope: Scope, incarnation: uuid.UUID, places: Mapping[bytes, ElementPlace], primer: Primer | None = None
    ) -> None:
        """Remember places and a primer whose parts are committed."""
        entry = self._entries.get(scope)
        if entry is None or entry.incarnation != incarnation:
            self._forget(scope)
            entry = self._entries[scope] = _Entry(incarnation, {})
            self._size += entry.weight
        before = entry.weight
        entry.places.update(places)
        entry.primer = primer or entry.primer
        self._size += entry.weight - before
        while self._size > self._limit and self._entries:
            self._forget(next(iter(self._entries)))

    def _forget(self, scope: Scope) -> None:
        if entry := self._entries.pop(scope, None):
            self._size -= entry.weight
