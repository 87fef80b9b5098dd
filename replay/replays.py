"""Choose the recording that answers a request, and answer it: what a worker uses instead of every upstream.

A process that was started with one recording answers everything from it, whatever run is named. With several, and with
none (then recordings come from the store), the run that our own credentials or header name selects; ids that an agent
sends for purposes of its own never do. Each replay has a position and a report of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from calls.keys.profile import Profiles
from calls.model import Json, Request
from calls.redaction.redactor import Redactor, all_of
from replay.answer import Answer
from replay.misses import explain, miss
from replay.recording import recording
from replay.session import Options, Rest, Session
from replay.websocket.session import redacting
from store.bundle.bundle import Bundle

_HEAVY = 256 << 10

EARLY = 256
"""Connections, refused before a replay is loaded, that are kept for its report."""

RESTS_AFTER = 600.0
"""Seconds without a request after which a replay that can be loaded again gives its memory back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A recording that the process was started with."""

    replay: str
    """The id of its replay."""

    bundle: Bundle
    options: Options | None = None
    """Its own, where they are not those of the process."""


type Load = Callable[[str], Awaitable[Source | None]]
"""The recording of a run or of a replay, by its id; None where there is none. Raises Unusable."""


class Unusable(ValueError):
    """A recording cannot answer in the way that was wished for; the message says why."""


@dataclass(slots=True, kw_only=True)
class Replays:
    """The replays of one worker. Answers instead of the network (`Answerer` in proxy/wire/config.py)."""

    redactor: Redactor
    profiles: Profiles
    options: Options
    load: Load | None = None
    """Where recordings come from when the process was started with none."""

    given: tuple[str, ...] = ()
    """Of what `load` finds, that which the process was started with. A single one answers everything; each begins anew when
    it has ended."""

    changed: Callable[[str], None]
    """Called with a replay's id after each change of its report: often, so it should do little."""

    begin: Callable[[str, dict[str, Json]], bool] = lambda _replay, _report: True
    """Called with a replay's id before its first answer: whether it may begin, or another worker had begun it."""

    run_mode: Callable[[str], str | None] = lambda _run: None
    """The mode that a run was given: one in `replay` never goes live."""

    now: Callable[[], float] = lambda: 0.0
    """A clock that does not go back, in seconds."""

    _sessions: dict[str, Session] = field(init=False, default_factory=dict)
    _by_run: dict[str, Session] = field(init=False, default_factory=dict)
    _only: Session | None = field(init=False, default=None)
    _resting: dict[str, Rest] = field(init=False, default_factory=dict)
    _spoken: dict[str, bool] = field(init=False, default_factory=dict)
    _loading: dict[str, asyncio.Event] = field(init=False, default_factory=dict)
    _early: list[tuple[str, str, str]] = field(init=False, default_factory=list)
    """Connections that were refused before their replay was loaded: run, destination and reason."""

    async def start(self, sources: Iterable[Source]) -> None:
        """Make ready what the process was started with."""
        for source in sources:
            session = await self._open(source)
            self._by_run.setdefault(session.recording.run, session)
        sessions = list(self._sessions.values())
        self._only = sessions[0] if len(sessions) == 1 and not self.given else None

    async def answer(
        self,
        request: Request,
        *,
        run: str | None,
        owner: str,  # noqa: ARG002 - an owner selects nothing
        actor: str | None = None,
    ) -> Answer | None:
        """Answer a raw request. `run` is what our own credentials or header name. None: it goes live."""
        strict = run is not None and self.run_mode(run) == "replay"
        try:
            session = self._only or await self._named(self._meant(run))
        except Unusable as why:
            return miss.answer(explain.unusable(run, str(why)))
        if session is None:
            return self._unknown(run, strict=strict)
        self._asked(session)
        try:
            if len(request.body.data) > _HEAVY:
                request = await asyncio.to_thread(redacted, request, self.redactor)
            else:
                request = redacted(request, self.redactor)
        except asyncio.CancelledError:
            session.note_unseen_request()
            raise
        return redacting(await session.answer(request, actor, strict=strict), request, self.redactor)

    def note_passed_request(self, *, run: str | None) -> None:
        """A request went to its upstream, because the mode of its host wants it so. It is counted where it belongs."""
        if session := self._open_for(run):
            session.note_passed_request()

    def note_unseen_request(self, *, run: str | None, large: bool = False) -> None:
        """A request broke off, or was too large to be looked up: no replay is right that forgets it."""
        if session := self._open_for(run):
            session.note_unseen_request(large=large)

    def note_refused_connection(self, destination: str, reason: str, *, run: str | None) -> None:
        """A captured connection was refused: no replay is right that forgets it."""
        if session := self._open_for(run):
            session.refuse_connection(destination, reason)
        elif run is not None and len(self._early) < EARLY:
            self._early.append((run, destination, reason))

    def _open_for(self, run: str | None) -> Session | None:
        meant = self._meant(run) or ""
        return self._only or self._sessions.get(meant) or self._by_run.get(meant)

    def report(self, replay: str) -> dict[str, Json]:
        """The report of a replay, so far."""
        return self._resting[replay].report if replay in self._resting else self._sessions[replay].report()

    def reports(self) -> list[dict[str, Json]]:
        """The reports of all replays, so far."""
        return [self.report(replay) for replay in (*self._resting, *self._sessions)]

    def loaded(self, replay: str) -> bool:
        """Whether it can answer at once."""
        return replay in self._sessions

    def end(self, replay: str) -> dict[str, Json]:
        """Forget a replay. Who names it next begins another one. Its last report."""
        session = self._sessions.pop(replay)
        # What is still being answered belongs to nobody.
        session.changed = lambda _replay: None
        return session.report()

    def idle(self, replay: str) -> float:
        """Seconds since a replay was asked something; none where it is not loaded."""
        session = self._sessions.get(replay)
        return 0.0 if session is None else self.now() - session.asked_at

    def rest(self) -> None:
        """Keep of replays that nobody asks only where they stand. What the process was started with stays."""
        given = {session.id for session in self._by_run.values()}
        for replay, session in list(self._sessions.items()):
            # What is recorded beside it ends with its run.
            if (
                session.options.candidate is None
                and not session.streaming
                and replay not in given
                and self.now() - session.asked_at >= RESTS_AFTER
            ):
                self._resting[replay] = session.rest()
                del self._sessions[replay]

    def _asked(self, session: Session) -> None:
        session.asked_at = self.now()
        if not session.begun and not self.begin(session.id, session.report()):
            session.interrupted = True

    def recorded_protocols(self, authority: str) -> tuple[str, ...] | None:
        """What to offer a client that connects to this host and port: HTTP/2 only where it was spoken when recorded.
        None for a host that was not recorded."""
        name = authority.lower().removesuffix(":443")
        match self._spoken.get(name):
            case None:
                return None
            case True:
                return "h2", "http/1.1"
            case False:
                return ("http/1.1",)

    def _meant(self, run: str | None) -> str | None:
        """Which recording a request is for that names this run."""
        return self.given[0] if len(self.given) == 1 and not self._by_run else run

    def _may_load(self, run: str) -> bool:
        return run in self.given or not (self.given or self._by_run)

    async def _named(self, run: str | None) -> Session | None:
        """The replay of this name, loaded at its first request: once, however many come at the same time."""
        if run is None:
            return None
        while (
            (session := self._sessions.get(run) or self._by_run.get(run)) is None and self.load and self._may_load(run)
        ):
            if waiting := self._loading.get(run):
                await waiting.wait()
            elif not await self._loaded(run, self.load):
                return None
        return session

    async def _loaded(self, run: str, load: Load) -> bool:
        arrived = self._loading[run] = asyncio.Event()
        try:
            source = await load(run)
            if source is not None:
                await self._open(source)
            return source is not None
        finally:
            del self._loading[run]
            arrived.set()

    async def _open(self, source: Source) -> Session:
        """Keys and digests are made on a thread: a long recording takes a while."""
        replay, options = source.replay, source.options or self.options
        if replay in self._sessions:
            raise ValueError(f"two recordings were given for {replay}: each replay has one; leave one of them out")
        first, last = options.from_step, options.until_step
        ready = partial(recording, source.bundle, self.profiles, from_step=first, until_step=last)
        session = Session(replay, await asyncio.to_thread(ready), options, self.changed)
        for name, http2 in session.recording.over_http2.items():
            self._spoken[name] = http2 or self._spoken.get(name, False)
        if (rest := self._resting.pop(replay, None)) is not None:
            session.go_on(rest)
        session.asked_at = self.now()
        self._sessions[replay] = session
        for run, destination, reason in self._early:
            if run in (replay, session.recording.run):
                session.refuse_connection(destination, reason)
        self._early = [one for one in self._early if one[0] not in (replay, session.recording.run)]
        return session

    def _unknown(self, run: str | None, *, strict: bool) -> Answer | None:
        if self.options.on_miss == "live" and not strict:
            return None
        return miss.answer(explain.unknown_run(run, (*self._by_run, *self.given)))


def redacted(request: Request, redactor: Redactor) -> Request:
    """The request as the recorder would have kept it: a secret never reaches a message, and keys agree."""
    head = redactor.head(request.method, request.url, request.headers)
    body = request.body
    if body.data and not (head.plain and redactor.is_clean(body.data)):
        data, _, reencoded = all_of(head.body(), body.data)
        body = body if data == body.data else replace(body, data=data, reencoded=reencoded)
    # Not by `replace`, which takes three times as long.
    return Request(
        method=request.method,
        url=head.url,
        http_version=request.http_version,
        headers=head.headers,
        body=body,
        trailers=request.trailers,
    )
