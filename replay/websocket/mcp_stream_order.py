"""Hold back what came on a stream of MCP (streamable HTTP) only after requests that the client had yet to send.

At instant pace, a listening stream that ended with its session would end at once, and its client would open it again. What a
listening stream carries, and its end, waits for the last request of its session before it. On the answer to a POST, only
the answer to the server's own question and the cancellation of the POST are waited for.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import is_answer, split_messages
from calls.model import Exchange, Json, Request, header
from replay.answer import Piece
from replay.pacing import Pace
from replay.playback import GRACE
from replay.reframing.readdress import split_events
from replay.reframing.reframe import is_stream
from replay.script import RecordedExchange
from replay.websocket.mcp_sse_stream import event_messages

_REQUESTS_READ: Final = 256
"""Maximum number of requests that are read for one answer to a POST."""


class McpStreamOrder:
    """The replay of one stream whose parts wait for requests."""

    def __init__(self, exchange: Exchange, awaited: Sequence[RecordedExchange], *, may_be_left: bool) -> None:
        self.may_be_left = may_be_left
        """Whether the client may leave before the end: it listened, or cancelled its request."""

        self._exchange = exchange
        self._awaited = [(entry.summary.started_at - exchange.started_at, entry.step) for entry in awaited]
        self._unsent_steps = {step for _, step in self._awaited}

    def note_request(self, step: int, _request: Request) -> None:
        """Note that the request of this step was sent again."""
        self._unsent_steps.discard(step)

    def pieces(self, pace: Pace) -> Iterator[Piece]:
        """The recorded pieces, and an empty one for the end. Each is ready when what came before it was requested."""
        assert self._exchange.response is not None
        body, end = self._exchange.response.body, self._exchange.ended_at or 0
        times = [chunk.at for chunk in body.chunks if chunk.size] or [0]
        latest = end + GRACE
        for number, piece in enumerate(pace.pieces(body)):
            ready = partial(self._ready_data, piece.data, self._awaited_step(times[min(number, len(times) - 1)]))
            yield Piece(piece.at, piece.data, ready, latest)
        last = self._awaited[-1][1]
        yield Piece(pace.end_time(self._exchange), b"", partial(self._ready_data, b"", last), latest)

    def _awaited_step(self, at: int) -> int | None:
        return next((step for started_at, step in reversed(self._awaited) if started_at < at), None)

    def _ready_data(self, data: bytes, step: int | None) -> bytes | None:
        return None if step in self._unsent_steps else data


def find_stream_order(
    recorded: RecordedExchange, exchange: Exchange, entries: Sequence[RecordedExchange]
) -> McpStreamOrder | None:
    """Return what holds back the parts of this exchange; None if nothing does."""
    if not recorded.session or exchange.response is None or not is_stream(exchange.response):
        return None
    requests = _requests_meanwhile(recorded, exchange, entries)
    if exchange.request.method == "GET":
        # A stream that continues the answer to a request ends with that answer.
        awaited = list(requests)
        carries_answer = awaited and any(is_answer(message) for message in _stream_messages(exchange))
        return McpStreamOrder(exchange, awaited, may_be_left=True) if awaited and not carries_answer else None
    light = [entry for entry in islice(requests, _REQUESTS_READ) if not entry.is_heavy]
    if not light:
        return None
    own_ids = {message.get("id") for message in _messages(exchange.request.body.data) if "method" in message}
    questions = [message.get("id") for message in _stream_messages(exchange) if "method" in message]
    cancels = [entry for entry in light if _cancels(entry, own_ids)]
    answers = (entry for entry in light if any(_answers(entry, one) for one in questions if one is not None))
    awaited = sorted({entry.step: entry for entry in (*cancels, *answers)}.values(), key=lambda entry: entry.step)
    return McpStreamOrder(exchange, awaited, may_be_left=bool(cancels)) if awaited else None


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
        yield from event_messages(events.data[chunk.offset : chunk.offset + chunk.size])


def _messages(data: bytes) -> Sequence[Mapping[str, Json]]:
    try:
        return split_messages(parse_json_leniently(data))
    except InvalidJson:
        return ()


def _cancels(entry: RecordedExchange, ids: set[Json]) -> bool:
    return any(
        message.get("method") == "notifications/cancelled" and as_object(message.get("params")).get("requestId") in ids
        for message in _messages(entry.exchange.request.body.data)
    )


def _answers(entry: RecordedExchange, id_: Json) -> bool:
    return any(
        is_answer(message) and message.get("id") == id_ for message in _messages(entry.exchange.request.body.data)
    )
