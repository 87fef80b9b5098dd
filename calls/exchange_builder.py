"""Build an exchange from its events, in their order.

`TABLE` is the life cycle of an exchange: for each state, which events are allowed and the state that follows. An event that
the table does not allow (a second head, data after the end, anything after the close) does not change the exchange; it is
listed in `ignored_events`, so that the store server can report it and continue. The two `early response` states exist because HTTP
lets a server respond before the request is complete. The messages of a WebSocket may come from both sides once the
response head has arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from calls.events import (
    Data,
    ExchangeClosed,
    MessageEnded,
    Record,
    RequestStarted,
    ResponseStarted,
    Side,
)
from calls.model import Body, Chunk, Exchange, Headers, Request, Response

type State = Literal[
    "idle",
    "request open",
    "request complete",
    "early response",
    "early response complete",
    "response open",
    "complete",
    "closed",
]

type EventName = Literal[
    "request", "request data", "request end", "response", "response data", "response end", "message", "close"
]

TABLE: dict[State, dict[EventName, State]] = {
    "idle": {"request": "request open"},
    "request open": {
        "request data": "request open",
        "request end": "request complete",
        "response": "early response",
        "close": "closed",
    },
    "request complete": {"response": "response open", "close": "closed"},
    "early response": {
        "request data": "early response",
        "request end": "response open",
        "response data": "early response",
        "response end": "early response complete",
        "message": "early response",
        "close": "closed",
    },
    "response open": {
        "response data": "response open",
        "response end": "complete",
        "message": "response open",
        "close": "closed",
    },
    "early response complete": {
        "request data": "early response complete",
        "request end": "complete",
        "close": "closed",
    },
    "complete": {"close": "closed"},
    "closed": {},
}

UNFINISHED = "the recording stops before the end of the exchange"


class NoRequestHead(RuntimeError):
    """`build` was called before the builder received a request head: check `has_begun` first."""


@dataclass(slots=True)
class _MessageBuilder:
    """A request or response whose events are arriving."""

    pieces: list[bytes] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    stored_size: int = 0
    wire_size: int = 0
    size: int | None = None
    truncated: bool = False
    reencoded: bool = False
    trailers: Headers = ()

    def add_data(self, event: Data) -> None:
        passed = _wire_size(event)
        self.wire_size += passed
        if self.size is not None:  # a WebSocket's messages follow the end of the request that opened it
            self.size += passed
        self.reencoded |= event.reencoded
        if event.data or event.kind != "data":
            self.chunks.append(Chunk(event.at, self.stored_size, len(event.data), event.kind))
            self.pieces.append(event.data)
            self.stored_size += len(event.data)

    def end_message(self, event: MessageEnded) -> None:
        self.size, self.trailers = event.size, event.trailers
        # The events hold fewer bytes than the recorder counted: an event was lost in between.
        self.truncated = event.truncated or event.size != self.wire_size

    def build_body(self) -> Body:
        return Body(
            data=b"".join(self.pieces),
            chunks=tuple(self.chunks),
            size=self.wire_size if self.size is None else self.size,
            truncated=self.truncated,
            reencoded=self.reencoded,
        )


def _wire_size(event: Data) -> int:
    return len(event.data) if event.size is None else event.size


class ExchangeBuilder:
    """An exchange whose events are arriving."""

    def __init__(self) -> None:
        self.state: State = "idle"
        self.ignored_events: list[tuple[State, str]] = []
        """The events that the table did not allow, each with the state at that time."""
        self._request: RequestStarted | None = None
        self._response: ResponseStarted | None = None
        self._closed: ExchangeClosed | None = None
        self._sides: dict[Side, _MessageBuilder] = {"request": _MessageBuilder(), "response": _MessageBuilder()}
        self._redactions = 0

    @property
    def has_begun(self) -> bool:
        """Whether a request head has arrived, so that there is an exchange to build."""
        return self._request is not None

    @property
    def is_closed(self) -> bool:
        """Whether no further event is allowed."""
        return self.state == "closed"

    @property
    def is_answered(self) -> bool:
        """Whether the response has ended."""
        return self._sides["response"].size is not None

    def feed(self, record: Record) -> None:
        """Apply the next event of the exchange. Never raises, whatever the wire or a damaged spool contains."""
        if (name := _event_name(record)) is None:
            return
        after = TABLE[self.state].get(name)
        if after is None:
            self.ignored_events.append((self.state, name))
            return
        self.state = after
        self._apply(record)

    def build(self) -> Exchange:
        """Build the exchange so far. An unfinished one has the outcome `server_closed` and no end time."""
        if self._request is None:
            raise NoRequestHead("the builder received no request head: check has_begun before build()")
        return _make_exchange(
            self._request,
            self._build_request(self._request),
            self._response,
            self._build_response(self._response),
            self._closed,
            self._redactions,
        )

    def _apply(self, record: Record) -> None:
        # Types are compared, as in `_event_name`.
        if type(record) is Data:
            self._sides[record.side].add_data(record)
            self._redactions += record.redactions
        elif type(record) is MessageEnded:
            self._sides[record.side].end_message(record)
        elif type(record) is RequestStarted:
            self._request = record
            self._redactions += record.redactions
        elif type(record) is ResponseStarted:
            self._response = record
            self._redactions += record.redactions
        elif type(record) is ExchangeClosed:
            self._closed = record

    def _build_request(self, started: RequestStarted) -> Request:
        side = self._sides["request"]
        return _make_request(started, side.build_body(), side.trailers)

    def _build_response(self, started: ResponseStarted | None) -> Response | None:
        side = self._sides["response"]
        return None if started is None else _make_response(started, side.build_body(), side.trailers)


def build_ordinary(records: Sequence[Record]) -> Exchange | None:
    """Build an exchange from all its events as an `ExchangeBuilder` does, in a fraction of the time.

    None unless a request was sent whole, then a response was received whole, and then the exchange was closed.
    """
    types = list(map(type, records))
    if ResponseStarted not in types[2:-2]:
        return None
    answered = types.index(ResponseStarted)
    started, request_end, answer, response_end, closed = (
        records[0],
        records[answered - 1],
        records[answered],
        records[-2],
        records[-1],
    )
    if not (
        type(started) is RequestStarted
        and type(request_end) is MessageEnded
        and request_end.side == "request"
        and type(answer) is ResponseStarted
        and type(response_end) is MessageEnded
        and response_end.side == "response"
        and type(closed) is ExchangeClosed
    ):
        return None
    request_body = _build_whole_body(records[1 : answered - 1], request_end)
    response_body = _build_whole_body(records[answered + 1 : -2], response_end)
    if request_body is None or response_body is None:
        return None
    redactions = [record.redactions for record in records if type(record) is Data]
    return _make_exchange(
        started,
        _make_request(started, request_body, request_end.trailers),
        answer,
        _make_response(answer, response_body, response_end.trailers),
        closed,
        started.redactions + answer.redactions + sum(redactions),
    )


def _build_whole_body(pieces: Sequence[Record], end: MessageEnded) -> Body | None:
    """Build the body of a message; None if not all of these are its pieces."""
    if (
        len(pieces) == 1
        and type(only := pieces[0]) is Data
        and only.data
        and (only.side, only.kind) == (end.side, "data")
    ):
        # As below: nearly every body that is no stream.
        return Body(
            data=only.data,
            chunks=(Chunk(only.at, 0, len(only.data)),),
            size=end.size,
            truncated=end.truncated or end.size != _wire_size(only),
            reencoded=only.reencoded,
        )
    message = _MessageBuilder()
    for piece in pieces:
        if type(piece) is not Data or piece.side != end.side or piece.kind != "data":
            return None
        message.add_data(piece)
    message.end_message(end)
    return message.build_body()


def _make_exchange(
    started: RequestStarted,
    request: Request,
    answer: ResponseStarted | None,
    response: Response | None,
    closed: ExchangeClosed | None,
    redactions: int,
) -> Exchange:
    return Exchange(
        id=started.id,
        run=started.run,
        request=request,
        response=response,
        outcome=closed.outcome if closed else "server_closed",
        started_at=started.started_at,
        first_byte_at=answer.at if answer else None,
        ended_at=closed.at if closed else None,
        redactions=redactions,
        run_evidence=started.run_evidence,
        step=started.step,
        actor=started.actor,
        error=closed.error if closed else UNFINISHED,
    )


def _make_request(started: RequestStarted, body: Body, trailers: Headers) -> Request:
    return Request(
        method=started.method,
        url=started.url,
        http_version=started.http_version,
        headers=started.headers,
        body=body,
        trailers=trailers,
    )


def _make_response(started: ResponseStarted, body: Body, trailers: Headers) -> Response:
    return Response(
        status=started.status,
        reason=started.reason,
        http_version=started.http_version,
        headers=started.headers,
        body=body,
        trailers=trailers,
    )


def _event_name(record: Record) -> EventName | None:
    """Return the name of an event in `TABLE`; None for a record that is no event of an exchange."""
    # Types are compared, and `isinstance` is not asked, which takes three times as long for the classes of msgspec.
    if type(record) is Data:
        return "message" if record.kind != "data" else _DATA_NAMES[record.side]
    if type(record) is MessageEnded:
        return _END_NAMES[record.side]
    return _NAMES.get(type(record))


_NAMES: Final[Mapping[type, EventName]] = {
    RequestStarted: "request",
    ResponseStarted: "response",
    ExchangeClosed: "close",
}
_DATA_NAMES: Final[Mapping[Side, EventName]] = {"request": "request data", "response": "response data"}
_END_NAMES: Final[Mapping[Side, EventName]] = {"request": "request end", "response": "response end"}
