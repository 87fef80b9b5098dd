"""Hold back what came on a stream of MCP only after requests that the client had yet to send.

Streamable HTTP: at instant pace, a listening stream that ended with its session would end at once, and its client would open
it again. What a listening stream carries, and its end, waits for the last request of its session before it. On the answer
to a POST, only the answer to the server's own question and the cancellation of the POST are waited for.

The older transport (HTTP+SSE): the client opens the stream first and sends requests in separate POSTs. An event with the id
of a recorded POST waits for that POST, and any other for the last POST before it. Events that need not wait are sent in
recorded order, with the ids that the client uses now.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import is_answer, split_messages
from calls.mcp_late_answers import announced_endpoint, is_old_transport
from calls.model import Body, Exchange, Json, Request, header
from replay.answer import Piece
from replay.pacing import RECORDED, Pace
from replay.playback import GRACE
from replay.reframing.readdress import readdress_event, split_events
from replay.reframing.reframe import is_stream
from replay.script import RecordedExchange

_REQUESTS_READ: Final = 256
"""Maximum number of requests that are read for one answer to a POST."""


class _Part(NamedTuple):
    data: bytes
    step: int | None
    """The step whose request must come before; None if there is none."""


class McpStream:
    """The replay of one stream whose parts wait for requests."""

    def __init__(
        self,
        body: Body,
        steps: Sequence[int | None],
        *,
        end: tuple[int, int] | None = None,
        requests: Mapping[int, Json] | None = None,
        may_be_left: bool = False,
    ) -> None:
        """`steps`: what each recorded piece of the body waits for.

        `end`: when the stream ended, and the step that its end waits for. `requests`: the recorded requests by their steps,
        if each piece is an event that may overtake others, and has the id of its request.
        """
        self.may_be_left = may_be_left
        """Whether the client may leave before the end: it listened, or cancelled its request."""

        self._body = body
        self._steps = steps
        self._end = end
        self._requests = requests
        self._waiting: list[_Part] = []
        self._sent: dict[int, Json] = {}
        """The requests that were sent again, by their steps; None for each unless ids are taken from it."""

    def note_request(self, step: int, request: Request) -> None:
        """Note that the request of this step was sent again."""
        self._sent[step] = None if self._requests is None or step not in self._requests else _message(request)

    def pieces(self, pace: Pace) -> Iterator[Piece]:
        """The recorded pieces, and an empty one for the end. Each is ready when what came before it was requested."""
        latest = self._end and self._end[0] + GRACE
        for piece, step in zip(pace.pieces(self._body), self._steps, strict=True):
            part = _Part(piece.data, step)
            ready_data: Callable[[], bytes | None] = partial(self._ready_data, part)
            if self._requests is not None:
                self._waiting.append(part)
                ready_data = self._next_event
            yield Piece(piece.at, piece.data, ready_data, latest)
        if self._end is not None:
            ended_at, step = self._end
            yield Piece(pace.send_time(ended_at), b"", partial(self._ready_data, _Part(b"", step)), latest)

    def _ready_data(self, part: _Part) -> bytes | None:
        return part.data if part.step is None or part.step in self._sent else None

    def _next_event(self) -> bytes | None:
        """The first event that need not wait any longer, with the current ids."""
        for part in self._waiting:
            if part.step is None or part.step in self._sent:
                self._waiting.remove(part)
                return self._readdressed_event(part)
        return None

    def _readdressed_event(self, part: _Part) -> bytes:
        if part.step is None or self._requests is None:
            return part.data
        return readdress_event(part.data, self._requests[part.step], self._sent[part.step])


def find_mcp_stream(
    recorded: RecordedExchange, exchange: Exchange, entries: Sequence[RecordedExchange]
) -> McpStream | None:
    """Return the replay of an exchange whose parts wait for requests; None if none does."""
    if is_old_transport(exchange):
        return _old_stream(exchange, entries)
    if not recorded.session or exchange.response is None or not is_stream(exchange.response):
        return None
    requests = _requests_meanwhile(recorded, exchange, entries)
    if exchange.request.method == "GET":
        # A stream that continues the answer to a request ends with that answer.
        awaited = list(requests)
        carries_answer = awaited and any(is_answer(message) for message in _stream_messages(exchange))
        return _stream_awaiting(exchange, awaited, may_be_left=True) if awaited and not carries_answer else None
    light = [entry for entry in islice(requests, _REQUESTS_READ) if not entry.is_heavy]
    if not light:
        return None
    own_ids = {message.get("id") for message in _messages(exchange.request.body.data) if "method" in message}
    questions = [message.get("id") for message in _stream_messages(exchange) if "method" in message]
    cancels = [entry for entry in light if _cancels(entry, own_ids)]
    answers = (entry for entry in light if any(_answers(entry, one) for one in questions if one is not None))
    awaited = sorted({entry.step: entry for entry in (*cancels, *answers)}.values(), key=lambda entry: entry.step)
    return _stream_awaiting(exchange, awaited, may_be_left=bool(cancels)) if awaited else None


def _stream_awaiting(exchange: Exchange, awaited: Sequence[RecordedExchange], *, may_be_left: bool) -> McpStream:
    """A stream whose pieces, and its end, wait for those of these requests that came before them."""
    assert exchange.response is not None
    body = exchange.response.body
    started = [(entry.summary.started_at - exchange.started_at, entry.step) for entry in awaited]
    steps = [
        next((step for started_at, step in reversed(started) if started_at < piece.at), None)
        for piece in RECORDED.pieces(body)
    ]
    return McpStream(body, steps, end=(exchange.ended_at or 0, started[-1][1]), may_be_left=may_be_left)


def _old_stream(exchange: Exchange, entries: Sequence[RecordedExchange]) -> McpStream:
    """A stream of the older transport, divided into its events."""
    assert exchange.response is not None
    url = announced_endpoint(exchange)
    posts = [
        entry
        for entry in entries
        if entry.summary.url == url
        and entry.summary.method == "POST"
        and entry.summary.started_at >= exchange.started_at
    ]
    requests = {entry.step: _message(entry.exchange.request) for entry in posts}

    def awaited_step(event: bytes, sent_at: int) -> int | None:
        ids = [message.get("id") for message in _event_messages(event) if is_answer(message)]
        answers = (step for step, request in requests.items() if any(_is_request(request, one) for one in ids))
        before = (entry.step for entry in posts if entry.summary.started_at < sent_at)
        return next(answers, max(before, default=None))

    events = split_events(exchange.response.body)
    steps = [awaited_step(piece.data, exchange.started_at + piece.at) for piece in RECORDED.pieces(events)]
    return McpStream(events, steps, requests=requests)


def _requests_meanwhile(
    recorded: RecordedExchange, exchange: Exchange, entries: Sequence[RecordedExchange]
) -> Iterator[RecordedExchange]:
    """The requests of the same session that came while the stream was open, in their order."""
    end = exchange.started_at + (exchange.ended_at or 0)
    session = header(recorded.summary.headers, "mcp-session-id")
    later = islice(entries, recorded.step - entries[0].step + 1, None)
    for entry in takewhile(lambda entry: entry.summary.started_at < end, later):
        summary = entry.summary
        is_request = summary.method != "GET" and summary.url == recorded.summary.url and entry.session
        if is_request and header(summary.headers, "mcp-session-id") == session:
            yield entry


def _stream_messages(exchange: Exchange) -> Iterator[Mapping[str, Json]]:
    assert exchange.response is not None
    body = exchange.response.body
    events = split_events(body)
    for chunk in events.chunks:
        yield from _event_messages(events.data[chunk.offset : chunk.offset + chunk.size])


def _event_messages(event: bytes) -> Sequence[Mapping[str, Json]]:
    data = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    return _messages(data)


def _messages(data: bytes) -> Sequence[Mapping[str, Json]]:
    try:
        return split_messages(parse_json_leniently(data))
    except InvalidJson:
        return ()


def _message(request: Request) -> Json:
    try:
        return parse_json_leniently(request.body.data)
    except InvalidJson:
        return None


def _is_request(message: Json, id_: Json) -> bool:
    return any(
        "method" in request and request.get("id") == id_ and id_ is not None for request in split_messages(message)
    )


def _cancels(entry: RecordedExchange, ids: set[Json]) -> bool:
    return any(
        message.get("method") == "notifications/cancelled" and as_object(message.get("params")).get("requestId") in ids
        for message in _messages(entry.exchange.request.body.data)
    )


def _answers(entry: RecordedExchange, id_: Json) -> bool:
    return any(
        is_answer(message) and message.get("id") == id_ for message in _messages(entry.exchange.request.body.data)
    )
