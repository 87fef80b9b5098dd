"""Turn a recorded exchange into an answer: the same head, the same bytes in the same pieces, the same end."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from calls.model import Exchange, Headers, Response, header
from calls.own_fields import is_own_field
from replay.answer import Answer, End
from replay.pacing import Pace
from store.generations.build import is_websocket, unreplayable_reason

__all__ = ["is_websocket", "recorded_answer", "recorded_headers", "unreplayable_reason"]

GRACE = 10_000_000_000
"""Nanoseconds by which a client may stay longer than the recorded client, which left before the end."""

# RFC 9110 7.6.1. Alt-Svc as well: it would make the client switch to QUIC, which bypasses the proxy. The engine generates
# its own framing.
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "alt-svc"),
    }
)

_EXPIRES: Final = re.compile(r";\s*expires=\s*([^;]+)", re.IGNORECASE)
_SECOND: Final = 1_000_000_000

_ENDS: dict[str, End] = {
    "completed": "complete",
    "refused": "complete",
    "client_closed": "hold",
    "server_closed": "cut",
    "timed_out": "cut",
}


def recorded_answer(
    exchange: Exchange,
    pace: Pace,
    source_header: tuple[str, str],
    *,
    answer_waiting_client: Callable[[], Answer] | None = None,
    note_client_left: Callable[[int], None] | None = None,
) -> Answer:
    """The answer that the recorded client got, with callbacks for a client that stays or leaves when that one did not."""
    end = _end(exchange)
    response = exchange.response
    patience = (exchange.ended_at or 0) + GRACE if end == "hold" else 0
    answer_waiting_client, note_client_left = (
        (answer_waiting_client, None) if end == "hold" else (None, note_client_left)
    )
    if response is None:
        return Answer(
            status=0,
            end=end,
            end_at=pace.end_time(exchange),
            patience=patience,
            answer_waiting_client=answer_waiting_client,
            note_client_left=note_client_left,
        )
    # RFC 9110 8.6: responses without a body may state the length that it would have.
    bodiless = exchange.request.method == "HEAD" or response.status in (204, 304)
    return Answer(
        status=response.status,
        reason=response.reason,
        http_version=response.http_version,
        headers=(*recorded_headers(response, whole=end == "complete" and not bodiless), source_header),
        pieces=() if bodiless else tuple(pace.pieces(response.body)),
        trailers=response.trailers,
        end=end,
        at=pace.send_time(exchange.first_byte_at),
        end_at=pace.end_time(exchange),
        patience=patience,
        answer_waiting_client=answer_waiting_client,
        note_client_left=note_client_left,
    )


def exchange_cut_at(exchange: Exchange, size: int) -> Exchange:
    """The exchange as if its client had left after `size` bytes of the answer."""
    shortened = response = exchange.response
    if response is not None:
        shortened = replace(response, body=replace(response.body, data=response.body.data[:size], size=size))
    return replace(exchange, outcome="client_closed", response=shortened)


def with_living_cookies(exchange: Exchange, now: int) -> Exchange:
    """Return the exchange with cookies that live as long as they did after it; the same one where none has expired since.

    `now`: nanoseconds since the epoch. A client that is not given the recorded time would drop the others, and with them its
    session. A cookie that had expired when it was recorded was to be dropped.
    """
    response = exchange.response
    if response is None or not any(name.lower() == "set-cookie" for name, _ in response.headers):
        return exchange
    headers = tuple(
        (name, _living_cookie(value, exchange.started_at, now) if name.lower() == "set-cookie" else value)
        for name, value in response.headers
    )
    return exchange if headers == response.headers else replace(exchange, response=replace(response, headers=headers))


def _living_cookie(cookie: str, then: int, now: int) -> str:
    if (found := _EXPIRES.search(cookie)) is None:
        return cookie
    # Imported with the first such cookie: it takes a while, and most recordings have none.
    from email.utils import format_datetime, parsedate_to_datetime

    try:
        expires = int(parsedate_to_datetime(found[1]).timestamp())
    except (ValueError, OverflowError):
        return cookie  # not a date: clients ignore it, too
    if not then < expires * _SECOND <= now:
        return cookie
    later = format_datetime(datetime.fromtimestamp(expires + (now - then) // _SECOND, UTC), usegmt=True)
    return cookie[: found.start(1)] + later + cookie[found.end(1) :]


def _end(exchange: Exchange) -> End:
    """How the answer ends. A problem response of Playhead states its length; a shorter body was broken off."""
    response = exchange.response
    if exchange.outcome in ("completed", "client_closed") or response is None or exchange.request.method == "HEAD":
        return _ENDS[exchange.outcome]
    return "complete" if header(response.headers, "content-length") == str(response.body.size) else "cut"


def recorded_headers(response: Response, *, whole: bool) -> Headers:
    """The recorded headers without hop-by-hop ones.

    A `whole` body gets its actual length, which redaction may have changed; a broken-off body keeps the announced one.
    """
    size = str(len(response.body.data))
    pairs: list[tuple[str, str]] = []
    connection_options: set[str] = set()
    for pair in response.headers:
        name = pair[0].lower()
        if name == "connection":
            connection_options.update(token.strip().lower() for token in pair[1].split(","))
        elif name == "content-length" and whole:
            pairs.append((pair[0], size))
        elif name not in _HOP_BY_HOP and not is_own_field(name):
            pairs.append(pair)
    if connection_options <= _HOP_BY_HOP:
        return tuple(pairs)
    return tuple(pair for pair in pairs if pair[0].lower() not in connection_options)
