"""Remember the recent calls of one process, to tell which of its conversations a call belongs to. Pure.

It forgets, and then knows that it did: what could belong to something forgotten is not attributed.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from store.attribution.conversations import ModelCall
from store.attribution.identifiers import Identifiers
from store.attribution.run_chains import Link

ALIVE: Final = 300 * 1_000_000_000
"""Nanoseconds around the calls of a conversation in which others may belong to it."""

MOST: Final = 2048
"""Exchanges of one process that are remembered."""


@dataclass(slots=True, kw_only=True)
class WindowEntry:
    """An exchange of a process."""

    id: str
    started_at: int
    ended_at: int
    run: str
    """Where it is."""

    is_free: bool
    """Whether nothing but the process, or what it has in common with a conversation, names its run."""

    link: Link | None = None
    model_call: ModelCall | None = None
    identifiers: Identifiers | None = None
    """None of one that was stored before we began to remember."""


@dataclass(slots=True)
class Window:
    """The newest exchanges of a process."""

    owner: str
    """The process's own run."""

    is_divided: bool = False
    is_unclear: bool = False
    forgot_until: int = 0
    """When the newest exchange began that is not remembered any more, or not wholly known."""

    entries: OrderedDict[str, WindowEntry] = field(default_factory=OrderedDict)
    _holders: dict[str, Counter[str]] = field(default_factory=dict)
    """By identifier: the runs that it occurs in, and how often."""

    _runs: Counter[str] = field(default_factory=Counter)

    def learn(self, entry: WindowEntry) -> None:
        """Remember an exchange, or where it is now."""
        self.forget(entry.id)
        self.entries[entry.id] = entry
        self._runs[entry.run] += 1
        for one in entry.identifiers.known if entry.identifiers else ():
            self._holders.setdefault(one, Counter())[entry.run] += 1
        if entry.identifiers is None or not entry.identifiers.is_whole:
            self.forgot_until = max(self.forgot_until, entry.started_at)
        while len(self.entries) > MOST:
            name, oldest = next(iter(self.entries.items()))
            self.forgot_until = max(self.forgot_until, oldest.started_at)
            self.forget(name)

    def forget(self, name: str) -> None:
        """Remember an exchange no more."""
        entry = self.entries.pop(name, None)
        if entry is None:
            return
        self._runs[entry.run] -= 1
        if not self._runs[entry.run]:
            del self._runs[entry.run]
        for one in entry.identifiers.known if entry.identifiers else ():
            holders = self._holders[one]
            holders[entry.run] -= 1
            if not holders[entry.run]:
                del holders[entry.run]
            if not holders:
                del self._holders[one]

    def move(self, name: str, run: str) -> None:
        """An exchange is in another run now."""
        if (entry := self.entries.get(name)) is not None and entry.run != run:
            self.forget(name)
            entry.run = run
            self.learn(entry)

    @property
    def groups(self) -> set[str]:
        """The runs of the process's conversations."""
        return self._runs.keys() - {self.owner}

    def free(self) -> Iterator[WindowEntry]:
        """The exchanges that no conversation has for sure, oldest first."""
        return iter(sorted((one for one in self.entries.values() if one.is_free), key=lambda one: one.started_at))

    def run_of(self, entry: WindowEntry) -> tuple[str, str]:
        """The conversation that an exchange belongs to, and the identifier that says so; the process's run where it is unknown."""
        run, exclusive = self._candidate(entry)
        if run is None or entry.started_at < self.forgot_until + ALIVE:
            return self.owner, ""
        # Another that belongs to none yet may be the first of a conversation that has these identifiers as well.
        others = (one for one in self.free() if one is not entry and one.run == self.owner)
        if any(_knows_any(one, exclusive) and self._candidate(one)[0] != run for one in others):
            return self.owner, ""
        return run, min(exclusive)

    def _candidate(self, entry: WindowEntry) -> tuple[str | None, set[str]]:
        """The one conversation that has all identifiers of an exchange, and those that no other has."""
        asked = entry.identifiers.asked if entry.identifiers else frozenset[str]()
        holders = {one: self._others(one, entry) for one in asked}
        exclusive = {one: next(iter(runs)) for one, runs in holders.items() if len(runs) == 1}
        found = set(exclusive.values())
        # What is in no other call may name a conversation that has not begun yet.
        if len(found) != 1 or any(not runs >= found for runs in holders.values()):
            return None, set()
        return found.pop(), set(exclusive)

    def _others(self, identifier: str, entry: WindowEntry) -> set[str]:
        """The conversations in which an identifier occurs, this exchange aside."""
        found = self._holders.get(identifier, Counter())
        is_in = entry.identifiers is not None and identifier in entry.identifiers.known
        return {run for run, times in found.items() if run != self.owner and times > (is_in and run == entry.run)}


def _knows_any(entry: WindowEntry, identifiers: set[str]) -> bool:
    return entry.identifiers is not None and not identifiers.isdisjoint(entry.identifiers.known)
