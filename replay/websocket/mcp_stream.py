"""Hold back what came on a stream of MCP only after requests that the client had yet to send.

Streamable HTTP: at instant pace, a listening stream that ended with its session would end at once, and its client would open
it again. Its end waits for the last request of its session before it, and its events as `replay/websocket/mcp_listening.py`
says. The answer to a POST waits for the answers to the server's own questions, and for the cancellation of the POST.

The older transport (HTTP+SSE): the client opens the stream first and sends requests in separate POSTs. An event with the id
of a recorded POST waits for that POST. Events that need not wait are sent in recorded order, with the ids that the client
uses now.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final

import msgspec

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import is_answer
from calls.mcp_late_answers import announced_endpoint, is_old_transport
from calls.model import Body, Exchange, Json, Request, header
from replay.answer import Piece
from replay.pacing import RECORDED, Pace
from replay.playback import GRACE
from replay.reframing.readdress import readdress_event, split_events
from replay.reframing.reframe import is_stream
from replay.script import RecordedExchange
from replay.websocket.mcp_listening import (
    EventPlan,
    Messages,
    Reply,
    SentRequest,
    body_messages,
    event_messages,
    id_name,
    names_requests,
    plan_events,
)

_REQUESTS_READ: Final = 256
"""Maximum number of requests that are read for one answer to a POST."""

_SESSION_REQUESTS_READ: Final = 1024
"""Maximum number of requests that are read for a listening stream on which the server asked questions."""

_OPENED_BEFORE: Final = 32
"""Maximum number of exchanges before a listening stream that may still be open when it begins."""

_OVERTAKES: Final = 256
"""Maximum number of waiting events that a later event may overtake."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    data: bytes
    at: int = 0
    """When it was recorded: it waits for the answers before this to questions that were sent."""

    any_of: Sequence[int] = ()
    """Steps of which one must come before; empty if none need."""

    all_of: Sequence[int] = ()
    """Steps that must all come before."""

    owner: int | None = None
    """The step of the request whose id the part has."""

    reply: Reply | None = None
    """The answer to the question that it is."""


class McpStream:
    """The replay of one stream whose parts wait for requests."""

    def __init__(
        self,
        body: Body,
        parts: Sequence[_Part],
        *,
        end: tuple[int, int] | None = None,
        requests: Mapping[int, Json] | None = None,
        may_be_left: bool = False,
    ) -> None:
        """`parts`: what each recorded piece of the body waits for.

        `end`: when the stream ended, and the step that its end waits for. `requests`: the recorded requests by their steps,
        if each piece is an event that may overtake others.
        """
        self.may_be_left = may_be_left
        """Whether the client may leave before the end: it listened, or cancelled its request."""

        self._body = body
        self._parts = parts
        self._end = end
        self._requests = requests
        self._waiting: list[_Part] = []
        self._questions: list[Reply] = []
        """The answers to the questions that were sent and that the client has yet to answer."""

        self._sent: dict[int, Json] = {}
        """The requests that were sent again, by their steps; None for each unless ids are taken from it."""

    def note_request(self, step: int, request: Request) -> None:
        """Note that the request of this step was sent again."""
        self._sent[step] = None if self._requests is None or step not in self._requests else _message(request)
        self._questions = [reply for reply in self._questions if reply.step != step]

    def note_earlier_request(self, step: int) -> None:
        """Note that the request of this step was sent before the stream was opened."""
        self._sent[step] = None

    def pieces(self, pace: Pace) -> Iterator[Piece]:
        """The recorded pieces, and an empty one for the end. Each is ready when what came before it was requested."""
        latest = self._end and self._end[0] + GRACE
        for piece, part in zip(pace.pieces(self._body), self._parts, strict=True):
            ready_data: Callable[[], bytes | None] = partial(self._ready_data, part)
            if self._requests is not None:
                self._waiting.append(part)
                ready_data = self._next_event
            yield Piece(piece.at, piece.data, ready_data, latest)
        if self._end is not None:
            ended_at, step = self._end
            yield Piece(
                pace.send_time(ended_at), b"", partial(self._ready_data, _Part(data=b"", all_of=(step,))), latest
            )

    def _ready_data(self, part: _Part) -> bytes | None:
        return part.data if self._is_ready(part) else None

    def _is_ready(self, part: _Part) -> bool:
        if part.any_of and not any(step in self._sent for step in part.any_of):
            return False
        return all(step in self._sent for step in part.all_of) and not any(
            reply.at < part.at for reply in self._questions
        )

    def _next_event(self) -> bytes | None:
        """The first event that need not wait any longer, with the current ids."""
        for place, part in enumerate(self._waiting[:_OVERTAKES]):
            if self._is_ready(part):
                del self._waiting[place]
                if part.reply is not None and part.reply.step not in self._sent:
                    self._questions.append(part.reply)
                return self._readdressed_event(part)
        return None

    def _readdressed_event(self, part: _Part) -> bytes:
        if part.owner is None or self._requests is None or (now := self._sent.get(part.owner)) is None:
            return part.data
        return readdress_event(part.data, self._requests[part.owner], now)


class McpStreams:
    """Makes the replays of the streams of one recording, and keeps what it reads for them."""

    def __init__(self, entries: Sequence[RecordedExchange], has_played: Callable[[int], bool]) -> None:
        """`has_played`: whether the exchange of a step was requested already."""
        self._entries = entries
        self._has_played = has_played
        self._plans: dict[int, tuple[EventPlan, Sequence[SentRequest]] | None] = {}
        """The plans of listening streams by their steps; None where there is nothing to wait for."""

        self._listening: dict[tuple[str, str | None], list[RecordedExchange]] = {}
        """The listening streams of each URL and session. Empty until it is needed."""

    def find(self, recorded: RecordedExchange, exchange: Exchange) -> McpStream | None:
        """Return the replay of an exchange whose parts wait for requests; None if none does."""
        if is_old_transport(exchange):
            return self._old_stream(exchange)
        if not recorded.session or exchange.response is None:
            return None
        if exchange.request.method == "GET":
            return self._listening_stream(recorded, exchange) if is_stream(exchange.response) else None
        return self._awaiting_answer(recorded, exchange)

    def _listening_stream(self, recorded: RecordedExchange, exchange: Exchange) -> McpStream | None:
        # A plan has the events, with ids of the present where the client drew them anew.
        is_recorded = exchange is recorded.exchange
        found = self._plan(recorded, exchange) if is_recorded else self._make_plan(recorded, exchange)
        if found is None:
            return None
        plan, requests = found
        steps = [one.step for one in requests]
        stream = McpStream(
            plan.events,
            _planned_parts(plan),
            end=(exchange.ended_at or 0, steps[-1]),
            requests=_recorded_messages(requests) if any(one.messages for one in requests) else None,
            may_be_left=True,
        )
        return self._with_earlier(stream, steps)

    def _with_earlier(self, stream: McpStream, steps: Iterable[int]) -> McpStream:
        """The stream, which knows those of these requests that were sent before it was opened."""
        for step in filter(self._has_played, steps):
            stream.note_earlier_request(step)
        return stream

    def _plan(self, recorded: RecordedExchange, exchange: Exchange) -> tuple[EventPlan, Sequence[SentRequest]] | None:
        if recorded.step not in self._plans:
            self._plans[recorded.step] = self._make_plan(recorded, exchange)
        return self._plans[recorded.step]

    def _make_plan(
        self, recorded: RecordedExchange, exchange: Exchange
    ) -> tuple[EventPlan, Sequence[SentRequest]] | None:
        messages = list(_stream_messages(exchange))
        # A stream that continues the answer to a request ends with that answer.
        if any(is_answer(message) for message in messages):
            return None
        meanwhile = list(self._requests_meanwhile(recorded, exchange))
        if not meanwhile:
            return None
        entries = [*self._requests_open_at(recorded, exchange), *meanwhile]
        most = _SESSION_REQUESTS_READ if names_requests(messages) else 0
        requests = [
            _sent_request(entry, is_read=number < most and not entry.is_heavy) for number, entry in enumerate(entries)
        ]
        return plan_events(exchange, requests), requests

    def _awaiting_answer(self, recorded: RecordedExchange, exchange: Exchange) -> McpStream | None:
        """An answer to a POST that waits for what the client sends meanwhile."""
        assert exchange.response is not None
        own_messages = body_messages(exchange.request.body.data)
        own_ids = _request_ids(own_messages)
        if not own_ids:
            return None  # A notification or an answer is only accepted.
        entries = islice(self._requests_meanwhile(recorded, exchange), _REQUESTS_READ)
        requests = [_sent_request(entry) for entry in entries if not entry.is_heavy]
        if not requests:
            return None
        messages = _stream_messages(exchange) if is_stream(exchange.response) else ()
        questions = _request_ids(messages)
        cancels = [one for one in requests if _cancels(one.messages, own_ids)]
        answers = [one for one in requests if any(is_answer(message) for message in one.messages)]
        own = {one.step: one.started_at for one in answers if _has_id_of(one.messages, questions)}
        awaited = own | {one.step: one.started_at for one in cancels}
        if len(own) < len(answers):
            awaited |= {reply.step: reply.at for reply in self._replies_elsewhere(recorded)}
        if not awaited:
            return None
        return self._with_earlier(_answer_awaiting(exchange, awaited, may_be_left=bool(cancels)), awaited)

    def _replies_elsewhere(self, recorded: RecordedExchange) -> Iterator[Reply]:
        """The client's answers to what the server asked on listening streams while this request was open."""
        if not self._listening:
            for entry in self._entries:
                if entry.session and entry.summary.method == "GET":
                    self._listening.setdefault(_session_of(entry), []).append(entry)
        for entry in self._listening.get(_session_of(recorded), ()):
            response = None if entry.is_heavy else entry.exchange.response
            if response is not None and is_stream(response) and (found := self._plan(entry, entry.exchange)):
                yield from found[0].replies.get(recorded.step, ())

    def _requests_open_at(self, recorded: RecordedExchange, exchange: Exchange) -> Iterator[RecordedExchange]:
        """The requests of the same session that began before this stream and ended after its begin."""
        place = recorded.step - self._entries[0].step
        for entry in self._entries[max(place - _OPENED_BEFORE, 0) : place]:
            if _is_request_beside(entry, recorded) and entry.end_time > exchange.started_at:
                yield entry

    def _requests_meanwhile(self, recorded: RecordedExchange, exchange: Exchange) -> Iterator[RecordedExchange]:
        """The requests of the same session that came while this exchange was open, in their order."""
        end = exchange.started_at + (exchange.ended_at or 0)
        begin = recorded.step - self._entries[0].step + 1
        later = (self._entries[place] for place in range(begin, len(self._entries)))
        for entry in takewhile(lambda entry: entry.summary.started_at < end, later):
            if _is_request_beside(entry, recorded):
                yield entry

    def _old_stream(self, exchange: Exchange) -> McpStream:
        """A stream of the older transport, divided into its events."""
        url = announced_endpoint(exchange)
        posts = [
            entry
            for entry in self._entries
            if entry.summary.url == url
            and entry.summary.method == "POST"
            and entry.summary.started_at >= exchange.started_at
        ]
        requests = [_sent_request(entry) for entry in posts]
        plan = plan_events(exchange, requests)
        return McpStream(plan.events, _planned_parts(plan), requests=_recorded_messages(requests))


def _planned_parts(plan: EventPlan) -> list[_Part]:
    return [
        _Part(
            data=piece.data,
            at=wait.at,
            any_of=wait.any_of,
            all_of=() if wait.after is None else (wait.after,),
            owner=wait.owner,
            reply=wait.reply,
        )
        for piece, wait in zip(RECORDED.pieces(plan.events), plan.waits, strict=True)
    ]


def _answer_awaiting(exchange: Exchange, awaited: Mapping[int, int], *, may_be_left: bool) -> McpStream:
    """An answer whose pieces wait for those of these steps that came before them, and its end for the last one."""
    assert exchange.response is not None
    body = exchange.response.body
    parts = [
        _Part(
            data=piece.data,
            all_of=[step for step, started_at in awaited.items() if started_at < exchange.started_at + piece.at],
        )
        for piece in RECORDED.pieces(body)
    ]
    return McpStream(body, parts, end=(exchange.ended_at or 0, max(awaited)), may_be_left=may_be_left)


def _recorded_messages(requests: Sequence[SentRequest]) -> dict[int, Json]:
    return {one.step: list(one.messages) for one in requests}


def _session_of(entry: RecordedExchange) -> tuple[str, str | None]:
    return entry.summary.url, header(entry.summary.headers, "mcp-session-id")


def _is_request_beside(entry: RecordedExchange, recorded: RecordedExchange) -> bool:
    is_request = entry.summary.method != "GET" and entry.summary.url == recorded.summary.url and bool(entry.session)
    return is_request and _session_of(entry) == _session_of(recorded)


def _sent_request(entry: RecordedExchange, *, is_read: bool = True) -> SentRequest:
    messages = body_messages(entry.exchange.request.body.data) if is_read else ()
    return SentRequest(entry.step, entry.summary.started_at, entry.end_time, messages)


def _stream_messages(exchange: Exchange) -> Iterator[Mapping[str, Json]]:
    assert exchange.response is not None
    events = split_events(exchange.response.body)
    for chunk in events.chunks:
        yield from event_messages(events.data[chunk.offset : chunk.offset + chunk.size])


def _request_ids(messages: Iterable[Mapping[str, Json]]) -> set[str]:
    ids = (message.get("id") for message in messages if "method" in message)
    return {id_name(one) for one in ids if one is not None}


def _has_id_of(messages: Messages, ids: set[str]) -> bool:
    return any(id_name(message.get("id")) in ids for message in messages)


def _cancels(messages: Messages, ids: set[str]) -> bool:
    return any(
        message.get("method") == "notifications/cancelled"
        and id_name(as_object(message.get("params")).get("requestId")) in ids
        for message in messages
    )


def _message(request: Request) -> Json:
    try:
        return parse_json_leniently(request.body.data)
    except InvalidJson:
        return None
