"""Replay the event stream of MCP's older transport (HTTP+SSE), where an answer is sent after its request was posted.

The client opens the stream first and sends requests in separate POSTs. An event with the id of a recorded POST waits for
that POST. Any other event waits for the last POST before it. Events that need not wait are sent in recorded order, with the
ids that the client uses now.
"""

from collections.abc import Iterator, Sequence

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.dialects.protocols.jsonrpc import is_answer, split_messages
from calls.mcp_late_answers import announced_endpoint
from calls.model import Exchange, Json, Request
from replay.answer import Piece
from replay.pacing import Pace
from replay.reframing.readdress import readdress_event, split_events
from replay.script import RecordedExchange


class McpSseStream:
    """The replay of one event stream."""

    may_be_left = False
    """Whether the client may leave before the end without a miss."""

    def __init__(self, exchange: Exchange, entries: Sequence[RecordedExchange]) -> None:
        assert exchange.response is not None
        self.url = announced_endpoint(exchange)
        self._exchange = exchange
        self._posts = [
            entry
            for entry in entries
            if entry.summary.url == self.url
            and entry.summary.method == "POST"
            and entry.summary.started_at >= exchange.started_at
        ]
        self._recorded_messages = {entry.step: _request_message(entry.exchange.request) for entry in self._posts}
        self._posted_messages: dict[int, Json] = {}
        self._waiting: list[tuple[bytes, int | None]] = []

    def note_request(self, step: int, request: Request) -> None:
        """Note that the request of this step was sent again."""
        if step in self._recorded_messages:
            self._posted_messages[step] = _request_message(request)

    def pieces(self, pace: Pace) -> Iterator[Piece]:
        """One piece per event, which is ready as soon as an event may be sent."""
        assert self._exchange.response is not None
        body = split_events(self._exchange.response.body)
        for chunk, piece in zip(body.chunks, pace.pieces(body), strict=True):
            self._waiting.append((piece.data, self._awaited_step(piece.data, self._exchange.started_at + chunk.at)))
            yield Piece(piece.at, piece.data, self._next_event)

    def _awaited_step(self, event: bytes, sent_at: int) -> int | None:
        """The step whose request must come before the event; None if there is none."""
        ids = [message.get("id") for message in event_messages(event) if is_answer(message)]
        answers = (
            step for step, message in self._recorded_messages.items() if any(_is_request(message, one) for one in ids)
        )
        before = (entry.step for entry in self._posts if entry.summary.started_at < sent_at)
        return next(answers, max(before, default=None))

    def _next_event(self) -> bytes | None:
        """The first event that need not wait any longer, with the current ids."""
        for event, needs in self._waiting:
            if needs is None or needs in self._posted_messages:
                self._waiting.remove((event, needs))
                return (
                    event
                    if needs is None
                    else readdress_event(event, self._recorded_messages[needs], self._posted_messages[needs])
                )
        return None


def _request_message(request: Request) -> Json:
    try:
        return parse_json_leniently(request.body.data)
    except InvalidJson:
        return None


def _is_request(message: Json, id: Json) -> bool:  # noqa: A002 - what it is
    return any(
        "method" in request and request.get("id") == id and id is not None for request in split_messages(message)
    )


def event_messages(event: bytes) -> list[dict[str, Json]]:
    """Return the messages in one event; none if it is no JSON."""
    data = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        return [dict(message) for message in split_messages(parse_json_leniently(data))]
    except InvalidJson:
        return []
