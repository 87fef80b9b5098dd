"""Record in mode `auto`: what goes live is a candidate until its run has ended."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from calls.keys.profile import Profiles
from proxy.recording.recorder import Recorder
from proxy.worker.replay_reports import ReplayReports
from replay.replays import Replays, Source
from replay.session import Options
from store.bundle.bundle import Bundle
from store.generations.auto_session_file import Take, file

if TYPE_CHECKING:
    from proxy.worker.recordings import FoundRecording

WATCH = 0.1
"""Seconds between two looks for takes that are to end."""

IDLE = 30 * 60.0
"""Seconds without a request after which a run has ended (design.md 1)."""

REMEMBERED = 10_000
"""Takes that are over and whose last requests may still be on their way."""


@dataclass(slots=True, kw_only=True)
class AutoSessions:
    """The takes of one worker."""

    place: Path
    up: str
    notes: ReplayReports
    profiles: Profiles
    own_mode: Callable[[str], str | None]
    run_mode: Callable[[str], str | None] = lambda _run: None
    now: Callable[[], int] = time.time_ns
    all_of: str | None = None
    """The run whose take all requests belong to, whatever run they name."""

    _open: dict[str, Take] = field(init=False, default_factory=dict)
    _candidates: dict[str, str] = field(init=False, default_factory=dict)

    def inherit(self) -> None:
        """End what workers of an earlier `up` have left behind. What one of ours has left ends with its run."""
        for path in [*self.place.glob("*.take"), *self.place.glob("*.over")]:
            take = Take.read(path)
            if take is not None and take.up != self.up:
                self._done(take)

    def begun(self, name: str, found: "FoundRecording", options: Options) -> Source:
        """What a run, or a replay that records what it lacks, is answered from, from now on until it ends."""
        nothing = Bundle(run={"id": found.run}, profiles=self.profiles.digest)
        there = found.bundle or nothing
        bundle = nothing if found.flawed else there
        candidate = name if found.made or not there.entries else self._candidate(found.run)
        recording = str(bundle.run["id"]) if bundle.entries else None
        take = Take(id=name, run=found.run, recording=recording, candidate=candidate, up=self.up)
        self._open[name] = take
        self.lead(name, candidate)
        take.write(file(self.place, take, "take"))
        return Source(replay=name, bundle=bundle, options=replace(options, listed=True, candidate=candidate))

    def lead(self, name: str, candidate: str | None = None) -> None:
        """Have what goes live under a name recorded as another run."""
        if len(self._candidates) >= REMEMBERED:
            self._candidates = {take.id: take.candidate for take in self._open.values()}
        self._candidates[name] = candidate or self._candidate(name)

    def called(self, run: str, host: str | None) -> str:
        """The run in which this one's exchange is recorded. A host or a run whose mode is `record` is never answered from the
        record: it belongs to the run as ever."""
        own = None if host is None else self.own_mode(host)
        if host is not None and (own or self.run_mode(run)) == "record":
            return run
        return self._candidates.get(self.all_of or run, run)

    async def watch(self, replays: Replays) -> None:
        """End what is to end, until cancelled."""
        while True:
            for path in self.place.glob("*.over"):
                if (take := Take.read(path)) is not None:
                    self._end(take, replays)
            for take in list(self._open.values()):
                if replays.idle(take.id) >= IDLE:
                    self._end(take, replays)
            await asyncio.sleep(WATCH)

    def close(self, replays: Replays) -> None:
        """The worker ends cleanly, and its takes with it."""
        for take in list(self._open.values()):
            self._end(take, replays)

    def _end(self, take: Take, replays: Replays) -> None:
        ours = self._open.get(take.id)
        report: dict[str, Any] | None = None
        if ours is not None and ours.candidate == take.candidate:
            if not replays.loaded(take.id):
                return  # its first request is just being looked up
            del self._open[take.id]
            report = replays.end(take.id)
        elif file(self.place, take, "done").exists():
            # It had ended by itself just before it was to.
            file(self.place, take, "over").unlink(missing_ok=True)
            return
        self.notes.forget(take.id)
        self._done(replace(take, report=report))

    def _done(self, take: Take) -> None:
        take.write(file(self.place, take, "done"))
        for state in ("take", "over"):
            file(self.place, take, state).unlink(missing_ok=True)

    def _candidate(self, run: str) -> str:
        """A run's name for what goes live in this take of it."""
        stamp = f"live-{self.now():x}"
        name = f"{run}:{stamp}"
        return name if len(name) <= 128 else stamp


class AutoRecorder(Recorder):
    """A recorder that keeps what goes live under the candidates."""

    takes: AutoSessions | None = None

    only_run: str | None = None
    """The fork or replay that a command's own worker serves. What the command calls its runs must not add to them."""

    def called(self, run: str, url: str | None) -> str:
        """The run in which something of this one is recorded."""
        if self.only_run is not None:
            return self.only_run
        return run if self.takes is None else self.takes.called(run, url and urlsplit(url).hostname)
