"""Choose the recording that answers a request, and answer from it in place of the upstream.

A process started with one recording answers every request from it, whatever run the request names. With several
recordings, or with none (recordings are then loaded from the store), the run is the one in Playhead's own credentials or
header; ids that an agent sends for its own purposes never select a run. Each replay has its own position and report.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from calls.effects.questions import questions_for_program
from calls.keys.profile import Profiles
from calls.model import Body, Json, Request
from calls.redaction.redactor import Redactor
from calls.redaction.whole_request import redact_request
from replay.answer import Answer, Duplex
from replay.duplex import may_be_duplex
from replay.effects import EffectsReplay, pinned_variables
from replay.misses import explain, miss
from replay.recording import Recording, ReportProgress, build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session, SuspendedSession
from replay.websocket.session import with_redaction
from store.bundle.bundle import Bundle

_HEAVY = 256 << 10

EARLY_REFUSALS_LISTED = 256
"""Maximum number of connections refused before their replay is loaded that are kept for its report."""

SUSPEND_AFTER = 600.0
"""Seconds without a request after which a replay that can be loaded again is removed from memory."""

MEMORY_LIMIT = 256 << 20
"""Bytes of recordings from which the replays that were used longest ago are removed, if they can be loaded again."""


class ReplaySource(msgspec.Struct, frozen=True, kw_only=True):
    """A recording to replay."""

    replay: str
    """The id of the replay."""

    bundle: Bundle
    options: ReplayOptions | None = None
    """Options of this replay that replace those of the process."""

    recording: Recording | None = None
    """The whole recording, if it was made from the bundle before."""


type LoadSource = Callable[[str], Awaitable[ReplaySource | None]]
"""Loads the recording of a run or replay by its id; returns None if there is none. Raises UnusableRecording.

What others have to do for it begins when it is called, so the caller can do other work before it waits.
"""


class UnusableRecording(ValueError):
    """A recording cannot be replayed with the requested options; the message says why."""


@dataclass(slots=True, kw_only=True)
class Replays:
    """The replays of one worker (implements `Answerer` in proxy/wire/engine.py)."""

    redactor: Redactor
    profiles: Profiles
    options: ReplayOptions
    load: LoadSource | None = None
    """Loads recordings that the process was not started with."""

    startup_recordings: tuple[str, ...] = ()
    """Names of recordings that the process was started with and that `load` finds.

    A single one answers every request. A replay that has ended starts again at the next request.
    """

    on_change: Callable[[str], None]
    """Called with the id of a replay after each change of its report. It is called often and must return quickly."""

    may_begin: Callable[[str, dict[str, Json]], bool] = lambda _replay, _report: True
    """Called with the id and report of a replay before its first answer; False if another worker began the replay."""

    forget_begin: Callable[[str], None] = lambda _replay: None
    """Called with the id of a replay that `may_begin` was called for, if it begins with another recording, or not at all."""

    run_mode: Callable[[str], str | None] = lambda _run: None
    """The mode of a run, if it has its own. Requests of a run in mode `replay` never go live."""

    expect: Callable[[str], None] = lambda _replay: None
    """Called with the id of a replay that is not loaded, but will most likely be requested soon. It must return at once."""

    likely_source: Callable[[str], ReplaySource | None] = lambda _replay: None
    """Returns what `load` will most likely return for a replay, if that is in memory. It must return at once."""

    memory_limit: int = MEMORY_LIMIT
    """Bytes that the loaded recordings may take. The one in use may be larger."""

    now: Callable[[], float] = lambda: 0.0
    """A monotonic clock, in seconds."""

    _sessions: dict[str, Session] = field(init=False, default_factory=dict)
    _requests: Counter[str] = field(init=False, default_factory=Counter)
    """The requests that each replay is answering at the moment."""

    _by_run: dict[str, Session] = field(init=False, default_factory=dict)
    _single_session: Session | None = field(init=False, default=None)
    _suspended: dict[str, SuspendedSession] = field(init=False, default_factory=dict)
    _http2_by_authority: dict[str, bool] = field(init=False, default_factory=dict)
    _loading: dict[str, asyncio.Event] = field(init=False, default_factory=dict)
    _early_refusals: list[tuple[str, str, str]] = field(init=False, default_factory=list)
    """Run, destination and reason of connections refused before their replay was loaded."""

    async def start(self, sources: Iterable[ReplaySource], report_progress: ReportProgress | None = None) -> None:
        """Open the recordings that the process was started with."""
        for source in sources:
            session = await self._open_session(source, report_progress=report_progress)
            self._by_run.setdefault(session.recording.run, session)
        sessions = list(self._sessions.values())
        self._single_session = sessions[0] if len(sessions) == 1 and not self.startup_recordings else None

    async def answer(
        self,
        request: Request,
        *,
        run: str | None,
        owner: str,  # noqa: ARG002 - an owner selects nothing
        actor: str | None = None,
    ) -> Answer | None:
        """Answer a raw request; None if it goes live. `run` is the run in Playhead's own credentials or header."""
        never_live = run is not None and self.run_mode(run) == "replay"
        redaction = _RequestRedaction(request, self.redactor)
        try:
            session = await self._chosen_session(run, redaction.begin)
        except UnusableRecording as why:
            return miss.miss_answer(explain.unusable_recording_miss(run, str(why)), request)
        if session is None:
            return self._unknown_run_answer(request, run, never_live=never_live)
        self._note_request(session)
        self._requests[session.id] += 1
        try:
            return await self._answer_from(session, redaction, actor, never_live=never_live)
        finally:
            self._requests[session.id] -= 1
            if not self._requests[session.id]:
                del self._requests[session.id]

    async def _answer_from(
        self, session: Session, redaction: "_RequestRedaction", actor: str | None, *, never_live: bool
    ) -> Answer | None:
        try:
            request = await redaction.finish()
        except asyncio.CancelledError:
            session.note_unseen_request()
            raise
        return with_redaction(await session.answer(request, actor, never_live=never_live), request, self.redactor)

    async def open_duplex(
        self,
        request: Request,
        *,
        run: str | None,
        owner: str,  # noqa: ARG002 - an owner selects nothing
        actor: str | None = None,
    ) -> Duplex | None:
        """Return what may answer a raw request, of which only the head is known, before it ends."""
        if not may_be_duplex(request.method, request.headers):
            return None
        try:
            session = await self._chosen_session(run)
        except UnusableRecording:
            return None  # the answer to the complete request says why
        if session is None or not await session.may_open_duplex(request):
            return None
        self._note_request(session)

        def redact(data: bytes) -> bytes:
            return redact_request(replace(request, body=Body(data=data)), self.redactor).body.data

        return await session.open_duplex(redact_request(request, self.redactor), actor, redact)

    def expect_run(self, run: str) -> None:
        """Have the recording loaded that answers this run, whose first request will most likely come soon."""
        name = self._recording_name(run)
        if self.load and name is not None and self._loaded_session(run) is None and self._may_load(name):
            self.expect(name)

    def pinned_variables(self) -> dict[str, str]:
        """Return the variables that the command of the recording which answers all requests was recorded with."""
        session = self._single_session
        if session is None or not session.recording.effects:
            return {}
        found = pinned_variables(session.recording.effects, session.options.effect_overrides)
        # Without a process that had the hook, such as where a bridge reported steps, nothing is to be answered.
        return {**session.recording.environment, **found} if found else {}

    def single_recording(self) -> Recording | None:
        """Return the recording that answers all requests, if one does."""
        return self._single_session.recording if self._single_session else None

    def recorded_questions(self) -> list[dict[str, Any]]:
        """Return what the program of that recording asked people, and their answers (`calls.effects.questions`)."""
        return questions_for_program(self._single_session.recording.effects) if self._single_session else []

    async def effects_of(self, run: str | None) -> EffectsReplay | None:
        """Return the effects of the replay that answers this run; None if it has none. Raises UnusableRecording."""
        session = await self._chosen_session(run)
        return session.effects if session else None

    def note_passed_request(self, *, run: str | None) -> None:
        """Count a request that went to its upstream because of the mode of its host."""
        if session := self._loaded_session(run):
            session.note_passed_request()

    def note_unseen_request(self, *, run: str | None, large: bool = False) -> None:
        """Count as missed a request that broke off or was too large to be looked up."""
        if session := self._loaded_session(run):
            session.note_unseen_request(large=large)

    def note_refused_connection(self, destination: str, reason: str, *, run: str | None) -> None:
        """Report a captured connection that was refused."""
        if session := self._loaded_session(run):
            session.note_refused_connection(destination, reason)
        elif run is not None and len(self._early_refusals) < EARLY_REFUSALS_LISTED:
            self._early_refusals.append((run, destination, reason))

    def _loaded_session(self, run: str | None) -> Session | None:
        name = self._recording_name(run) or ""
        return self._single_session or self._sessions.get(name) or self._by_run.get(name)

    def report(self, replay: str) -> dict[str, Json]:
        """The current report of a replay."""
        return self._suspended[replay].report if replay in self._suspended else self._sessions[replay].report()

    def reports(self) -> list[dict[str, Json]]:
        """The current reports of all replays."""
        return [self.report(replay) for replay in (*self._suspended, *self._sessions)]

    def has_begun(self, replay: str) -> bool:
        """Whether there is a replay, in memory or suspended."""
        return replay in self._sessions or replay in self._suspended

    def is_loaded(self, replay: str) -> bool:
        """Whether a replay is in memory."""
        return replay in self._sessions

    def end(self, replay: str) -> dict[str, Json]:
        """Remove a replay and return its last report. The next request that names it starts a new one."""
        session = self._sessions.pop(replay)
        # Answers still in progress no longer change a report.
        session.on_change = lambda _replay: None
        return session.report()

    def idle_seconds(self, replay: str) -> float:
        """Seconds since the last request to a replay; 0 if it is not loaded."""
        session = self._sessions.get(replay)
        return 0.0 if session is None else self.now() - session.last_request_at

    def suspend_idle(self) -> None:
        """Reduce idle replays to their state. Recordings that the process was started with stay loaded."""
        for session in self._suspendable_sessions():
            if self.now() - session.last_request_at >= SUSPEND_AFTER:
                self._suspend(session)

    def _limit_memory(self, newest: Session) -> None:
        """Reduce the replays that were used longest ago to their state, until the recordings fit into the memory."""
        excess = sum(session.recording.size for session in self._sessions.values()) - self.memory_limit
        if excess <= 0:
            return
        for session in sorted(self._suspendable_sessions(), key=lambda one: one.last_request_at):
            if session is not newest and excess > 0:
                excess -= session.recording.size
                self._suspend(session)

    def _suspendable_sessions(self) -> list[Session]:
        """The replays that can be loaded again and wait for nothing.

        An auto session ends with its run.
        """
        startup = {session.id for session in self._by_run.values()}
        return [
            session
            for session in self._sessions.values()
            if session.options.candidate is None
            and not session.has_open_stream
            and not (session.effects and session.effects.connected)
            and session.id not in startup
            and session.id not in self._requests
        ]

    def _suspend(self, session: Session) -> None:
        self._suspended[session.id] = session.suspend()
        del self._sessions[session.id]

    def _note_request(self, session: Session) -> None:
        session.last_request_at = self.now()
        if not session.has_begun:
            self._note_begin(session)

    def _note_begin(self, session: Session) -> None:
        if not session.is_begin_noted:
            session.is_begin_noted = True
            if not self.may_begin(session.id, session.report()):
                session.is_interrupted = True

    def recorded_protocols(self, authority: str) -> tuple[str, ...] | None:
        """The ALPN protocols to offer the clients of an authority; None if it was not recorded.

        HTTP/2 is offered only if the recorded client used it.
        """
        name = authority.lower().removesuffix(":443")
        match self._http2_by_authority.get(name):
            case None:
                return None
            case True:
                return "h2", "http/1.1"
            case False:
                return ("http/1.1",)

    def loaded_authorities(self) -> Iterable[str]:
        """The authorities of the recordings that are in memory, or were."""
        return tuple(self._http2_by_authority)

    def rehearsal(self) -> "tuple[Request, Replays] | None":
        """Return the first request of the recording that answers all requests, and what answers it without leaving a trace."""
        session = self._single_session
        first = next(iter(session.recording.index.entries), None) if session else None
        if session is None or first is None or first.is_heavy or first.summary.has_client_messages:
            return None
        answerer = Replays(
            redactor=self.redactor, profiles=self.profiles, options=ReplayOptions(), on_change=lambda _replay: None
        )
        answerer._single_session = Session(session.id, session.recording, answerer.options, answerer.on_change)
        answerer._http2_by_authority = self._http2_by_authority
        return first.exchange.request, answerer

    async def recorded_authorities(self, run: str) -> Iterable[str]:
        """The authorities of all recorded requests of the recording that answers this run; empty if it has none."""
        try:
            session = await self._chosen_session(run)
        except UnusableRecording:
            return ()  # the answer to its first request says why
        return session.recording.http2_by_authority if session else ()

    def _recording_name(self, run: str | None) -> str | None:
        """The recording that answers a request with this run."""
        return self.startup_recordings[0] if len(self.startup_recordings) == 1 and not self._by_run else run

    def _may_load(self, run: str) -> bool:
        return run in self.startup_recordings or not (self.startup_recordings or self._by_run)

    async def _chosen_session(self, run: str | None, meanwhile: Callable[[], None] = lambda: None) -> Session | None:
        """Return the replay that answers this run. The first request loads it, and does `meanwhile`; others wait for that.

        Raises UnusableRecording.
        """
        if self._single_session is not None:
            return self._single_session
        run = self._recording_name(run)
        if run is None:
            return None
        while (
            (session := self._sessions.get(run) or self._by_run.get(run)) is None and self.load and self._may_load(run)
        ):
            if waiting := self._loading.get(run):
                await waiting.wait()
            elif not await self._load_session(run, self.load, meanwhile):
                return None
        return session

    async def _load_session(self, run: str, load: LoadSource, meanwhile: Callable[[], None]) -> bool:
        arrived = self._loading[run] = asyncio.Event()
        likely = self.likely_source(run)
        prepared: Session | None = None
        try:
            loading = load(run)
            meanwhile()
            prepared = self._prepared_session(likely) if likely is not None else None
            source = await loading
            if source is None:
                return False
            is_likely = prepared is not None and source.recording is prepared.recording
            session = await self._open_session(source, prepared if is_likely else None)
            prepared = None if session is prepared else prepared
            return True
        finally:
            if prepared is not None and not prepared.is_interrupted:
                self.forget_begin(prepared.id)
            del self._loading[run]
            arrived.set()

    def _prepared_session(self, source: ReplaySource) -> Session | None:
        """Return the replay of a source that may yet turn out to be another one; None if it takes a while to make it."""
        options = source.options or self.options
        is_whole = (options.from_step, options.until_step) == (1, None)
        if source.recording is None or not is_whole or source.replay in self._suspended:
            return None
        session = Session(source.replay, source.recording, options, self.on_change, redactor=self.redactor)
        self._note_begin(session)
        # The first request most likely repeats the first one that was recorded.
        first = next(iter(source.recording.index.entries), None)
        if first is not None and not first.is_heavy:
            _ = first.exchange
        return session

    async def _open_session(
        self, source: ReplaySource, session: Session | None = None, report_progress: ReportProgress | None = None
    ) -> Session:
        """Open the replay of a source. `session`: the replay itself, if it has been made."""
        replay, options = source.replay, source.options or self.options
        if replay in self._sessions:
            raise ValueError(f"two recordings were given for {replay}: each replay has one; leave one of them out")
        if session is None:
            first, last = options.from_step, options.until_step
            recording = source.recording if (first, last) == (1, None) else None
            if recording is None:
                # Computing the keys of a long recording takes a while, so it is done on a thread.
                build = partial(build_recording, source.bundle, self.profiles, from_step=first, until_step=last)
                recording = await asyncio.to_thread(build, report_progress=report_progress)
            session = Session(replay, recording, options, self.on_change, redactor=self.redactor)
        for name, http2 in session.recording.http2_by_authority.items():
            self._http2_by_authority[name] = http2 or self._http2_by_authority.get(name, False)
        if (suspended := self._suspended.pop(replay, None)) is not None:
            session.resume(suspended)
        session.last_request_at = self.now()
        self._sessions[replay] = session
        self._limit_memory(session)
        for run, destination, reason in self._early_refusals:
            if run in (replay, session.recording.run):
                session.note_refused_connection(destination, reason)
        self._early_refusals = [one for one in self._early_refusals if one[0] not in (replay, session.recording.run)]
        return session

    def _unknown_run_answer(self, request: Request, run: str | None, *, never_live: bool) -> Answer | None:
        if self.options.on_miss == "live" and not never_live:
            return None
        return miss.miss_answer(explain.unknown_run_miss(run, (*self._by_run, *self.startup_recordings)), request)


class _RequestRedaction:
    """Redacts one request. That of a small one can be done before its result is needed."""

    def __init__(self, request: Request, redactor: Redactor) -> None:
        self._request = request
        self._redactor = redactor
        self._redacted: Request | None = None

    def begin(self) -> None:
        """Redact the request, unless it takes a thread."""
        if self._redacted is None and len(self._request.body.data) <= _HEAVY:
            self._redacted = redact_request(self._request, self._redactor)

    async def finish(self) -> Request:
        """Return the redacted request."""
        self.begin()
        if self._redacted is None:
            self._redacted = await asyncio.to_thread(redact_request, self._request, self._redactor)
        return self._redacted
