"""Replay the event stream of MCP's older transport (HTTP+SSE): an answer is sent once its request has come.

The client opens the stream first and posts beside it, so what the server says there has no request of its own. An event with
the id of a recorded POST waits for that POST; every other one for what had been posted last when it came. What need not wait
goes out in its recorded order, with the ids under which the client asks now.
"""

from collections.abc import Iterator, Sequence

from calls.codec.json import NotLossless, lenient
from calls.dialects.protocols.jsonrpc import is_answer, messages
from calls.mcp_late_answers import endpoint
from calls.model import Exchange, Json, Request
from replay.answer import Piece
from replay.pacing import Pace
from replay.reframing.readdress import by_event, event_for
from replay.script import RecordedExchange


class Stream:
    """One of them, while it is replayed."""

    def __init__(self, exchange: Exchange, entries: Sequence[RecordedExchange]) -> None:
        assert exchange.response is not None
        self.url = endpoint(exchange)
        self._exchange = exchange
        self._posts = [
            entry
            for entry in entries
            if entry.brief.url == self.url
            and entry.brief.method == "POST"
            and entry.brief.started_at >= exchange.started_at
        ]
        self._then = {entry.step: _said(entry.exchange.request) for entry in self._posts}
        self._now: dict[int, Json] = {}
        self._waiting: list[tuple[bytes, int | None]] = []

    def posted(self, step: int, request: Request) -> None:
        """A recorded POST has been asked again, in these words."""
        if step in self._then:
            self._now[step] = _said(request)

    def pieces(self, pace: Pace) -> Iterator[Piece]:
        """Each event, for when it may go out."""
        assert self._exchange.response is not None
        body = by_event(self._exchange.response.body)
        for chunk, piece in zip(body.chunks, pace.pieces(body), strict=True):
            self._waiting.append((piece.data, self._needs(piece.data, self._exchange.started_at + chunk.at)))
            yield Piece(piece.at, piece.data, self._next)

    def _needs(self, event: bytes, came: int) -> int | None:
        """The step that has to be asked before it; None where none has."""
        ids = [message.get("id") for message in _messages(event) if is_answer(message)]
        answers = (step for step, said in self._then.items() if any(_asks(said, one) for one in ids))
        before = (entry.step for entry in self._posts if entry.brief.started_at < came)
        return next(answers, max(before, default=None))

    def _next(self) -> bytes | None:
        """The first event that has waited long enough, as it is to be sent now."""
        for event, needs in self._waiting:
            if needs is None or needs in self._now:
                self._waiting.remove((event, needs))
                return event if needs is None else event_for(event, self._then[needs], self._now[needs])
        return None


def _said(request: Request) -> Json:
    try:
        return lenient(request.body.data)
    except NotLossless:
        return None


def _asks(said: Json, id: Json) -> bool:  # noqa: A002 - what it is
    return any("method" in one and one.get("id") == id and id is not None for one in messages(said))


def _messages(event: bytes) -> list[dict[str, Json]]:
    data = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        return [dict(message) for message in messages(lenient(data))]
    except NotLossless:
        return []
