"""One client's connection of HTTP/2 in a tunnel, and its streams, each of which is an exchange."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import ngh2

from calls.model import Headers, Outcome
from proxy.lane.admission import LaneRequest, TunnelTarget
from proxy.lane.connection_base import LINGER, SWALLOWED, ClientConnection, LaneContext
from proxy.lane.exchange import DownstreamHead, LaneExchange
from proxy.lane.h2.heads import as_text, as_trailers, asking, wired
from proxy.lane.h2.routes import EitherSource
from proxy.lane.h2.wire import HEAD_BYTES, Flow, Wire
from proxy.lane.heads import Fields
from proxy.lane.replay_answer import exchange_for
from proxy.lane.tls import Tls
from proxy.lane.upstream import Way
from proxy.lane.upstream_http1 import ClientPool
from proxy.wire.config import Origin
from proxy.wire.problem import Problem

MOST: Final = 256
"""Streams that a client may have open. nginx allows 128, Go 250."""


class H2Downstream(Flow):
    """One stream of a client."""

    version = "HTTP/2"

    def __init__(self, client: "Http2Client", number: int) -> None:
        super().__init__(number)
        self.engine = client.engine
        self.full = False
        self.exchange: LaneExchange | None = None
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

    def head(self, status: int, reason: str, headers: Headers, *, old: bool = False) -> DownstreamHead:  # noqa: ARG002 - nothing older here
        return DownstreamHead(status, reason, self.version, headers, wire=wired(status, headers))

    def announce(self, told: DownstreamHead) -> None:
        self._client.announce(self, told.wire)

    def send(self, told: DownstreamHead | None, data: bytes, *, last: bool = False, trailers: Headers = ()) -> None:
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
        self, told: DownstreamHead | None, pieces: Sequence[bytes], *, last: bool = False, trailers: Headers = ()
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


class Http2Client(Wire, ClientConnection):
    """One client. It waits since its last stream was closed."""

    def __init__(self, lane: LaneContext, owner: str, tunnel: TunnelTarget, within: Origin) -> None:
        ClientConnection.__init__(self, lane, owner)
        Wire.__init__(
            self,
            ngh2.Role.SERVER,
            {ngh2.Setting.MAX_CONCURRENT_STREAMS: MOST, ngh2.Setting.MAX_HEADER_LIST_SIZE: HEAD_BYTES},
            lane.at_last,
            lane.receive_queue,
        )
        self._tunnel = tunnel
        self._within = within
        self._lender = ClientPool(lane.upstreams, lane.engine.destinations)
        self._alone = object()
        """Whose connections are nobody else's."""

        self._shared = EitherSource(lane.ways, self._lender, None)
        self._own = EitherSource(lane.ways, self._lender, self._alone)
        self._bound: set[Way] = set()
        """Where it has shown authentication that is meant for a whole connection."""

        self._flows: dict[int, H2Downstream]
        self._hearing |= {
            ngh2.RequestReceived: self._asked,
            ngh2.DataReceived: self._went_on,
            ngh2.TrailersReceived: self._trailed,
            ngh2.StreamReset: self._reset,
            ngh2.StreamClosed: self._closed,
        }

    # Hearing

    def _asked(self, event: ngh2.RequestReceived) -> None:
        self._flows[event.stream_id] = seat = H2Downstream(self, event.stream_id)
        try:
            found = asking(
                event.headers, self.engine, self.owner, self._tunnel, self._within, bodiless=event.end_stream
            )
        except Problem as problem:
            self._refuse(seat, problem, event)
            return
        seat.exchange = exchange = exchange_for(seat, found, self.owner, self._source_for(found))
        exchange.start()

    def _refuse(self, seat: H2Downstream, problem: Problem, event: ngh2.RequestReceived) -> None:
        self.engine.config.counts[f"errors/{problem.code}"] += 1
        told = seat.head(problem.status, problem.reason, problem.headers)
        seat.send(told, b"" if dict(event.headers)[b":method"] == b"HEAD" else problem.body, last=True)
        if not event.end_stream:
            seat.linger()

    def _source_for(self, found: LaneRequest) -> EitherSource:
        if found.bound:
            self._bound.add(found.way)
        return self._own if found.way in self._bound else self._shared

    def _went_on(self, event: ngh2.DataReceived) -> None:
        data = event.data
        if seat := self._flows.get(event.stream_id):
            if seat.exchange is not None and seat.exchange.accepts:
                self._took_in(seat.exchange, data, last=event.end_stream)
            else:
                seat.swallow(len(data))
        self.taken(event.stream_id, len(data))

    def _took_in(self, exchange: LaneExchange, data: bytes, *, last: bool) -> None:
        if not last:
            exchange.take(data, (data,))
        elif data and len(data) == exchange.asked.length:
            exchange.take_whole(data)
        else:
            exchange.take(b"", (data,))
            if exchange.accepts:
                exchange.take_end(data, ())

    def _trailed(self, event: ngh2.TrailersReceived) -> None:
        seat = self._flows.get(event.stream_id)
        if seat is not None and seat.exchange is not None and seat.exchange.accepts:
            seat.exchange.take_end(b"", as_text(event.headers))

    def _reset(self, event: ngh2.StreamReset) -> None:
        if seat := self._flows.get(event.stream_id):
            seat.code = event.error_code

    def _closed(self, event: ngh2.StreamClosed) -> None:
        seat = self._flows.get(event.stream_id)
        if seat is None:
            return
        if not seat.served:
            self._abandon(seat, "client_closed", "the client left before the exchange was over")
        self.forget(seat)
        self.since = time.monotonic()

    # What its exchanges want

    def respond(self, seat: H2Downstream, fields: Fields, *, end: bool) -> None:
        """Send the head of a response."""
        self.attempt(lambda: self._session.send_response(seat.number, fields, end_stream=end))

    def announce(self, seat: H2Downstream, fields: Fields) -> None:
        """Send the head of a response that announces another."""
        self.attempt(lambda: self._session.send_informational_response(seat.number, fields))

    # What the worker wants

    def overdue(self, now: float) -> None:
        for seat in list(self._flows.values()):
            if seat.exchange is not None:
                seat.exchange.overdue(now)
            elif seat.left_at is not None and seat.left_at + LINGER < now:
                seat.reset(ngh2.ErrorCode.NO_ERROR)
            elif seat.stuck(self.untaken(seat), now) and not seat.drop(now):
                self.stop()
                return
        if self._flows or now - self.since < self.engine.config.limits.idle:
            return
        if self.retiring:
            self.stop()
        else:
            self.since = now
            self.retire()

    def leave(self) -> None:
        self.retire()

    def failed(self, fault: BaseException, event: ngh2.Event | None = None) -> None:  # noqa: ARG002 - all is one client's
        ClientConnection.failed(self, fault)

    def give_up(self, outcome: Outcome, why: str) -> None:
        if not self.gone:
            self.abort()
            self._leave(outcome, why)

    def begin(self, transport: asyncio.Transport | Tls, data: bytes = b"") -> None:
        self.lane.arrived(self)
        super().begin(transport, data)

    def lost(self) -> None:
        self._leave("client_closed", "the client left before the exchange was over")

    def _leave(self, outcome: Outcome, why: str) -> None:
        seats, self._flows = list(self._flows.values()), {}
        for seat in seats:
            self._abandon(seat, outcome, why)
        self._lender.close()
        self.lane.ways.let_go(self._alone)
        self.lane.departed(self)

    def _abandon(self, seat: H2Downstream, outcome: Outcome, why: str) -> None:
        exchange, seat.exchange = seat.exchange, None
        if exchange is not None:
            exchange.abandon(outcome, why)
