"""Remember the recent calls of a process, to find the conversation that a call belongs to. Pure.

A window also remembers until when it has forgotten calls, and does not attribute a call that may belong to a forgotten one.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from store.attribution.conversations import ModelCall
from store.attribution.identifiers import Identifiers
from store.attribution.run_chains import ChainLink

CONVERSATION_SPAN: Final = 300 * 1_000_000_000
"""Nanoseconds around the calls of a conversation in which other calls may belong to it."""

MAX_ENTRIES: Final = 2048
"""Exchanges of a process that are remembered."""


@dataclass(slots=True, kw_only=True)
class WindowEntry:
    """An exchange of a process."""

    id: str
    started_at: int
    ended_at: int
    run: str
    """The run it is in."""

    is_free: bool
    """Whether only its process, or an identifier that it shares with a conversation, attributes it to its run."""

    link: ChainLink | None = None
    model_call: ModelCall | None = None
    identifiers: Identifiers | None = None
    """None if it was stored before the window was loaded."""


@dataclass(slots=True)
class Window:
    """The newest exchanges of a process."""

    owner: str
    """The process's own run."""

    is_divided: bool = False
    is_unclear: bool = False
    forgotten_until: int = 0
    """When the newest exchange began that is forgotten, or whose identifiers are incomplete."""

    has_unknown_runs: bool = False
    """Whether exchanges of the process are forgotten, which may have been in other runs than those of the entries."""

    entries: OrderedDict[str, WindowEntry] = field(default_factory=OrderedDict)
    _runs_by_identifier: dict[str, Counter[str]] = field(default_factory=dict)
    """For each identifier, in how many exchanges of each run it occurs."""

    _entry_counts: Counter[str] = field(default_factory=Counter)

    def add(self, entry: WindowEntry) -> None:
        """Add or replace an exchange."""
        self.remove(entry.id)
        self.entries[entry.id] = entry
        self._entry_counts[entry.run] += 1
        for one in entry.identifiers.in_call if entry.identifiers else ():
            self._runs_by_identifier.setdefault(one, Counter())[entry.run] += 1
        if entry.identifiers is None or not entry.identifiers.is_whole:
            self.forgotten_until = max(self.forgotten_until, entry.started_at)
        while len(self.entries) > MAX_ENTRIES:
            name, oldest = next(iter(self.entries.items()))
            self.forgotten_until = max(self.forgotten_until, oldest.started_at)
            self.has_unknown_runs = True
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove an exchange."""
        entry = self.entries.pop(name, None)
        if entry is None:
            return
        self._entry_counts[entry.run] -= 1
        if not self._entry_counts[entry.run]:
            del self._entry_counts[entry.run]
        for one in entry.identifiers.in_call if entry.identifiers else ():
            runs = self._runs_by_identifier[one]
            runs[entry.run] -= 1
            if not runs[entry.run]:
                del runs[entry.run]
            if not runs:
                del self._runs_by_identifier[one]

    def move(self, name: str, run: str) -> None:
        """Move an exchange to another run."""
        if (entry := self.entries.get(name)) is not None and entry.run != run:
            self.remove(name)
            entry.run = run
            self.add(entry)

    @property
    def conversation_runs(self) -> set[str]:
        """The runs of the process's conversations."""
        return self._entry_counts.keys() - {self.owner}

    def free_entries(self) -> Iterator[WindowEntry]:
        """The exchanges that are not certain to belong to a conversation, oldest first."""
        return iter(sorted((one for one in self.entries.values() if one.is_free), key=lambda one: one.started_at))

    def find_run(self, entry: WindowEntry) -> tuple[str, str]:
        """Find the run of an exchange's conversation and the identifier that shows it; the process's run if it is unknown."""
        run, exclusive = self._candidate_run(entry)
        if run is None or entry.started_at < self.forgotten_until + CONVERSATION_SPAN:
            return self.owner, ""
        # An exchange without a conversation may be the first of another one that has the same identifiers.
        others = (one for one in self.free_entries() if one is not entry and one.run == self.owner)
        if any(_has_any_identifier(one, exclusive) and self._candidate_run(one)[0] != run for one in others):
            return self.owner, ""
        return run, min(exclusive)

    def _candidate_run(self, entry: WindowEntry) -> tuple[str | None, set[str]]:
        """The one conversation that has all identifiers of a request, and those that no other conversation has."""
        in_request = entry.identifiers.in_request if entry.identifiers else frozenset[str]()
        conversations = {one: self._other_conversations(one, entry) for one in in_request}
        exclusive = {one: next(iter(runs)) for one, runs in conversations.items() if len(runs) == 1}
        found = set(exclusive.values())
        # An identifier that is in no other call may belong to a conversation that has not begun yet.
        if len(found) != 1 or any(not runs >= found for runs in conversations.values()):
            return None, set()
        return found.pop(), set(exclusive)

    def _other_conversations(self, identifier: str, entry: WindowEntry) -> set[str]:
        """The conversations in which an identifier occurs, apart from this exchange."""
        found = self._runs_by_identifier.get(identifier, Counter())
        is_in = entry.identifiers is not None and identifier in entry.identifiers.in_call
        return {run for run, times in found.items() if run != self.owner and times > (is_in and run == entry.run)}


def _has_any_identifier(entry: WindowEntry, identifiers: set[str]) -> bool:
    return entry.identifiers is not None and not identifiers.isdisjoint(entry.identifiers.in_call)
