"""Summarize an exchange for a replay, which loads its bodies only when it is requested."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from calls.model import Exchange, Headers
from calls.websocket_messages import is_websocket_body, opening_request
from store.bundle.bundle import Entry
from store.database.rows import body_digest


class ExchangeSummary(NamedTuple):
    """Everything in an exchange except its bodies, and how to load it."""

    id: str
    started_at: int
    ended_at: int | None
    method: str
    url: str
    http_version: str
    headers: Headers
    """The headers of the request."""

    body_digest: bytes
    """The digest of the request's body; for a WebSocket, that of an empty body."""

    actor: str | None
    has_client_messages: bool
    """Whether it is a WebSocket on which the client has sent a message."""

    key: str | None
    """The key that was stored with the exchange; valid only under the profiles of that time."""

    profile: str | None
    is_heavy: bool
    """Whether unpacking it takes noticeable time."""

    load_exchange: Callable[[], Exchange]
    """Loads the whole exchange. Raises CorruptData."""


def summarize_exchange(entry: Entry) -> ExchangeSummary:
    """Summarize an exchange that is in memory."""
    exchange, call = entry.exchange, entry.call or {}
    request = opening_request(exchange.request)
    return ExchangeSummary(
        exchange.id,
        exchange.started_at,
        exchange.ended_at,
        request.method,
        request.url,
        request.http_version,
        request.headers,
        body_digest(request.body.data),
        exchange.actor,
        is_websocket_body(exchange.request.body),
        call.get("key"),
        call.get("profile"),
        False,
        partial(_same, exchange),
    )


def _same(exchange: Exchange) -> Exchange:
    return exchange
