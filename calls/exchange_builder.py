"""Build an exchange from its events, in their order.

The life of an exchange is the table below: in a state, which words may come and where they lead. What the table does
not allow (a second head, data after the end, anything after `Closed`) does not change the exchange; it is kept in
`ignored`, so that the store server can say so and goes on. HTTP lets a server answer before the request is whole, hence the
two `early` states; a WebSocket's messages may come from both sides once the response head is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Literal, assert_never

from calls.events import (
    Data,
    ExchangeClosed,
    Gap,
    MessageEnded,
    Record,
    ReplayNoted,
    RequestStarted,
    ResponseStarted,
    Side,
)
from calls.model import Body, Chunk, Exchange, Headers, Outcome, Request, Response

type State = Literal["idle", "asking", "asked", "early", "answering", "early done", "answered", "closed"]

type Word = Literal["ask", "ask data", "ask end", "answer", "answer data", "answer end", "message", "close"]

TABLE: dict[State, dict[Word, State]] = {
    "idle": {"ask": "asking"},
    "asking": {"ask data": "asking", "ask end": "asked", "answer": "early", "close": "closed"},
    "asked": {"answer": "answering", "close": "closed"},
    "early": {
        "ask data": "early",
        "ask end": "answering",
        "answer data": "early",
        "answer end": "early done",
        "message": "early",
        "close": "closed",
    },
    "answering": {"answer data": "answering", "answer end": "answered", "message": "answering", "close": "closed"},
    "early done": {"ask data": "early done", "ask end": "answered", "close": "closed"},
    "answered": {"close": "closed"},
    "closed": {},
}

UNFINISHED = "the record stops before the exchange ended"


class NotBegun(RuntimeError):
    """An exchange was asked of a fold that has not seen a request's head: ask `begun` first."""


@dataclass(slots=True)
class _Side:
    """One message while it comes in."""

    pieces: list[bytes] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    kept: int = 0
    passed: int = 0
    size: int | None = None
    truncated: bool = False
    reencoded: bool = False
    trailers: Headers = ()

    def data(self, event: Data) -> None:
        passed = _passed(event)
        self.passed += passed
        if self.size is not None:  # a WebSocket's messages follow the end of the request that opened it
            self.size += passed
        self.reencoded |= event.reencoded
        if event.data or event.kind != "data":
            self.chunks.append(Chunk(event.at, self.kept, len(event.data), event.kind))
            self.pieces.append(event.data)
            self.kept += len(event.data)

    def end(self, event: MessageEnded) -> None:
        self.size, self.trailers = event.size, event.trailers
        # Fewer bytes in the events than the recorder saw pass: an event was lost on the way here.
        self.truncated = event.truncated or event.size != self.passed

    def body(self) -> Body:
        return Body(
            data=b"".join(self.pieces),
            chunks=tuple(self.chunks),
            size=self.passed if self.size is None else self.size,
            truncated=self.truncated,
            reencoded=self.reencoded,
        )


def _passed(event: Data) -> int:
    return len(event.data) if event.size is None else event.size


class ExchangeBuilder:
    """One exchange while its events come in."""

    def __init__(self) -> None:
        self.state: State = "idle"
        self.ignored: list[tuple[State, str]] = []
        """What came when it could not: the state, and what came."""
        self._request: RequestStarted | None = None
        self._response: ResponseStarted | None = None
        self._closed: ExchangeClosed | None = None
        self._sides: dict[Side, _Side] = {"request": _Side(), "response": _Side()}
        self._redactions = 0

    @property
    def begun(self) -> bool:
        """Whether there is an exchange to speak of."""
        return self._request is not None

    @property
    def done(self) -> bool:
        """Whether nothing more can come."""
        return self.state == "closed"

    @property
    def answered(self) -> bool:
        """Whether the answer came to its end."""
        return self._sides["response"].size is not None

    def feed(self, record: Record) -> None:
        """Take the next event of the exchange. Never raises for what the wire or a damaged spool brings."""
        if isinstance(record, Gap | ReplayNoted):
            return
        word = _word(record)
        after = TABLE[self.state].get(word)
        if after is None:
            self.ignored.append((self.state, word))
            return
        self.state = after
        self._take(record)

    def exchange(self) -> Exchange:
        """The exchange so far. Unfinished, it reads as one that the server closed, without an end."""
        if self._request is None:
            raise NotBegun("no request head was fed to this fold")
        head, closed = self._request, self._closed
        outcome: Outcome = closed.outcome if closed else "server_closed"
        return Exchange(
            id=head.id,
            run=head.run,
            request=self._asked(head),
            response=self._answered(self._response),
            outcome=outcome,
            started_at=head.started_at,
            first_byte_at=self._response.at if self._response else None,
            ended_at=closed.at if closed else None,
            redactions=self._redactions,
            run_evidence=head.run_evidence,
            step=head.step,
            actor=head.actor,
            error=closed.error if closed else UNFINISHED,
        )

    def _take(self, record: RequestStarted | ResponseStarted | Data | MessageEnded | ExchangeClosed) -> None:
        match record:
            case RequestStarted():
                self._request = record
                self._redactions += record.redactions
            case ResponseStarted():
                self._response = record
                self._redactions += record.redactions
            case Data():
                self._sides[record.side].data(record)
                self._redactions += record.redactions
            case MessageEnded():
                self._sides[record.side].end(record)
            case ExchangeClosed():
                self._closed = record
            case _:
                assert_never(record)

    def _asked(self, head: RequestStarted) -> Request:
        side = self._sides["request"]
        return Request(
            method=head.method,
            url=head.url,
            http_version=head.http_version,
            headers=head.headers,
            body=side.body(),
            trailers=side.trailers,
        )

    def _answered(self, head: ResponseStarted | None) -> Response | None:
        if head is None:
            return None
        side = self._sides["response"]
        return Response(
            status=head.status,
            reason=head.reason,
            http_version=head.http_version,
            headers=head.headers,
            body=side.body(),
            trailers=side.trailers,
        )


def _word(record: RequestStarted | ResponseStarted | Data | MessageEnded | ExchangeClosed) -> Word:
    match record:
        case RequestStarted():
            return "ask"
        case ResponseStarted():
            return "answer"
        case Data(kind="data"):
            return "ask data" if record.side == "request" else "answer data"
        case Data():
            return "message"
        case MessageEnded():
            return "ask end" if record.side == "request" else "answer end"
        case ExchangeClosed():
            return "close"
        case _:
            assert_never(record)


def events_of(exchange: Exchange) -> Iterator[Record]:
    """Events that fold to this exchange: for imports, whose source has no events, and for tests."""
    request, response = exchange.request, exchange.response
    yield RequestStarted(
        id=exchange.id,
        run=exchange.run,
        started_at=exchange.started_at,
        method=request.method,
        url=request.url,
        http_version=request.http_version,
        headers=request.headers,
        run_evidence=exchange.run_evidence,
        step=exchange.step,
        actor=exchange.actor,
        redactions=exchange.redactions,
    )
    asked = list(_pieces(exchange.id, "request", request.body))
    sent = [event for event in asked if event.kind != "data"]
    yield from (event for event in asked if event.kind == "data")
    yield _end(exchange.id, "request", asked, request.body, request.trailers, later=sum(map(_passed, sent)))
    if response is not None:
        yield from _answer_events(exchange, response, sent)
    if exchange.ended_at is not None:
        yield ExchangeClosed(id=exchange.id, at=exchange.ended_at, outcome=exchange.outcome, error=exchange.error)


def _answer_events(exchange: Exchange, response: Response, sent: list[Data]) -> Iterator[Record]:
    yield ResponseStarted(
        id=exchange.id,
        at=exchange.first_byte_at or 0,
        status=response.status,
        reason=response.reason,
        http_version=response.http_version,
        headers=response.headers,
    )
    answered = list(_pieces(exchange.id, "response", response.body))
    yield from merge(sent, answered, key=lambda event: event.at)
    end = _end(exchange.id, "response", answered, response.body, response.trailers)
    # A cut response has no end; one that says more than its pieces do needs it.
    if exchange.outcome == "completed" or end.truncated or end.trailers:
        yield end


def _pieces(exchange: str, side: Side, body: Body) -> Iterator[Data]:
    """The body's pieces; the first one accounts for a size on the wire that is not the size kept."""
    differs = body.size != len(body.data) and not body.truncated
    chunks = body.chunks or ((Chunk(0, 0, len(body.data)),) if body.data or differs or body.reencoded else ())
    for number, chunk in enumerate(chunks):
        yield Data(
            id=exchange,
            at=chunk.at,
            side=side,
            data=body.data[chunk.offset : chunk.offset + chunk.size],
            kind=chunk.kind,
            size=None if not differs else body.size if number == 0 else 0,
            reencoded=body.reencoded,
        )


def _end(exchange: str, side: Side, pieces: list[Data], body: Body, trailers: Headers, later: int = 0) -> MessageEnded:
    return MessageEnded(
        id=exchange,
        at=pieces[-1].at if pieces else 0,
        side=side,
        size=body.size - later,
        truncated=body.truncated,
        trailers=trailers,
    )
