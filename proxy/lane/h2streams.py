"""What an exchange sees of a client of HTTP/2: one stream."""

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import ngh2

from calls.model import Headers
from proxy.lane.exchange import Exchange, Told
from proxy.lane.h2heads import as_trailers, wired
from proxy.lane.h2wire import Flow
from proxy.lane.visitor import SWALLOWED

if TYPE_CHECKING:
    from proxy.lane.h2client import Http2Client


class Seat(Flow):
    """One stream of a client."""

    version = "HTTP/2"

    def __init__(self, client: "Http2Client", number: int) -> None:
        super().__init__(number)
        self.engine = client.engine
        self.full = False
        self.exchange: Exchange | None = None
        self.code = int(ngh2.ErrorCode.CANCEL)
        """With which the client has reset it."""

        self._ended = False
        self.left_at: float | None = None
        """When its exchange was over, although more of the request is to come."""

        self._client = client
        self._swallowed = 0
        self._untaken = -1
        self._untaken_since = 0.0
        self._dropped = False

    def room(self, *, full: bool) -> None:
        self.full = full
        if self.exchange is not None:
            self.exchange.room(full=full)

    def head(self, status: int, reason: str, headers: Headers, *, old: bool = False) -> Told:  # noqa: ARG002 - nothing older here
        return Told(status, reason, self.version, headers, wire=wired(status, headers))

    def announce(self, told: Told) -> None:
        self._client.announce(self, told.wire)

    def send(self, told: Told | None, data: bytes, *, last: bool = False, trailers: Headers = ()) -> None:
        self._ended = last
        ends = last and not (data or trailers)
        if told is not None:
            self._client.respond(self, told.wire, end=ends)
        if last and not (ends and told is not None):
            self._client.end(self, data, as_trailers(trailers))
        elif data:
            self._client.send(self, data)

    @property
    def served(self) -> bool:
        """Whether client and exchange have nothing more to tell each other, although the end of a request may still have to be
        kept before it goes on."""
        return self._ended and self.exchange is not None and not self.exchange.asking

    def send_all(
        self, told: Told | None, pieces: Sequence[bytes], *, last: bool = False, trailers: Headers = ()
    ) -> None:
        pieces = [piece for piece in pieces if piece] or [b""]
        for piece in pieces[:-1]:
            self.send(told, piece)
            told = None
        self.send(told, pieces[-1], last=last, trailers=trailers)

    def hold(self, *, full: bool) -> None:
        self._client.hold(self, full=full)

    def over(self, *, closes: bool, lingers: bool) -> None:
        self.exchange = None
        if closes and lingers:
            self.reset(ngh2.ErrorCode.NO_ERROR)
        elif lingers:
            self.linger()

    def cut(self, code: int) -> None:
        self.exchange = None
        self._client.break_off(self, code)

    def reset(self, code: int) -> None:
        """Break the stream off, and say why."""
        self.exchange = None
        self._client.reset(self, code)

    def linger(self) -> None:
        """Read on for a while what nobody takes."""
        self.left_at = time.monotonic()

    def stuck(self, untaken: int, now: float) -> bool:
        """Whether the client has for too long taken nothing of an answer that is over here, but `untaken` there."""
        if untaken != self._untaken:
            self._untaken, self._untaken_since = untaken, now
        return now - self._untaken_since > self.engine.config.limits.idle

    def drop(self, now: float) -> bool:
        """Give up on such a client: False where even that was not taken."""
        if self._dropped:
            return False
        self._dropped, self._untaken_since = True, now
        self.reset(ngh2.ErrorCode.CANCEL)
        return True

    def swallow(self, size: int) -> None:
        """More of a request that nobody takes."""
        self._swallowed += size
        if self._swallowed > SWALLOWED:
            self.reset(ngh2.ErrorCode.NO_ERROR)

    def soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self._client.lane.soon(self._client, work, *what)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        self._client.later(work)

    def failed(self, fault: BaseException) -> None:
        self._client.failed(fault)
