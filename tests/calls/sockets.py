"""WebSockets as this room's values."""

from collections.abc import Iterable

from calls.codec.json import dumps
from calls.events import Side
from calls.model import Body, Chunk, ChunkKind, Exchange, Json, Outcome, Request, Response

ASKED = (("Host", "api.test"), ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13"))
ANSWERED = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", "x"))

type Said = tuple[Side, Json | bytes] | tuple[Side, bytes, ChunkKind]
"""A message: who said it, and what."""


def messages_body(*messages: bytes, kind: ChunkKind = "text") -> Body:
    """One side of a WebSocket, a message a nanosecond."""
    return _body((at, message, kind) for at, message in enumerate(messages))


def socket(
    *messages: Said,
    url: str = "https://api.test/ws",
    name: str = "0198c1d2-0000-7000-8000-000000000001",
    outcome: Outcome = "completed",
    started_at: int = 0,
    pace: int = 1_000_000,
) -> Exchange:
    """A WebSocket over which this was said, in this order, one message each `pace`."""
    sides: dict[Side, list[tuple[int, bytes, ChunkKind]]] = {"request": [], "response": []}
    for number, (side, message, *kind) in enumerate(messages, 1):
        data = message if isinstance(message, bytes) else dumps(message)
        sides[side].append((number * pace, data, kind[0] if kind else "text"))
    return Exchange(
        id=name,
        run="run",
        request=Request(method="GET", url=url, headers=ASKED, body=_body(sides["request"])),
        response=Response(status=101, headers=ANSWERED, body=_body(sides["response"])),
        outcome=outcome,
        started_at=started_at,
        first_byte_at=0,
        ended_at=(len(messages) + 1) * pace,
    )


def _body(messages: Iterable[tuple[int, bytes, ChunkKind]]) -> Body:
    data, chunks = bytearray(), []
    for at, message, kind in messages:
        chunks.append(Chunk(at, len(data), len(message), kind))
        data += message
    return Body(data=bytes(data), chunks=tuple(chunks), size=len(data))
