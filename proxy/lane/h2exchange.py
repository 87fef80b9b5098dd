"""What the lane does with every request of HTTP/2, and what such a request sees of its client: one stream."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import ngh2

from calls.model import Headers
from proxy.lane.exchange import Exchange
from proxy.lane.h2heads import as_fields, wired
from proxy.lane.h2wire import Fields, Flow
from proxy.mitm.problem import Problem

if TYPE_CHECKING:
    from proxy.lane.h2client import Http2Client

SWALLOWED: Final = 1 << 20
"""How much of a refused request we read on: breaking off at once could cost the client our answer."""

LINGER: Final = 2.0
"""Seconds for which we do."""


class Seat(Flow):
    """One stream of a client: a `Desk` with heads and ends."""

    def __init__(self, client: "Http2Client", number: int) -> None:
        super().__init__(number)
        self.engine = client.engine
        self.full = False
        self.exchange: Exchange2 | None = None
        self.code = int(ngh2.ErrorCode.CANCEL)
        """With which the client has reset it."""

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

    def interim(self, status: int, fields: Fields = ()) -> None:
        """Announce another response."""
        self._client.interim(self, [(b":status", str(status).encode()), *fields])

    def respond(self, fields: Fields, *, end: bool = False) -> None:
        """Send the head."""
        self._client.respond(self, fields, end=end)

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        self._client.send(self, data)

    def end(self, data: bytes, trailers: Headers = ()) -> None:
        """Send the last of it."""
        self._client.end(self, data, as_fields(trailers))

    def refuse(self, problem: Problem, body: bytes) -> None:
        """Answer in the upstream's place."""
        self.respond(wired(problem.status, problem.headers), end=not body)
        if body:
            self.end(body)

    def hold(self, *, full: bool) -> None:
        """Take in no more of the request for now, or go on."""
        self._client.hold(self, full=full)

    def go_on(self) -> None:
        """The exchange takes in more again: nothing was kept back here."""

    def over(self, *, closes: bool, lingers: bool) -> None:  # noqa: ARG002 - the connection is for others, too
        """The exchange is through."""
        self.exchange = None
        self._client.freed(self, lingers=lingers)

    def cut(self) -> None:
        """Break the stream off."""
        self.exchange = None
        self._client.break_off(self, ngh2.ErrorCode.INTERNAL_ERROR)

    def reset(self, code: int) -> None:
        """Break the stream off, and say why."""
        self.exchange = None
        self._client.reset(self, code)

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
        """Have this done in a moment, together with that of others."""
        self._client.lane.soon(self._client, work, *what)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done; a fault in it ends the connection."""
        self._client.later(work)

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed."""
        self._client.broken(fault)


class Exchange2(Exchange):
    """One request, until it is through."""

    version = "HTTP/2"
    desk: Seat

    def take(self, data: bytes, *, last: bool) -> None:
        """A piece of the request, which is not empty."""
        raise NotImplementedError

    def asked_all(self, trailers: Headers) -> None:
        """The request is whole."""
        raise NotImplementedError

    def refusal(self, problem: Problem) -> Headers:
        return problem.headers

    def send_refusal(self, problem: Problem, headers: Headers, body: bytes) -> None:  # noqa: ARG002 - the problem has them
        self.desk.refuse(problem, body)
