"""One client's connection of HTTP/2 in a tunnel: every stream is an exchange of its own."""

import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import ngh2

from calls.model import Outcome
from proxy.door import Origin
from proxy.lane.admission import Tunnel
from proxy.lane.h2answered import Answered2
from proxy.lane.h2exchange import LINGER, Exchange2, Seat
from proxy.lane.h2heads import Asking, as_text, asking
from proxy.lane.h2relay import Relay2
from proxy.lane.h2ways import Key
from proxy.lane.h2wire import HEAD_BYTES, Fields, Flow, Wire
from proxy.lane.upstream import Lender, Way
from proxy.mitm.problem import Problem

if TYPE_CHECKING:
    from proxy.lane.lane import Lane

logger = logging.getLogger(__name__)

MOST: Final = 256
"""Streams that a client may have open. nginx allows 128, Go 250."""


class Http2Client(Wire):
    """One client."""

    def __init__(self, lane: "Lane", owner: str, tunnel: Tunnel, within: Origin) -> None:
        super().__init__(
            ngh2.Role.SERVER,
            {ngh2.Setting.MAX_CONCURRENT_STREAMS: MOST, ngh2.Setting.MAX_HEADER_LIST_SIZE: HEAD_BYTES},
            lane.at_last,
        )
        self.lane = lane
        self.engine = lane.engine
        self.owner = owner
        self.since = time.monotonic()
        """When its last stream was closed."""

        self._tunnel = tunnel
        self._within = within
        self._lender = Lender(lane.upstreams, lane.engine.destinations)
        self._alone = object()
        """Whose connections are nobody else's."""

        self._bound: set[Way] = set()
        """Where it has shown authentication that is meant for a whole connection."""

        self._flows: dict[int, Seat]
        self._hearing |= {
            ngh2.RequestReceived: self._asked,
            ngh2.DataReceived: self._went_on,
            ngh2.TrailersReceived: self._trailed,
            ngh2.StreamReset: self._reset,
            ngh2.StreamClosed: self._closed,
        }

    # Hearing

    def _asked(self, event: ngh2.RequestReceived) -> None:
        self._flows[event.stream_id] = seat = Seat(self, event.stream_id)
        try:
            found = asking(
                event.headers, self.engine, self.owner, self._tunnel, self._within, bodiless=event.end_stream
            )
        except Problem as problem:
            self.engine.config.counts[f"errors/{problem.code}"] += 1
            method = dict(event.headers)[b":method"]
            seat.refuse(problem, b"" if method == b"HEAD" else problem.body)
            self.freed(seat, lingers=not event.end_stream)
            return
        seat.exchange = exchange = self._exchange_for(found, seat)
        exchange.start()

    def _exchange_for(self, found: Asking, seat: Seat) -> Exchange2:
        asked, answerer = found.asked, self.engine.answerer
        if answerer is None:
            return self._relay(found, seat)
        if self.engine.config.mode_of(asked.target.host, asked.named) in ("record", "passthrough"):
            answerer.passed(run=asked.named)
            return self._relay(found, seat)
        return Answered2(seat, found, answerer, self.owner, lambda: self._go_live(found, seat))

    def _relay(self, found: Asking, seat: Seat) -> Relay2:
        way = found.asked.way
        if found.asked.bound:
            self._bound.add(way)
        key = Key(way, self._alone if way in self._bound else None)
        return Relay2(seat, found, self.lane.ways, key, self._lender)

    def _go_live(self, found: Asking, seat: Seat) -> Relay2:
        relay = self._relay(found, seat)
        relay.live = True
        seat.exchange = relay
        return relay

    def _went_on(self, event: ngh2.DataReceived) -> None:
        seat = self._flows.get(event.stream_id)
        if seat is not None and seat.exchange is not None and seat.exchange.accepts:
            if event.data:
                seat.exchange.take(event.data, last=event.end_stream)
            elif event.end_stream:
                seat.exchange.asked_all(())
        elif seat is not None:
            seat.swallow(len(event.data))
        self.taken(event.stream_id, len(event.data))

    def _trailed(self, event: ngh2.TrailersReceived) -> None:
        seat = self._flows.get(event.stream_id)
        if seat is not None and seat.exchange is not None and seat.exchange.accepts:
            seat.exchange.asked_all(as_text(event.headers))

    def _reset(self, event: ngh2.StreamReset) -> None:
        if seat := self._flows.get(event.stream_id):
            seat.code = event.error_code

    def _closed(self, event: ngh2.StreamClosed) -> None:
        seat = self._flows.get(event.stream_id)
        if seat is None:
            return
        self._abandon(seat, "client_closed", "the client left before the exchange was over")
        self.forget(seat)
        self.since = time.monotonic()

    # What its exchanges want

    def respond(self, flow: Flow, fields: Fields, *, end: bool) -> None:
        """Send the head of a response."""
        self.attempt(lambda: self._session.send_response(flow.number, fields, end_stream=end))

    def interim(self, flow: Flow, fields: Fields) -> None:
        """Send the head of a response that announces another."""
        self.attempt(lambda: self._session.send_informational_response(flow.number, fields))

    def freed(self, seat: Seat, *, lingers: bool) -> None:
        """A stream's exchange is over; `lingers` if more of its request is to come."""
        if lingers:
            seat.left_at = time.monotonic()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done; a fault in it ends the connection."""
        self.lane.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:  # noqa: BLE001 - the guard, as in `Wire`
            self.broken(fault)

    # What the door wants

    def overdue(self, now: float) -> None:
        """Look at the time."""
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
        """Take no more requests; close when what is under way has ended."""
        self.retire()

    def stop(self) -> None:
        """Close at once, whatever is under way."""
        self._give_up("refused", "the door stopped before the exchange was over")

    def broken(self, fault: BaseException, event: ngh2.Event | None = None) -> None:  # noqa: ARG002 - all is one client's
        """Something of ours has failed: end the connection rather than leave the client waiting."""
        logger.error("a connection was given up: %s", type(fault).__name__, exc_info=fault)
        self._give_up("refused", "the proxy failed while it passed this on")

    def lost(self) -> None:
        self._leave("client_closed", "the client left before the exchange was over")

    def _give_up(self, outcome: Outcome, why: str) -> None:
        if not self.gone:
            self.abort()
            self._leave(outcome, why)

    def _leave(self, outcome: Outcome, why: str) -> None:
        seats, self._flows = list(self._flows.values()), {}
        for seat in seats:
            self._abandon(seat, outcome, why)
        self._lender.close()
        self.lane.ways.let_go(self._alone)
        self.lane.departed(self)

    def _abandon(self, seat: Seat, outcome: Outcome, why: str) -> None:
        exchange, seat.exchange = seat.exchange, None
        if exchange is not None:
            exchange.abandon(outcome, why)
