"""Remember values up to a total weight; those that were not asked for lately are forgotten.

There are two generations: what is asked for moves to the younger one, and when that has half of the weight, the older one is forgotten. So
a look-up needs no lock and no list of uses. Threads may use it at once: at worst a value is computed twice.
"""

from collections.abc import Hashable


class RecentValues[K: Hashable, V]:
    """A dictionary of limited weight."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._weight = 0
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}

    def get(self, key: K) -> V | None:
        """Return what is remembered; None if nothing is."""
        if (found := self._young.get(key)) is None:
            if (found := self._old.get(key)) is None:
                return None
            self._add(key, found)
        return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Remember a value of this weight."""
        self._add(key, (value, weight))

    def pop(self, key: K) -> V | None:
        """Return what is remembered, and forget it; None if nothing is."""
        young, old = self._young.pop(key, None), self._old.pop(key, None)
        if young is not None:
            self._weight -= young[1]
        found = young or old
        return found and found[0]

    def _add(self, key: K, entry: tuple[V, int]) -> None:
        self._young[key] = entry
        self._weight += entry[1]
        if self._weight > self._half:
            self._old, self._young, self._weight = self._young, {}, 0
