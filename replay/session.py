"""One replay: a recording, a position in it, and an account of what happened."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakSet

from calls.derive import derive
from calls.keys.divergence import readable
from calls.keys.key import keyed, raw_digest
from calls.mcp_late_answers import is_old
from calls.model import Exchange, Json, Request, concluded, ended
from replay import playback
from replay.answer import Answer, Tier, mark
from replay.forks.hooks import Beyond, Edits, HookAnswer
from replay.misses import explain, miss
from replay.misses.explain import ReplayedRequest
from replay.misses.miss import Miss
from replay.pacing import INSTANT, Pace
from replay.recording import Recording
from replay.reframing.adapt_answer import Fit, closest, fitted
from replay.report import LISTED, Tally, interrupted, report
from replay.script import Policy, Position, RecordedExchange, Script, ScriptMatch
from replay.websocket import session as sockets
from replay.websocket.mcp_sse_stream import Stream
from replay.websocket.timeline import Break

_HEAVY = 256 << 10
"""A body beyond this many bytes is parsed on a thread: the answers to others do not wait for it."""

_RIVALS = 8
"""Exchanges with the key of a request that are considered where the next one is not what it asks for to the letter."""

_TURN = 256
"""How many of the exchanges that have not answered yet are considered in a search for the nearest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a replay answers."""

    pace: Pace = INSTANT
    on_miss: Literal["fail", "live"] = "fail"
    own_mode: Callable[[str], str | None] = lambda _host: None
    """The mode of a host that has one of its own: `replay` never lets its requests go, `auto` does."""

    after_last: Policy = "miss"
    from_step: int = 1
    """Exchanges before this step are not expected."""

    until_step: int | None = None
    """Exchanges after this step neither answer nor are expected."""

    edits: Edits | None = None
    beyond: Beyond | None = None
    """Who decides first about what the recording does not answer."""

    recorded: bool = False
    """What is answered becomes part of a run of its own."""

    wishes: Mapping[str, Json] | None = None
    """What was wished for of this replay (`wishes`), to be told with its report."""

    listed: bool = False
    """The report names every exchange that answered (`answered_by`)."""

    allow_unused: bool = False
    candidate: str | None = None
    """The run in which what goes live is recorded, until it is known to be whole (store/generations/auto_sessions.py)."""

    called: str | None = None
    """What the recording is called where it is to be named in a command."""

    mend: explain.Mend | None = None
    """What to tell to do about a miss, where that is not a command of `playhead`."""


@dataclass(slots=True)
class Session:
    """Answers the requests of one replay."""

    id: str
    recording: Recording
    options: Options
    changed: Callable[[str], None]
    """Called with the id after each change of the report."""

    interrupted: bool = False
    """It was begun by a worker that is gone, and with it the position: it answers nothing any more."""

    asked_at: float = 0.0
    """When the last request came, by the clock of whoever asks."""

    _tally: Tally = field(init=False, default_factory=Tally)
    _script: Script = field(init=False)
    _sockets: sockets.Switchboard = field(init=False)
    _number: int = field(init=False, default=0)
    _streams: WeakSet[Stream] = field(init=False, default_factory=WeakSet)
    """Those of which somebody still holds the answer: not every one that is left is told."""

    _streamed: bool = field(init=False, default=False)
    """Whether there ever was one."""

    def __post_init__(self) -> None:
        self._script = Script(self.recording.index, self.options.after_last)
        self._sockets = sockets.Switchboard(self._script)

    async def answer(self, request: Request, actor: str | None = None, *, strict: bool = False) -> Answer | None:
        """Answer a redacted request of an actor. None: it was not recorded, and goes live, which it may not where `strict`."""
        own = self.options.own_mode(_host(request.url))
        if own == "passthrough":
            self.note_passed_request()
            return None
        self._number += 1
        edited = self._tally.edited_at
        asked = ReplayedRequest(
            request=request,
            number=self._number,
            replay=self.id,
            run=self.recording.run,
            actor=actor,
            called=self.options.called,
            live=self.options.on_miss == "live" and not strict if own is None else own == "auto",
            mend=self.options.mend,
            edited=None if edited is None else self.recording.fork_step(edited),
        )
        try:
            given = await self._found(asked)
        except BaseException:
            # The client left while we looked, or we have failed. It has missed all the same, and no replay is right that
            # forgets it.
            self._tally.miss(miss.noted(explain.abandoned(asked)))
            self.changed(self.id)
            raise
        self.changed(self.id)
        if given and self.options.recorded:
            return replace(given, recorded=given.recorded or "completed")
        return given

    def note_passed_request(self) -> None:
        """A request went to a host that may be asked for real."""
        self._tally.allowed += 1
        self.changed(self.id)

    def refuse_connection(self, destination: str, reason: str) -> None:
        """A connection of the command was neither TLS nor HTTP, or failed before it asked for anything."""
        self._tally.refuse_connection(destination, reason)
        self.changed(self.id)

    def note_unseen_request(self, *, large: bool = False) -> None:
        """A client has left before we could look at its request, or that is too `large` for it."""
        self._number += 1
        self._tally.miss(miss.noted(explain.unseen(self.id, self.recording.run, self._number, large=large)))
        self.changed(self.id)

    async def _found(self, asked: ReplayedRequest) -> Answer | None:
        if self.interrupted:
            why = explain.interrupted(asked)
            self._tally.miss(miss.noted(why))
            return miss.answer(why)
        raw = raw_digest(asked.request)
        key = self._script.key_of(raw) or await self._key(asked.request)
        taken = self._script.take(key, raw, asked.actor)
        return await (self._unanswered(asked, key, raw) if taken is None else self._taken(asked, taken))

    @property
    def streaming(self) -> bool:
        """Whether a stream may be open that waits for what is still to be asked."""
        return bool(self._streams)

    @property
    def begun(self) -> bool:
        """Whether anything was asked."""
        return self._number > 0

    def rest(self) -> "Rest":
        """What to keep of it while nobody asks: its recording takes most of the room, and can be had again."""
        hooks = self.options.edits, self.options.beyond
        return Rest(
            report=self.report(),
            tally=self._tally,
            number=self._number,
            digest=self.recording.digest,
            position=self._script.position,
            hooks=tuple(hook.rest() if hook else None for hook in hooks),
            interrupted=self.interrupted,
        )

    def go_on(self, rest: "Rest") -> None:
        """Take up where it rested. A run that has changed meanwhile has no such place."""
        self._tally, self._number = rest.tally, rest.number
        self.interrupted = rest.interrupted or rest.digest != self.recording.digest
        if self.interrupted:
            return
        self._script.position = rest.position
        for hook, rested in zip((self.options.edits, self.options.beyond), rest.hooks, strict=True):
            if hook:
                hook.go_on(rested)

    def report(self) -> dict[str, Json]:
        """The report so far."""
        entries = self.recording.index.entries
        told = report(
            self._tally,
            replay=self.id,
            run=self.recording.run,
            recorded=len(entries),
            unused=self._script.left,
            left_over=[_left_over(entries[place]) for place in islice(self._script.unplayed(), LISTED)],
            unused_leads=all(place == number for number, place in enumerate(self._script.unplayed())),
            allow_unused=self.options.allow_unused,
            is_first=self.options.candidate is not None,
        )
        if self.interrupted:
            told = interrupted(told)
        if self.options.wishes:
            told["wishes"] = self.options.wishes
        if self.options.candidate:
            told["candidate"] = self.options.candidate
        if self.options.edits:
            told = self.options.edits.reported(told)
        return self.options.beyond.reported(told) if self.options.beyond else told

    async def _key(self, request: Request) -> str:
        return (await _aside(request, partial(keyed, request, self.recording.profiles))).key

    async def _taken(self, asked: ReplayedRequest, taken: ScriptMatch) -> Answer | None:
        if self._streamed:
            for stream in self._streams:
                if stream.url == asked.request.url:
                    stream.posted(taken.recorded.step, asked.request)
        if taken.recorded.heavy:
            await asyncio.to_thread(getattr, taken.recorded, "exchange")
        if playback.is_websocket(taken.recorded.exchange) and not taken.recorded.lacking:
            return self._spoken(asked, taken)
        exchange = taken.recorded.exchange
        if exchange.outcome == "client_closed":
            exchange = await self._heard_out(exchange)
        if taken.exact:
            return self._given(asked, taken, Fit(exchange=exchange, strict=True))
        return await self._fitted(asked, taken, exchange)

    async def _heard_out(self, exchange: Exchange) -> Exchange:
        """As it was, but that it has HTTP's end too where its client left at the answer's own: another may wait for it."""
        call = await asyncio.to_thread(derive, exchange, self.recording.profiles)
        return replace(exchange, outcome=ended(exchange, concluded=concluded(call)))

    async def _fitted(self, asked: ReplayedRequest, taken: ScriptMatch, exchange: Exchange) -> Answer | None:
        """The recorded answer to a request that is not the recorded one to the byte."""
        fit = await _aside(asked.request, partial(fitted, exchange, asked.request, self.recording.profiles))
        if not fit.strict and not taken.again and (closer := await self._closer(asked, taken.recorded, fit)):
            taken = replace(taken, recorded=closer)
            profiles = self.recording.profiles
            fit = await _aside(asked.request, partial(fitted, closer.exchange, asked.request, profiles))
        recorded = taken.recorded
        if fit.drift:
            self._tally.differed(recorded.id, fit.drift)
        if fit.misfit:
            return self._refused(asked, explain.incomplete(asked, recorded, fit.misfit))
        return self._given(asked, taken, fit)

    async def _closer(self, asked: ReplayedRequest, taken: RecordedExchange, fit: Fit) -> RecordedExchange | None:
        """Another exchange of the same key, taken in the place of one that is not what is asked for to the letter.

        One that is asked for so comes before the recorded order; one of the same form only where the taken one is not.
        """
        others = islice(self._script.untaken(taken.key, asked.actor), _RIVALS)
        light = [other for other in others if not other.heavy]
        closer = await _aside(asked.request, partial(closest, light, asked.request, self.recording.profiles))
        if closer is None:
            return None
        is_better = fit.reframed or fit.misfit is not None
        if not is_better:
            found = await _aside(
                asked.request, partial(fitted, closer.exchange, asked.request, self.recording.profiles)
            )
            is_better = found.strict
        return self._script.trade(taken, lambda other: other is closer) if is_better else None

    def _given(self, asked: ReplayedRequest, taken: ScriptMatch, fit: Fit) -> Answer | None:
        """The recorded answer, if it is there whole and nobody edits it."""
        recorded = taken.recorded
        if (edited := self._edited(asked, recorded, fit.exchange)) is not None:
            return edited
        if recorded.lacking:
            return self._refused(asked, explain.incomplete(asked, recorded, recorded.lacking))
        tier: Tier = "strict" if fit.strict else "semantic"
        self._tally.hit(taken, tier, reframed=fit.reframed)
        if self.options.listed:
            self._tally.answered_by.append(recorded.id)
        stands = mark("replayed", run=asked.run, step=recorded.step, match=tier, reframed=fit.reframed)
        stream = self._stream(fit.exchange)
        stayed = partial(self._stayed, asked, recorded, tier)
        left = partial(self._left, asked, recorded, tier, fit.exchange)
        given = playback.answer(fit.exchange, self.options.pace, stands, stayed=stayed, left=left)
        return given if stream is None else replace(given, pieces=tuple(stream.pieces(self.options.pace)))

    def _stream(self, exchange: Exchange) -> Stream | None:
        """The stream of MCP's older transport that this is."""
        if not is_old(exchange):
            return None
        stream = Stream(exchange, self.recording.index.entries)
        self._streams.add(stream)
        self._streamed = True
        return stream

    def _spoken(self, asked: ReplayedRequest, taken: ScriptMatch) -> Answer | None:
        """A WebSocket: its opening answers a request, and what was said over it follows."""
        recorded, profiles = taken.recorded, self.recording.profiles
        if (edited := self._edited(asked, recorded, recorded.exchange)) is not None:
            return edited
        fit = fitted(sockets.opened(recorded.exchange), asked.request, profiles)
        if fit.drift:
            self._tally.differed(recorded.id, fit.drift)
        tier: Tier = "strict" if fit.strict else "semantic"
        # Of equal openings, what is said over them decides.
        self._tally.hit(replace(taken, ambiguous=False), tier, reframed=False)
        if self.options.listed:
            self._tally.answered_by.append(recorded.id)

        def missed(given: RecordedExchange, where: Break) -> Miss:
            self._not_served(tier, why := sockets.miss(asked, given, where))
            return why

        socket = sockets.Socket(
            recorded,
            profiles,
            self.options.pace,
            missed=missed,
            drifted=lambda given, places: self._tally.differed(given.id, places),
            exchange=self._sockets,
        )
        return socket.answer(mark("replayed", run=asked.run, step=recorded.step, match=tier))

    def _edited(self, asked: ReplayedRequest, recorded: RecordedExchange, exchange: Exchange) -> Answer | None:
        if (edits := self.options.edits) is None:
            return None
        stands = mark("edited", run=asked.run, step=recorded.step)
        given = edits.edited(asked, recorded, exchange, self.options.pace, stands)
        if given is None:
            return None
        if given.again:
            self._script.put_back(recorded)
        self._tally.edited += 1
        self._tally.edited_at = recorded.step
        return given.answer

    async def _unanswered(self, asked: ReplayedRequest, key: str, raw: str) -> Answer | None:
        beyond = self.options.beyond
        match beyond.beyond(asked, key, raw) if beyond else None:
            case ScriptMatch() as taken:
                return await self._taken(asked, taken)
            case HookAnswer() as given:
                self._tally.edited += given.edited
                return given.answer
            case "live":
                self._tally.live += 1
                return None
            case None:
                return await self._explained(asked, key)

    async def _explained(self, asked: ReplayedRequest, key: str) -> Answer | None:
        """A thread looks for the nearest recorded call: in a long recording that takes a while."""
        turn = list(islice(self._script.unplayed(), _TURN))
        group = self._script.recorded(key, asked.actor)
        return self._refused(
            asked, await asyncio.to_thread(explain.unanswered, asked, self.recording, key, group, turn)
        )

    def _refused(self, asked: ReplayedRequest, why: Miss) -> Answer | None:
        live = asked.live
        self._tally.miss(miss.noted(why), live=live)
        return None if live else miss.answer(why)

    def _stayed(self, asked: ReplayedRequest, recorded: RecordedExchange, tier: Tier) -> Answer:
        """The client waits for more than was recorded: no hit after all."""
        why = explain.stayed(asked, recorded, instant=self.options.pace == INSTANT)
        self._not_served(tier, why)
        return miss.answer(why)

    def _left(
        self, asked: ReplayedRequest, recorded: RecordedExchange, tier: Tier, exchange: Exchange, sent: int
    ) -> None:
        """The client did not wait for what the recorded one got: it has seen another answer, unless it had all that this
        one says. SDKs leave at a stream's end mark, whatever comes behind it."""
        if not concluded(derive(playback.cut(exchange, sent), self.recording.profiles)):
            self._not_served(tier, explain.left(asked, recorded))

    def _not_served(self, tier: Tier, why: Miss) -> None:
        self._tally.not_hit(tier)
        self._tally.miss(miss.noted(why))
        self.changed(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A replay that nobody asks, without its recording."""

    report: dict[str, Json]
    tally: Tally
    number: int
    digest: str
    position: Position
    hooks: tuple[Any, ...]
    """Where its edits, and what decides beyond the record, stand."""

    interrupted: bool


@lru_cache(256)
def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


async def _aside[T](request: Request, work: Callable[[], T]) -> T:
    """Do what takes long for a large body on a thread, and at once for a small one."""
    return await asyncio.to_thread(work) if len(request.body.data) > _HEAVY else work()


def _left_over(recorded: RecordedExchange) -> Json:
    brief = recorded.brief
    return {"call": brief.id, "step": recorded.step, "asked": f"{brief.method} {readable(brief.url)}"}
