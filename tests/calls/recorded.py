"""Exchanges of the corpus as this room's values."""

from calls.model import Body, Chunk, Exchange, Request, Response
from tests.support.corpus import RecordedExchange


def body(data: bytes) -> Body:
    """A body that came in one piece: the corpus keeps no boundaries."""
    return Body(data=data, size=len(data), chunks=(Chunk(0, 0, len(data)),) if data else ())


def exchange(recorded: RecordedExchange, run: str = "corpus") -> Exchange:
    """A recorded exchange, as one that completed."""
    asked = Request(
        method=recorded.method, url=recorded.url, headers=recorded.request_headers, body=body(recorded.request_body)
    )
    answered = Response(status=recorded.status, headers=recorded.response_headers, body=body(recorded.response_body))
    return Exchange(
        id="0198c1d2-0000-7000-8000-000000000000",
        run=run,
        request=asked,
        response=answered,
        outcome="completed",
        started_at=0,
        first_byte_at=0,
        ended_at=1,
    )
