"""Give a recorded exchange as an answer: the same head, the same bytes in the same pieces, the same end."""

from collections.abc import Callable
from dataclasses import replace

from calls.model import Exchange, Headers, Response, header
from calls.own_fields import is_own_field
from replay.answer import Answer, End
from replay.pacing import Pace
from store.generations.build import is_websocket, lacking

__all__ = ["answer", "headers", "is_websocket", "lacking"]

GRACE = 10_000_000_000
"""How much longer than in the recording a client that left then may stay, in nanoseconds."""

# RFC 9110 7.6.1, and what would have the client leave for QUIC, past us: other programs record it. The engine makes its own
# framing.
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "alt-svc"),
    }
)

_ENDS: dict[str, End] = {
    "completed": "complete",
    "refused": "complete",
    "client_closed": "hold",
    "server_closed": "cut",
    "timed_out": "cut",
}


def answer(
    exchange: Exchange,
    pace: Pace,
    mark: tuple[str, str],
    *,
    stayed: Callable[[], Answer] | None = None,
    left: Callable[[int], None] | None = None,
) -> Answer:
    """The answer that the client of the recording got. To be told: that it `stayed` where that one left, or `left` where
    that one did not."""
    end = _end(exchange)
    response = exchange.response
    patience = (exchange.ended_at or 0) + GRACE if end == "hold" else 0
    stayed, left = (stayed, None) if end == "hold" else (None, left)
    if response is None:
        return Answer(status=0, end=end, end_at=pace.end(exchange), patience=patience, stayed=stayed, left=left)
    # RFC 9110 8.6: these may state the length of a body that they do not have.
    bodiless = exchange.request.method == "HEAD" or response.status in (204, 304)
    return Answer(
        status=response.status,
        reason=response.reason,
        http_version=response.http_version,
        headers=(*headers(response, whole=end == "complete" and not bodiless), mark),
        pieces=() if bodiless else tuple(pace.pieces(response.body)),
        trailers=response.trailers,
        end=end,
        at=pace.at(exchange.first_byte_at),
        end_at=pace.end(exchange),
        patience=patience,
        stayed=stayed,
        left=left,
    )


def cut(exchange: Exchange, size: int) -> Exchange:
    """The exchange as it would be, had its client left after so many bytes of the answer."""
    had = response = exchange.response
    if response is not None:
        had = replace(response, body=replace(response.body, data=response.body.data[:size], size=size))
    return replace(exchange, outcome="client_closed", response=had)


def _end(exchange: Exchange) -> End:
    """How it ended. A problem that we told of says how long it is: what is shorter is an answer that was broken off."""
    response = exchange.response
    if exchange.outcome in ("completed", "client_closed") or response is None or exchange.request.method == "HEAD":
        return _ENDS[exchange.outcome]
    return "complete" if header(response.headers, "content-length") == str(response.body.size) else "cut"


def headers(response: Response, *, whole: bool) -> Headers:
    """The recorded headers without the hop-by-hop ones. A length that redaction made wrong is mended, a broken-off body
    keeps the length that it never reached."""
    size = str(len(response.body.data))
    kept: list[tuple[str, str]] = []
    named: set[str] = set()
    for pair in response.headers:
        name = pair[0].lower()
        if name == "connection":
            named.update(token.strip().lower() for token in pair[1].split(","))
        elif name == "content-length" and whole:
            kept.append((pair[0], size))
        elif name not in _HOP_BY_HOP and not is_own_field(name):
            kept.append(pair)
    if named <= _HOP_BY_HOP:
        return tuple(kept)
    return tuple(pair for pair in kept if pair[0].lower() not in named)
