"""What a replay needs of an exchange before it is requested: everything but the bodies."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from calls.model import Exchange, Headers
from calls.websocket_messages import opening, spoken
from store.bundle.bundle import Entry
from store.database.rows import body_digest


class Brief(NamedTuple):
    """One exchange, in short."""

    id: str
    started_at: int
    ended_at: int | None
    method: str
    url: str
    http_version: str
    headers: Headers
    """Those of the request."""

    body: bytes
    """The digest of the request's body; of a WebSocket, of nothing."""

    actor: str | None
    spoken: bool
    """Whether it is a WebSocket on which the client has said something."""

    key: str | None
    """As it was told with the exchange: it holds under the rules of that time."""

    profile: str | None
    heavy: bool
    """Whether it takes a while to unpack."""

    exchange: Callable[[], Exchange]
    """All of it. Raises Corrupt."""


def brief(entry: Entry) -> Brief:
    """One that is there whole."""
    exchange, call = entry.exchange, entry.call or {}
    request = opening(exchange.request)
    return Brief(
        exchange.id,
        exchange.started_at,
        exchange.ended_at,
        request.method,
        request.url,
        request.http_version,
        request.headers,
        body_digest(request.body.data),
        exchange.actor,
        spoken(exchange.request.body),
        call.get("key"),
        call.get("profile"),
        False,
        partial(_same, exchange),
    )


def _same(exchange: Exchange) -> Exchange:
    return exchange
