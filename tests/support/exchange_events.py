"""The events from which an exchange is built, for tests that have an exchange and want what a worker would have written."""

from collections.abc import Iterator
from heapq import merge

from calls.events import Data, ExchangeClosed, MessageEnded, Record, RequestStarted, ResponseStarted, Side
from calls.model import Body, Chunk, Exchange, Headers, Response


def exchange_events(exchange: Exchange) -> Iterator[Record]:
    """Yield events from which this exchange is built."""
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
    request_data = list(_data_events(exchange.id, "request", request.body))
    client_messages = [event for event in request_data if event.kind != "data"]
    yield from (event for event in request_data if event.kind == "data")
    yield _end_event(
        exchange.id,
        "request",
        request_data,
        request.body,
        request.trailers,
        later=sum(len(one.data) if one.size is None else one.size for one in client_messages),
    )
    if response is not None:
        yield from _response_events(exchange, response, client_messages)
    if exchange.ended_at is not None:
        yield ExchangeClosed(id=exchange.id, at=exchange.ended_at, outcome=exchange.outcome, error=exchange.error)


def _response_events(exchange: Exchange, response: Response, client_messages: list[Data]) -> Iterator[Record]:
    yield ResponseStarted(
        id=exchange.id,
        at=exchange.first_byte_at or 0,
        status=response.status,
        reason=response.reason,
        http_version=response.http_version,
        headers=response.headers,
    )
    response_data = list(_data_events(exchange.id, "response", response.body))
    yield from merge(client_messages, response_data, key=lambda event: event.at)
    end = _end_event(exchange.id, "response", response_data, response.body, response.trailers)
    # A response that broke off has no end event, unless that event carries what its pieces do not.
    if exchange.outcome == "completed" or end.truncated or end.trailers:
        yield end


def _data_events(exchange: str, side: Side, body: Body) -> Iterator[Data]:
    """Yield the pieces of a body. The first one carries the size on the wire if that differs from the stored size."""
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


def _end_event(
    exchange: str, side: Side, pieces: list[Data], body: Body, trailers: Headers, later: int = 0
) -> MessageEnded:
    return MessageEnded(
        id=exchange,
        at=pieces[-1].at if pieces else 0,
        side=side,
        size=body.size - later,
        truncated=body.truncated,
        trailers=trailers,
    )
