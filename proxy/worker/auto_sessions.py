"""Run the sessions of mode `auto`, and record what goes live in them as candidate runs.

The store server decides what becomes of a candidate when its session has ended.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from calls.keys.profile import Profiles
from calls.project_runs import full_run_name, split_run_name
from proxy.worker.replay_reports import ReplayReports
from replay.replay_options import ReplayOptions
from replay.replays import Replays, ReplaySource
from store.bundle.bundle import Bundle
from store.generations.auto_session_file import AutoSession, session_file

if TYPE_CHECKING:
    from proxy.worker.recordings import FoundRecording

POLL_INTERVAL = 0.1
"""Seconds between two checks for sessions that must end."""

IDLE_TIMEOUT = 30 * 60.0
"""Seconds without a request after which a run has ended (design.md 1)."""

MAX_CANDIDATES = 10_000
"""Candidates that are remembered, also of ended sessions, whose last requests may still arrive."""


@dataclass(slots=True, kw_only=True)
class AutoSessions:
    """The auto sessions of one worker."""

    directory: Path
    up: str
    reports: ReplayReports
    profiles: Profiles
    own_mode: Callable[[str], str | None]
    run_mode: Callable[[str], str | None] = lambda _run: None
    now: Callable[[], int] = time.time_ns
    run_of_all_requests: str | None = None
    """The run whose session all requests belong to, whatever run they name."""

    _open_sessions: dict[str, AutoSession] = field(init=False, default_factory=dict)
    _candidates: dict[str, str] = field(init=False, default_factory=dict)

    def end_abandoned_sessions(self) -> None:
        """End the sessions that workers of an earlier `up` left behind. Those of this `up` end with their runs."""
        for path in [*self.directory.glob("*.take"), *self.directory.glob("*.over")]:
            session = AutoSession.read(path)
            if session is not None and session.up != self.up:
                self._mark_done(session)

    def begin_session(self, name: str, found: "FoundRecording", options: ReplayOptions) -> ReplaySource:
        """Begin the session of a run, or of a replay that records its misses. Returns what it is answered from."""
        empty_bundle = Bundle(run={"id": found.run}, profiles=self.profiles.digest)
        recorded_bundle = found.bundle or empty_bundle
        bundle = empty_bundle if found.is_flawed else recorded_bundle
        project, replay = split_run_name(name)
        candidate = replay if found.is_replay or not recorded_bundle.entries else self._candidate_name(found.run)
        recording = str(bundle.run["id"]) if bundle.entries else None
        session = AutoSession(
            id=replay, run=found.run, recording=recording, candidate=candidate, up=self.up, project=project
        )
        self._open_sessions[name] = session
        self.record_as_candidate(name, candidate)
        session.write(session_file(self.directory, session, "take"))
        return ReplaySource(
            replay=name, bundle=bundle, options=replace(options, lists_answers=True, candidate=candidate)
        )

    def record_as_candidate(self, name: str, candidate: str | None = None) -> None:
        """Record what goes live under this name as a candidate run."""
        if len(self._candidates) >= MAX_CANDIDATES:
            self._candidates = {
                session.full_name: full_run_name(session.project, session.candidate)
                for session in self._open_sessions.values()
            }
        project, run = split_run_name(name)
        self._candidates[name] = full_run_name(project, candidate or self._candidate_name(run))

    def recording_run(self, run: str, host: str | None) -> str:
        """Return the run in which an exchange of this run is recorded: its candidate, or itself in mode `record`."""
        own = None if host is None else self.own_mode(host)
        if host is not None and (own or self.run_mode(run)) == "record":
            return run
        return self._candidates.get(self.run_of_all_requests or run, run)

    async def watch(self, replays: Replays) -> None:
        """End the sessions that are over or idle, until cancelled."""
        while True:
            for path in self.directory.glob("*.over"):
                if (session := AutoSession.read(path)) is not None:
                    self._end_session(session, replays)
            for session in list(self._open_sessions.values()):
                if replays.idle_seconds(session.full_name) >= IDLE_TIMEOUT:
                    self._end_session(session, replays)
            await asyncio.sleep(POLL_INTERVAL)

    def close(self, replays: Replays) -> None:
        """End every session, because the worker ends."""
        for session in list(self._open_sessions.values()):
            self._end_session(session, replays)

    def _end_session(self, session: AutoSession, replays: Replays) -> None:
        own_session = self._open_sessions.get(session.full_name)
        report: dict[str, Any] | None = None
        if own_session is not None and own_session.candidate == session.candidate:
            if not replays.is_loaded(session.full_name):
                return  # its recording is still being loaded for its first request
            del self._open_sessions[session.full_name]
            report = replays.end(session.full_name) | {"id": session.id}
        elif session_file(self.directory, session, "done").exists():
            # It was idle, and ended just before it was told to.
            session_file(self.directory, session, "over").unlink(missing_ok=True)
            return
        self.reports.forget(session.full_name)
        self._mark_done(replace(session, report=report))

    def _mark_done(self, session: AutoSession) -> None:
        session.write(session_file(self.directory, session, "done"))
        for state in ("take", "over"):
            session_file(self.directory, session, state).unlink(missing_ok=True)

    def _candidate_name(self, run: str) -> str:
        """Name the candidate run of a session."""
        stamp = f"live-{self.now():x}"
        name = f"{run}:{stamp}"
        return name if len(name) <= 128 else stamp
