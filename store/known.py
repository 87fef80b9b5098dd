"""What the requests of each run have brought to Postgres already, so that only what is new goes there.

A cache: what it forgets is stored a second time, no more. What it holds must be true, so it learns only what is
committed, and drops a run whose incarnation is another one than it remembers (the run was deleted, with its parts).
"""

import datetime as dt
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from store.blobs import Place

type Scope = tuple[str, dt.date]
"""A run and the day of its parts."""


class _Entry(NamedTuple):
    incarnation: uuid.UUID
    places: dict[bytes, Place]


class Known:
    """The places of elements, by run and day; the runs that were quiet longest are forgotten first."""

    def __init__(self, limit: int = 200_000) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[Scope, _Entry] = OrderedDict()

    def of(self, scope: Scope, incarnation: uuid.UUID) -> Mapping[bytes, Place]:
        """Where the elements of this run are kept."""
        entry = self._entries.get(scope)
        if entry is None or entry.incarnation != incarnation:
            return {}
        self._entries.move_to_end(scope)
        return entry.places

    def learn(self, scope: Scope, incarnation: uuid.UUID, places: Mapping[bytes, Place]) -> None:
        """Remember places whose parts are committed."""
        entry = self._entries.get(scope)
        if entry is None or entry.incarnation != incarnation:
            self._forget(scope)
            entry = self._entries[scope] = _Entry(incarnation, {})
        before = len(entry.places)
        entry.places.update(places)
        self._size += len(entry.places) - before
        while self._size > self._limit and self._entries:
            self._forget(next(iter(self._entries)))

    def _forget(self, scope: Scope) -> None:
        if entry := self._entries.pop(scope, None):
            self._size -= len(entry.places)
