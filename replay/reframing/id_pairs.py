"""Tell by the ids that count only by their first occurrence which of several equal requests was meant.

Such an id, as of a conversation, is in no key, because a client may draw it. But what a client repeats is the same thing
throughout a replay: once a request with an id was answered by a recorded one, both ids stand for the same conversation.
"""

from collections.abc import Iterable

from calls.keys.key import KeyResult

type Pairs = tuple[tuple[str, str], ...]
"""Recorded ids and present ones."""


def pair_ids(then: KeyResult, now: KeyResult) -> Pairs:
    """Pair the ids of two requests with equal keys."""
    names = {name: was for _, was, name in then.notes.ids}
    return tuple(dict.fromkeys((names[name], was) for _, was, name in now.notes.ids if name in names))


class KnownPairs:
    """The ids that stood for one another in a replay so far."""

    def __init__(self) -> None:
        self._now_of: dict[str, str] = {}
        self._then_of: dict[str, str] = {}

    def note(self, pairs: Pairs) -> None:
        """Note the ids of a request that was answered."""
        for then, now in pairs:
            self._now_of.setdefault(then, now)
            self._then_of.setdefault(now, then)

    def distance(self, pairs: Pairs) -> int:
        """Return 0 if the ids stand for one another, 1 if they may, and 2 if one stands for another id."""
        return max((self._distance(then, now) for then, now in pairs), default=0)

    def find_closer(self, pairs: Pairs, others: Iterable[Pairs]) -> int | None:
        """Return the place of the first of the others that are closest; None if none is closer than `pairs`."""
        best, found = self.distance(pairs), None
        for place, other in enumerate(others):
            if best == 0:
                break
            if (distance := self.distance(other)) < best:
                best, found = distance, place
        return found

    def _distance(self, then: str, now: str) -> int:
        if then == now or self._then_of.get(now) == then:
            return 0
        return 2 if then in self._now_of or now in self._then_of else 1
