"""Remember what a run has stored already, so that only new content is written.

Forgotten content is stored a second time, which costs only space. Remembered content must exist, so the cache remembers only
what is committed, and drops a run whose incarnation has changed (the run was deleted, with its parts).
"""

import datetime as dt
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from store.database.blobs import ElementPlace, Primer

type Scope = tuple[str, str, dt.date]
"""A project, a run of it and the day of its parts."""


PRIMER_WEIGHT = 50
"""The weight of a primer, which has 4 KiB, in places."""


@dataclass(slots=True)
class _RunContent:
    incarnation: uuid.UUID
    places: dict[bytes, ElementPlace]
    primer: Primer | None = None

    @property
    def weight(self) -> int:
        return 1 + len(self.places) + (PRIMER_WEIGHT if self.primer else 0)


class StoredContent(NamedTuple):
    """What is stored of a run."""

    places: Mapping[bytes, ElementPlace]
    primer: Primer | None
    is_stored: bool
    """Whether anything is stored."""


_NOTHING: Final = StoredContent(MappingProxyType({}), None, is_stored=False)


class DedupCache:
    """The places of elements by run and day. The least recently used runs are forgotten first."""

    def __init__(self, limit: int = 200_000) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[Scope, _RunContent] = OrderedDict()

    def stored_content(self, scope: Scope, incarnation: uuid.UUID) -> StoredContent:
        """The places of the elements of a run, and the primer to compress with."""
        entry = self._entries.get(scope)
        if entry is None or entry.incarnation != incarnation:
            return _NOTHING
        self._entries.move_to_end(scope)
        return StoredContent(entry.places, entry.primer, is_stored=True)

    def likely_places(self, scope: Scope) -> Mapping[bytes, ElementPlace]:
        """The places that are remembered of a run, which may have been deleted meanwhile."""
        entry = self._entries.get(scope)
        return _NOTHING.places if entry is None else entry.places

    def remember(
        self, scope: Scope, incarnation: uuid.UUID, places: Mapping[bytes, ElementPlace], primer: Primer | None = None
    ) -> None:
        """Remember places and a primer whose parts are committed."""
        entry = self._entries.get(scope)
        if entry is None or entry.incarnation != incarnation:
            self._forget(scope)
            entry = self._entries[scope] = _RunContent(incarnation, {})
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
