"""Build the next generation of a run: what answered a replay, and what was recorded live where nothing could.

It takes effect as a whole or not at all. A recording that failed or was cut never takes the place of a good one: `flaw` says
what is wrong with it, and the run stays as it was.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from calls.events import Gap
from calls.keys.key import raw_digest
from calls.mcp_late_answers import is_old
from calls.model import Call, Exchange, Response, concluded, ended, header
from store.bundle.bundle import Bundle

FLAWED: Final = "playhead.flawed"
"""On a run that was recorded in mode `auto`: why it does not count as a recording there."""

FAILED: Final = frozenset({401, 403, 407, 408, 425, 429, *range(500, 600)})
"""Statuses that tell of the moment or of the caller's keys, and not what an API answers to a request. One may come first,
but not be the last word."""


def flaw(recorded: Bundle, derive: Callable[[Exchange], Call]) -> str | None:
    """Why what was recorded live is not to be replayed; None where it is whole."""
    flaws = Flaws(recorded.gaps, derive)
    for exchange in recorded.exchanges:
        flaws.feed(exchange)
    return flaws.first()


class Flaws:
    """Finds the flaw of a recording whose exchanges are fed one by one; none of them is held."""

    def __init__(self, gaps: Sequence[Gap], derive: Callable[[Exchange], Call]) -> None:
        self._derive = derive
        self._found = f"not everything could be recorded ({gaps[0].reason})" if gaps else None
        self._last: dict[str, str | None] = {}
        """What is wrong with the last answer to each request."""

    def feed(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        if self._found is not None:
            return
        if _broken_off(exchange, self._derive) or lacking(exchange):
            how = lacking(exchange) or exchange.error or exchange.outcome
            self._found = f"{_words(exchange)} did not end well: {how}"
        else:
            self._last[raw_digest(exchange.request)] = self._failure(exchange)

    def first(self) -> str | None:
        """The first flaw, in words; None where there is none."""
        return self._found or next(filter(None, self._last.values()), None)

    def _failure(self, exchange: Exchange) -> str | None:
        if exchange.response and exchange.response.status in FAILED:
            return f"{_words(exchange)} was answered with status {exchange.response.status}"
        if _failed_midway(exchange, self._derive):
            return f"{_words(exchange)} was answered with an error in the midst of its stream"
        return None


def kept(recorded: Bundle, answered: Collection[str], *, unused: bool) -> list[Exchange]:
    """What of the recording goes on: what answered; what was not asked for only where it may be `unused`."""
    return [each for each in recorded.exchanges if unused or each.id in answered]


def lacking(exchange: Exchange) -> str | None:
    """Why an exchange cannot be given as it was; None when it can."""
    if is_websocket(exchange) and not _upgraded(exchange.response):
        return "it left HTTP for something that is no WebSocket, which is not recorded"
    if is_old(exchange) and header(exchange.response.headers if exchange.response else (), "content-encoding"):
        return "it is a compressed stream of MCP's older transport (HTTP+SSE), whose events cannot wait for what they answer"
    if exchange.truncated:
        # Why is in the run's gaps; a body that was only too large has none.
        return (
            "bytes of it are lacking: if it is larger than body_limit, raise that setting before it is recorded again"
        )
    if exchange.ended_at is None:
        return "the recorder died before it ended, so nobody knows what followed"
    if exchange.response is None and exchange.outcome in ("completed", "refused"):
        return f"no response was recorded ({exchange.error or exchange.outcome})"
    return None


def _broken_off(exchange: Exchange, derive: Callable[[Exchange], Call]) -> bool:
    """Whether its client has not had all of the answer. Only where it left does the answer have to be read."""
    if exchange.outcome != "client_closed":
        return exchange.outcome != "completed"
    return ended(exchange, concluded=concluded(derive(exchange))) != "completed"


def _failed_midway(exchange: Exchange, derive: Callable[[Exchange], Call]) -> bool:
    """Whether the answer is a stream that an error broke off. Only streams are read for it."""
    media = exchange.response and header(exchange.response.headers, "content-type")
    if not media or "stream" not in media or is_websocket(exchange):
        return False
    call = derive(exchange)
    return concluded(call) and not call.complete


def is_websocket(exchange: Exchange) -> bool:
    """Whether the exchange left HTTP for WebSocket messages."""
    response = exchange.response
    if response is None:
        return False
    chunks = response.body.chunks
    return response.status == 101 or (bool(chunks) and chunks[0].kind != "data")


def _upgraded(response: Response | None) -> bool:
    return response is not None and (header(response.headers, "upgrade") or "").lower() == "websocket"


def _words(exchange: Exchange) -> str:
    return f"{exchange.request.method} {exchange.request.url.partition('?')[0]}"
