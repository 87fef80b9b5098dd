"""Select the exchanges of a run's next generation, and find the flaws that keep a recording from becoming one.

A generation has the exchanges that answered a replay, and those recorded live where none could answer. A recording that
failed or was cut off never replaces a good one.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from calls.events import Gap
from calls.keys.key import raw_digest
from calls.mcp_late_answers import is_old_transport
from calls.model import Call, Exchange, Response, client_outcome, has_answer_ended, header
from store.bundle.bundle import Bundle

FLAWED: Final = "playhead.flawed"
"""Label of a run that was recorded in mode `auto` and cannot be replayed there: the reason."""

FAILED: Final = frozenset({401, 403, 407, 408, 425, 429, *range(500, 600)})
"""Statuses that depend on the moment or on the caller's keys, and not on the request. A recording may have one if a later
answer to the same request replaces it."""


def recording_flaw(recorded: Bundle, derive: Callable[[Exchange], Call]) -> str | None:
    """Return why a recording cannot be replayed in mode `auto`; None where it has no flaw."""
    flaws = FlawFinder(recorded.gaps, derive)
    for exchange in recorded.exchanges:
        flaws.feed(exchange)
    return flaws.first_flaw()


class FlawFinder:
    """Finds the first flaw of a recording whose exchanges are fed one by one, without keeping them."""

    def __init__(self, gaps: Sequence[Gap], derive: Callable[[Exchange], Call]) -> None:
        self._derive = derive
        self._found = f"not everything could be recorded ({gaps[0].reason})" if gaps else None
        self._last: dict[str, str | None] = {}
        """By request: what is wrong with its last answer, or None."""

    def feed(self, exchange: Exchange) -> None:
        """Check the next exchange."""
        if self._found is not None:
            return
        if _is_broken_off(exchange, self._derive) or unreplayable_reason(exchange):
            how = unreplayable_reason(exchange) or exchange.error or exchange.outcome
            self._found = f"{_request_words(exchange)} is incomplete: {how}"
        else:
            self._last[raw_digest(exchange.request)] = self._failure(exchange)

    def first_flaw(self) -> str | None:
        """Return the first flaw as a sentence; None where there is none."""
        return self._found or next(filter(None, self._last.values()), None)

    def _failure(self, exchange: Exchange) -> str | None:
        if exchange.response and exchange.response.status in FAILED:
            return f"{_request_words(exchange)} was answered with status {exchange.response.status}"
        if _has_failed_midway(exchange, self._derive):
            return f"{_request_words(exchange)} was answered with an error within its stream"
        return None


def kept_exchanges(recorded: Bundle, answered: Collection[str], *, unused: bool) -> list[Exchange]:
    """Return the exchanges of the recording to keep: those that answered, and with `unused` those that were not requested."""
    return [each for each in recorded.exchanges if unused or each.id in answered]


def unreplayable_reason(exchange: Exchange) -> str | None:
    """Return why an exchange cannot be replayed as it was; None where it can."""
    if is_websocket(exchange) and not _is_websocket_upgrade(exchange.response):
        return "it switched to a protocol other than WebSocket, which is not recorded"
    if is_old_transport(exchange) and header(
        exchange.response.headers if exchange.response else (), "content-encoding"
    ):
        return "it is a compressed stream of MCP's older transport (HTTP+SSE), whose events cannot be delayed until their requests"
    if exchange.is_truncated:
        # The run's gaps have the reason, except for a body that was too large.
        return "some of its bytes were not recorded; if a body is larger than body_limit, raise that setting and record again"
    if exchange.ended_at is None:
        return "its end was not recorded, because the recorder died before it"
    if exchange.response is None and exchange.outcome in ("completed", "refused"):
        return f"no response was recorded ({exchange.error or exchange.outcome})"
    return None


def _is_broken_off(exchange: Exchange, derive: Callable[[Exchange], Call]) -> bool:
    """Whether the client did not receive the whole answer. The answer is parsed only if the client closed the connection."""
    if exchange.outcome != "client_closed":
        return exchange.outcome != "completed"
    return client_outcome(exchange, answer_ended=has_answer_ended(derive(exchange))) != "completed"


def _has_failed_midway(exchange: Exchange, derive: Callable[[Exchange], Call]) -> bool:
    """Whether the answer is a stream that an error ended. Only streams are parsed."""
    media = exchange.response and header(exchange.response.headers, "content-type")
    if not media or "stream" not in media or is_websocket(exchange):
        return False
    call = derive(exchange)
    return has_answer_ended(call) and not call.complete


def is_websocket(exchange: Exchange) -> bool:
    """Whether the exchange switched from HTTP to another protocol, or has WebSocket messages."""
    response = exchange.response
    if response is None:
        return False
    chunks = response.body.chunks
    return response.status == 101 or (bool(chunks) and chunks[0].kind != "data")


def _is_websocket_upgrade(response: Response | None) -> bool:
    return response is not None and (header(response.headers, "upgrade") or "").lower() == "websocket"


def _request_words(exchange: Exchange) -> str:
    return f"{exchange.request.method} {exchange.request.url.partition('?')[0]}"
