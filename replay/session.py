"""Answer the requests of one replay: hold its position in the recording, count what happens, and report it."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from calls.derive import derive_call
from calls.keys.divergence import shorten_pointer
from calls.keys.key import make_key, raw_digest
from calls.model import Exchange, Json, Request, client_outcome, has_answer_ended, header
from calls.redaction.redactor import Redactor
from replay import playback
from replay.answer import Answer, Duplex, MatchTier, source_header
from replay.closest_match import ALTERNATIVES_CONSIDERED, ClosestMatch
from replay.duplex import DuplexReplay, UnrecordedCall, is_grpc
from replay.effects import EffectsReplay
from replay.forks.hooks import HookAnswer
from replay.incoming_request import IncomingRequest
from replay.misses import explain, miss
from replay.misses.miss import Miss
from replay.pacing import INSTANT
from replay.recording import Recording
from replay.reframing.adapt_answer import AdaptedAnswer, adapt_answer
from replay.reframing.echoed_ids import request_with_ids, with_present_ids
from replay.reframing.id_pairs import KnownPairs, Pairs
from replay.reframing.resumed_streams import ResumedStreams
from replay.replay_options import ReplayOptions
from replay.report import REPORT_LISTED, Tally, build_report, interrupted_report, report_with_effects
from replay.script import Position, RecordedExchange, Script, ScriptMatch
from replay.websocket import session as sockets
from replay.websocket.mcp_stream import McpStream, McpStreams
from replay.websocket.timeline import Break

_UNPLAYED_CONSIDERED = 256
"""Maximum number of unplayed exchanges that are considered in the search for the nearest call."""


@dataclass(slots=True)
class Session:
    """One replay."""

    id: str
    recording: Recording
    options: ReplayOptions
    on_change: Callable[[str], None]
    """Called with the id after each change of the report."""

    redactor: Redactor | None = None
    """What redacted the requests; None if recorded requests are not to be redacted again."""

    is_interrupted: bool = False
    """True if the position is lost, because a worker that has ended began the replay. Every request is then missed."""

    is_begin_noted: bool = False
    """Whether it was noted that the replay begins."""

    last_request_at: float = 0.0
    """The time of the last request, set by the caller from its own clock."""

    wall_clock: Callable[[], int] = time.time_ns
    """Returns the time in nanoseconds since the epoch."""

    _tally: Tally = field(init=False, default_factory=Tally)
    _script: Script = field(init=False)
    _websockets: sockets.OpenWebsockets = field(init=False)
    _request_count: int = field(init=False, default=0)
    _streams: WeakSet[McpStream] = field(init=False, default_factory=WeakSet)
    """Open streams of MCP that wait for requests. References are weak, because a stream is not told when its client leaves."""

    _mcp_streams: McpStreams = field(init=False)
    _has_streamed: bool = field(init=False, default=False)
    """True if `_streams` ever had a member."""

    _known_pairs: KnownPairs = field(init=False, default_factory=KnownPairs)
    _resumed_streams: ResumedStreams | None = field(init=False, default=None)
    """None as long as every request of MCP's sessions came as it was recorded."""

    _redaction_lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    effects: EffectsReplay | None = field(init=False, default=None)
    """The recorded effects; None where there are none."""

    def __post_init__(self) -> None:
        if self.recording.effects:
            self.effects = EffectsReplay(
                batches=self.recording.effects,
                goes_live=self.options.on_miss == "live" or self.options.records_answers,
                is_recorded=self.options.records_answers,
                overrides=self.options.effect_overrides,
                on_change=lambda: self.on_change(self.id),
            )
        self._script = Script(self.recording.index, self.options.after_last)
        self._mcp_streams = self._new_mcp_streams()
        self._websockets = sockets.OpenWebsockets(self._script)

    async def answer(self, request: Request, actor: str | None = None, *, never_live: bool = False) -> Answer | None:
        """Answer a redacted request; None if it was not recorded and goes live, which `never_live` forbids."""
        own_mode = self.options.own_mode(_host(request.url))
        if own_mode == "passthrough":
            self.note_passed_request()
            return None
        self._request_count += 1
        incoming = self._incoming(
            request,
            actor,
            goes_live=self.options.on_miss == "live" and not never_live if own_mode is None else own_mode == "auto",
        )
        try:
            answer = await self._find_answer(incoming)
        except BaseException:
            # The client left during the search, or the search failed. Either way the request was missed, and the verdict
            # must not be `right`.
            self._tally.add_miss(miss.miss_entry(explain.abandoned_miss(incoming)))
            self.on_change(self.id)
            raise
        self.on_change(self.id)
        if answer and self.options.records_answers:
            return dataclasses.replace(answer, recorded_outcome=answer.recorded_outcome or "completed")
        return answer

    def _incoming(self, request: Request, actor: str | None, *, goes_live: bool) -> IncomingRequest:
        edited_step = self._tally.last_edited_step
        return IncomingRequest(
            request=request,
            number=self._request_count,
            replay=self.id,
            run=self.recording.run,
            actor=actor,
            recording_name=self.options.recording_name,
            goes_live=goes_live,
            repair_advice=self.options.repair_advice,
            page=self.options.page and miss.miss_page(self.options.page, self.id),
            fork_step=None if edited_step is None else self.recording.fork_step(edited_step),
        )

    def note_passed_request(self) -> None:
        """Count a request to a host whose mode is `passthrough`."""
        self._tally.allowed += 1
        self.on_change(self.id)

    def note_refused_connection(self, destination: str, reason: str) -> None:
        """Report a connection that was neither TLS nor HTTP, or that failed before its first request."""
        self._tally.add_refused_connection(destination, reason)
        self.on_change(self.id)

    def note_unseen_request(self, *, large: bool = False) -> None:
        """Count as missed a request whose client left before it was read, or that is too `large` to be looked up."""
        self._request_count += 1
        self._tally.add_miss(
            miss.miss_entry(
                explain.unseen_request_miss(self.id, self.recording.run, self._request_count, is_large=large)
            )
        )
        self.on_change(self.id)

    async def may_open_duplex(self, request: Request) -> bool:
        """Whether a request, of which only the head is known, may be answered or refused before its end."""
        options = self.options
        may_leave = (
            options.edit_hook or options.miss_hook or options.records_answers or options.own_mode(_host(request.url))
        )
        if self.is_interrupted or may_leave:
            return False
        if "duplex_calls" not in vars(self.recording):
            await asyncio.to_thread(getattr, self.recording, "duplex_calls")
        return bool(self.recording.duplex_calls) or self._is_unrecorded(request)

    def _is_unrecorded(self, request: Request) -> bool:
        return self.options.on_miss == "fail" and is_grpc(request.headers) and request.url not in self.recording.urls

    async def open_duplex(self, request: Request, actor: str | None, redact: Callable[[bytes], bytes]) -> Duplex | None:
        """Return what answers or refuses a call before its request ends; None if it waits for the end.

        `request` is its redacted head, and `redact` redacts the beginning of its body.
        """
        options = self.options

        @cache
        def incoming() -> IncomingRequest:
            self._request_count += 1
            return self._incoming(request, actor, goes_live=False)

        if self._is_unrecorded(request):
            return UnrecordedCall(lambda: self._early_miss(incoming(), explain.unrecorded_url_miss(incoming())))
        recorded, are_all_duplex = self.recording.duplex_calls.get((request.method, request.url), ((), False))
        free = list(islice(filter(self._script.is_free, recorded), ALTERNATIVES_CONSIDERED))
        if not free:
            return None
        # Their bodies may have to be unpacked.
        replayable = await asyncio.to_thread(lambda: [one for one in free if not one.unreplayable_reason])
        if not replayable:
            return None

        def begin(one: RecordedExchange, replay: DuplexReplay) -> Answer | None:
            return self._duplex_answer(incoming(), one, replay)

        def refuse(one: RecordedExchange, size: int, has_begun: bool) -> Answer | None:
            if not has_begun and not (are_all_duplex and options.on_miss == "fail"):
                return None  # it is looked up, or goes live, when it is complete
            why = explain.duplex_miss(incoming(), one, size)
            if has_begun:
                self._undo_hit("strict", why)
                return None
            return self._early_miss(incoming(), why)

        return DuplexReplay(replayable, redact, begin, refuse)

    def _early_miss(self, incoming: IncomingRequest, why: Miss) -> Answer | None:
        answer = self._miss_answer(incoming, why)
        self.on_change(self.id)
        return answer

    def _duplex_answer(self, incoming: IncomingRequest, one: RecordedExchange, replay: DuplexReplay) -> Answer | None:
        """Take the recorded call, or one with an equal request that comes before it, and return its answer."""
        match = self._script.take_next(one.key, one.raw, incoming.actor, one.names)
        if match is None:
            return None
        exchange = match.recorded.exchange
        answer = self._served_answer(incoming, match, AdaptedAnswer(exchange=exchange, is_strict_match=True))
        self.on_change(self.id)
        return answer and dataclasses.replace(answer, pieces=tuple(replay.pieces(exchange, self.options.pace)))

    async def _find_answer(self, incoming: IncomingRequest) -> Answer | None:
        if self.is_interrupted:
            why = explain.interrupted_miss(incoming)
            self._tally.add_miss(miss.miss_entry(why))
            return miss.miss_answer(why, incoming.request)
        raw = raw_digest(incoming.request)
        key = self._script.key_of(raw) or await self._request_key(incoming)
        names = self._script.index.request_names(incoming.request)
        match = self._script.take_next(key, raw, incoming.actor, names)
        if match is None and await self._has_redacted_again():
            names = self._script.index.request_names(incoming.request)
            match = self._script.take_next(key, raw, incoming.actor, names)
        if match is None and (translated := await self._with_recorded_ids(incoming)) is not None:
            translated_raw = raw_digest(translated.request)
            translated_key = self._script.key_of(translated_raw) or await self._request_key(translated)
            match = self._script.take_next(translated_key, translated_raw, incoming.actor, names)
            if match is not None:
                return await self._answer_match(translated, match)
        return await (
            self._answer_unmatched(incoming, key, raw) if match is None else self._answer_match(incoming, match)
        )

    async def _has_redacted_again(self) -> bool:
        """Look the requests up as the present rules redact them, from the first miss on; whether that may find one."""
        if self.redactor is None:
            return False
        if self.recording.redacted_count is None:
            async with self._redaction_lock:
                if self.recording.redacted_count is None:
                    self.recording = await asyncio.to_thread(self.recording.redacted_again, self.redactor)
                    self._script.use_index(self.recording.index)
                    self._mcp_streams = self._new_mcp_streams()
        return self.recording.has_older_redaction

    def _new_mcp_streams(self) -> McpStreams:
        return McpStreams(self.recording.index.entries, lambda step: self._script.has_played(step))

    async def _with_recorded_ids(self, incoming: IncomingRequest) -> IncomingRequest | None:
        """Return a request with the recorded ids in place of those that its client drew anew; None where it has none of them."""
        then_of = self._known_pairs.echoed_then
        if not then_of:
            return None
        request = await incoming.run_off_loop(partial(request_with_ids, incoming.request, then_of))
        return None if request is None else msgspec.structs.replace(incoming, request=request)

    @property
    def has_open_stream(self) -> bool:
        """Whether an MCP stream may be open that waits for further requests."""
        return bool(self._streams)

    @property
    def has_begun(self) -> bool:
        """Whether there was a request."""
        return self._request_count > 0

    def suspend(self) -> "SuspendedSession":
        """Return the state of the replay without its recording, which takes most of the memory."""
        hooks = self.options.edit_hook, self.options.miss_hook
        return SuspendedSession(
            report=self.report(),
            tally=self._tally,
            request_count=self._request_count,
            digest=self.recording.digest,
            position=self._script.position,
            known_pairs=self._known_pairs,
            resumed_streams=self._resumed_streams,
            hooks=tuple(hook.saved_state() if hook else None for hook in hooks),
            is_interrupted=self.is_interrupted,
            effects=self.effects.saved_state() if self.effects is not None else None,
        )

    def resume(self, suspended: "SuspendedSession") -> None:
        """Restore a suspended state. If the run has changed since then, the replay counts as interrupted."""
        self._tally, self._request_count = suspended.tally, suspended.request_count
        self.is_interrupted = suspended.is_interrupted or suspended.digest != self.recording.digest
        if self.is_interrupted:
            return
        self._script.position = suspended.position
        self._known_pairs, self._resumed_streams = suspended.known_pairs, suspended.resumed_streams
        if self.effects is not None and suspended.effects is not None:
            self.effects.restore_state(suspended.effects)
        for hook, state in zip((self.options.edit_hook, self.options.miss_hook), suspended.hooks, strict=True):
            if hook:
                hook.restore_state(state)

    def report(self) -> dict[str, Json]:
        """The current report."""
        entries = self.recording.index.entries
        report = build_report(
            self._tally,
            replay=self.id,
            run=self.recording.run,
            recorded=len(entries),
            unused=self._script.unplayed_count,
            unused_steps=[
                _unused_entry(entries[place]) for place in islice(self._script.unplayed_places(), REPORT_LISTED)
            ],
            is_unused_prefix=all(place == number for number, place in enumerate(self._script.unplayed_places())),
            allow_unused=self.options.allow_unused,
            is_first=self.options.candidate is not None,
        )
        if self.effects is not None:
            report = report_with_effects(report, self.effects.report())
        if self.is_interrupted:
            report = interrupted_report(report)
        if self.options.requested:
            report["requested"] = self.options.requested
        if self.options.candidate:
            report["candidate"] = self.options.candidate
        if self.options.edit_hook:
            report = self.options.edit_hook.extend_report(report)
        if self.options.miss_hook:
            report = self.options.miss_hook.extend_report(report)
        return report if self.effects is None else self.effects.report_with_overrides(report)

    @property
    def _closest_match(self) -> ClosestMatch:
        return ClosestMatch(self._script, self.recording.profiles, self._known_pairs)

    async def _request_key(self, incoming: IncomingRequest) -> str:
        return (await incoming.run_off_loop(partial(make_key, incoming.request, self.recording.profiles))).key

    async def _answer_match(self, incoming: IncomingRequest, match: ScriptMatch) -> Answer | None:
        if match.recorded.is_heavy:
            await asyncio.to_thread(getattr, match.recorded, "exchange")
        if playback.is_websocket(match.recorded.exchange) and not match.recorded.unreplayable_reason:
            return self._websocket_answer(incoming, match)
        exchange = match.recorded.exchange
        if self._resumed_streams is not None:
            exchange = self._resumed_streams.readdress(exchange)
        if exchange.outcome == "client_closed":
            exchange = await self._without_early_end(exchange)
        if match.is_exact and not _has_other_cookies(match, incoming.request):
            match = await self._closest_match.with_certainty(incoming, match)
            fit = AdaptedAnswer(exchange=await self._with_present_ids(exchange), is_strict_match=True)
            return self._served_answer(incoming, match, fit)
        return await self._adapted_answer(incoming, match, exchange)

    async def _without_early_end(self, exchange: Exchange) -> Exchange:
        """Complete an exchange whose client left after the answer's own end mark: another client may wait for HTTP's."""
        call = await asyncio.to_thread(derive_call, exchange, self.recording.profiles)
        return replace(exchange, outcome=client_outcome(exchange, answer_ended=has_answer_ended(call)))

    async def _adapted_answer(self, incoming: IncomingRequest, match: ScriptMatch, exchange: Exchange) -> Answer | None:
        """Answer a request that is not byte for byte the recorded one."""
        match, fit = await self._closest_match.adapt(incoming, match, exchange)
        recorded = match.recorded
        if fit.drift:
            self._tally.add_drift(recorded.id, fit.drift)
        if fit.misfit:
            return self._miss_answer(incoming, explain.incomplete_miss(incoming, recorded, fit.misfit))
        match = await self._closest_match.with_certainty(incoming, match)
        self._known_pairs.note(fit.id_pairs)
        self._known_pairs.note_echoes(fit.echoes)
        fit = msgspec.structs.replace(fit, exchange=await self._with_present_ids(fit.exchange, fit.echoes))
        if recorded.session:
            self._resumed_streams = self._resumed_streams or ResumedStreams()
            self._resumed_streams.note_request(recorded.exchange.request, incoming.request)
        return self._served_answer(incoming, match, fit)

    async def _with_present_ids(self, exchange: Exchange, own: Pairs = ()) -> Exchange:
        """Replace the recorded ids in an answer by those that the client drew anew, if it drew any; count the answer if there were any."""
        edited = await with_present_ids(exchange, self._known_pairs.echoed_now, own)
        self._tally.ids_replaced += edited is not exchange
        return edited

    def _served_answer(self, incoming: IncomingRequest, match: ScriptMatch, fit: AdaptedAnswer) -> Answer | None:
        """Answer from the recording, unless the answer is edited or incomplete."""
        recorded = match.recorded
        if self._has_streamed:
            for open_stream in self._streams:
                open_stream.note_request(recorded.step, incoming.request)
        if (edited := self._edited_answer(incoming, recorded, fit.exchange)) is not None:
            return edited
        if recorded.unreplayable_reason:
            return self._miss_answer(
                incoming, explain.incomplete_miss(incoming, recorded, recorded.unreplayable_reason)
            )
        tier: MatchTier = "strict" if fit.is_strict_match else "semantic"
        self._tally.add_hit(match, tier, reframed=fit.is_reframed)
        if self.options.lists_answers:
            self._tally.answered_by.append(recorded.id)
        header = source_header("replayed", run=incoming.run, step=recorded.step, match=tier, reframed=fit.is_reframed)
        stream = self._open_mcp_stream(recorded, fit.exchange)
        answer_waiting_client = partial(self._miss_of_waiting_client, incoming, recorded, tier)
        note_client_left = partial(self._note_client_left, incoming, recorded, tier, fit.exchange)
        may_be_left = stream is not None and stream.may_be_left
        answer = playback.recorded_answer(
            playback.with_living_cookies(fit.exchange, self.wall_clock()),
            self.options.pace,
            header,
            answer_waiting_client=answer_waiting_client,
            note_client_left=None if may_be_left else note_client_left,
        )
        return answer if stream is None else dataclasses.replace(answer, pieces=tuple(stream.pieces(self.options.pace)))

    def _open_mcp_stream(self, recorded: RecordedExchange, exchange: Exchange) -> McpStream | None:
        """Open a stream of MCP, if the exchange is one that waits for requests."""
        if stream := self._mcp_streams.find(recorded, exchange):
            self._streams.add(stream)
            self._has_streamed = True
        return stream

    def _websocket_answer(self, incoming: IncomingRequest, match: ScriptMatch) -> Answer | None:
        """Answer the opening request of a WebSocket; its messages follow."""
        recorded, profiles = match.recorded, self.recording.profiles
        if (edited := self._edited_answer(incoming, recorded, recorded.exchange)) is not None:
            return edited
        fit = adapt_answer(sockets.opening_exchange(recorded.exchange), incoming.request, profiles)
        if fit.drift:
            self._tally.add_drift(recorded.id, fit.drift)
        tier: MatchTier = "strict" if fit.is_strict_match else "semantic"
        # If several WebSockets have equal opening requests, their messages decide which one is meant.
        self._tally.add_hit(msgspec.structs.replace(match, is_ambiguous=False), tier, reframed=False)
        if self.options.lists_answers:
            self._tally.answered_by.append(recorded.id)

        def note_miss(replayed: RecordedExchange, where: Break) -> Miss:
            self._undo_hit(tier, why := sockets.websocket_miss(incoming, replayed, where))
            return why

        socket = sockets.ReplayedWebsocket(
            recorded,
            profiles,
            self.options.pace,
            note_miss=note_miss,
            note_drift=lambda exchange, places: self._tally.add_drift(exchange.id, places),
            open_websockets=self._websockets,
            redactor=self.redactor,
        )
        return socket.answer(source_header("replayed", run=incoming.run, step=recorded.step, match=tier))

    def _edited_answer(
        self, incoming: IncomingRequest, recorded: RecordedExchange, exchange: Exchange
    ) -> Answer | None:
        if (hook := self.options.edit_hook) is None:
            return None
        header = source_header("edited", run=incoming.run, step=recorded.step)
        edit = hook.edit_answer(incoming, recorded, exchange, self.options.pace, header)
        if edit is None:
            return None
        if edit.keeps_recorded:
            self._script.put_back(recorded)
        self._tally.edited += 1
        self._tally.last_edited_step = recorded.step
        return edit.answer

    async def _answer_unmatched(self, incoming: IncomingRequest, key: str, raw: str) -> Answer | None:
        hook = self.options.miss_hook
        match hook.answer_miss(incoming, key, raw) if hook else None:
            case ScriptMatch() as found:
                return await self._answer_match(incoming, found)
            case HookAnswer() as hook_answer:
                self._tally.edited += hook_answer.is_edit
                return hook_answer.answer
            case "live":
                self._tally.live += 1
                return None
            case None:
                return await self._explain_miss(incoming, key)

    async def _explain_miss(self, incoming: IncomingRequest, key: str) -> Answer | None:
        unplayed = list(islice(self._script.unplayed_places(), _UNPLAYED_CONSIDERED))
        group = self._script.recorded_exchanges(key, incoming.actor)
        # In a long recording, finding the nearest call takes a while.
        why = await asyncio.to_thread(explain.unmatched_miss, incoming, self.recording, key, group, unplayed)
        return self._miss_answer(incoming, why)

    def _miss_answer(self, incoming: IncomingRequest, why: Miss) -> Answer | None:
        live = incoming.goes_live
        self._tally.add_miss(miss.miss_entry(why), live=live)
        return None if live else miss.miss_answer(why, incoming.request)

    def _miss_of_waiting_client(self, incoming: IncomingRequest, recorded: RecordedExchange, tier: MatchTier) -> Answer:
        """Turn a hit into a miss because the client waits for more than was recorded."""
        why = explain.client_waits_miss(incoming, recorded, is_instant=self.options.pace == INSTANT)
        self._undo_hit(tier, why)
        return miss.miss_answer(why, incoming.request)

    def _note_client_left(
        self,
        incoming: IncomingRequest,
        recorded: RecordedExchange,
        tier: MatchTier,
        exchange: Exchange,
        sent_bytes: int,
    ) -> None:
        """Turn a hit into a miss if the client left before the answer's own end.

        SDKs leave at the end mark of a stream, whatever follows it.
        """
        if not has_answer_ended(derive_call(playback.exchange_cut_at(exchange, sent_bytes), self.recording.profiles)):
            self._undo_hit(tier, explain.client_left_miss(incoming, recorded))

    def _undo_hit(self, tier: MatchTier, why: Miss) -> None:
        self._tally.remove_hit(tier)
        self._tally.add_miss(miss.miss_entry(why))
        self.on_change(self.id)


class SuspendedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an idle replay, without its recording."""

    report: dict[str, Json]
    tally: Tally
    request_count: int
    digest: str
    position: Position
    known_pairs: KnownPairs
    resumed_streams: ResumedStreams | None
    hooks: tuple[Any, ...]
    """The states of the edit hook and the miss hook."""

    is_interrupted: bool
    effects: Any = None
    """How the replay of its effects went; None where it has none."""


def _has_other_cookies(match: ScriptMatch, request: Request) -> bool:
    """Whether a client brings other cookies than the recorded ones, so that an equal request may be of another conversation."""
    cookies = header(request.headers, "cookie")
    return cookies is not None and match.name is None and cookies != header(match.recorded.summary.headers, "cookie")


@lru_cache(256)
def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _unused_entry(recorded: RecordedExchange) -> Json:
    summary = recorded.summary
    return {"call": summary.id, "step": recorded.step, "asked": f"{summary.method} {shorten_pointer(summary.url)}"}
