"""One request of HTTP/2 and its response, relayed and recorded, in the steps of `relay`.

A request is sent a second time only where its upstream says that it has not done anything with it (RFC 9113 8.7), or where
it may be repeated and a connection that had waited broke without a word.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

import ngh2

from calls.model import Headers, Outcome
from proxy.lane.h2carriers import BROKEN, Carrier
from proxy.lane.h2exchange import Exchange2, Seat
from proxy.lane.h2heads import Asking, Told
from proxy.lane.h2ways import Key, Ways
from proxy.lane.h2wire import Fields
from proxy.lane.relay import SAFE
from proxy.lane.upstream import Lender
from proxy.mitm.problem import Problem
from replay.answer import mark

TRIES: Final = 3


class Relay2(Exchange2):
    """One request on its way to an upstream and back."""

    def __init__(self, seat: Seat, asking: Asking, ways: Ways, key: Key, lender: Lender) -> None:
        super().__init__(seat, asking.asked)
        self._asking = asking
        self._ways = ways
        self._key = key
        self._lender = lender
        self._carrier: Carrier | None = None
        self._tries = 0
        self._early: list[bytes] = []
        """Of the request, what is to go out once there is a carrier."""

        self._early_end: tuple[bytes, Headers] | None = None
        self._streams = False
        """Whether the request goes on piece by piece."""

        self._went_out = False
        """Whether any of it has, so that it could not be sent a second time."""

        self._begun = False
        """Whether a response has begun."""

        self._left: int | None = None
        """How much the response's head says is still to come."""

        self._unsent = b""
        """The piece that makes the response as long as it said."""

        self._answered = False
        """Whether all of the response has come."""

        self._answering = True
        """Whether any of it is still to be sent."""

        self._heard = 0.0
        self._upstream_full = False
        self.live = False
        """Whether the client is told that this is no recording."""

    # The request

    def start(self) -> None:
        asked, limit = self.asked, self.engine.config.limits.buffered_request
        bodied = not self._asking.bodiless
        self._streams = bodied and (asked.expects or asked.chunked or asked.length > limit)
        if not self._may_begin():
            return
        if not bodied:
            self.asked_all(())
        elif self._streams:
            self.desk.hold(full=True)
            self._forward()

    def resend(self, body: bytes, pieces: Iterable[bytes], trailers: Headers) -> None:
        """Relay a request of which all is there."""
        self.asking = False
        if not self._may_begin():
            return
        for piece in pieces:
            self.tape.data("request", piece)
        self.tape.ended("request", trailers)
        self._early, self._early_end = [body], (b"", trailers)
        self._forward()

    def _may_begin(self) -> bool:
        self.begin_tape(gathers=not self._streams)
        if problem := self.engine.refusal(self.asked.target):
            self.refuse(problem, "refused")
            return False
        return True

    def take(self, data: bytes, *, last: bool) -> None:
        self.tape.data("request", data)
        if last:
            self._end_request(data, ())
        elif self._streams and self._carrier is not None:
            self._carrier.send(data)
            self.paced(len(data))
        else:
            self._early.append(data)

    def asked_all(self, trailers: Headers) -> None:
        self._end_request(b"", trailers)

    def _end_request(self, data: bytes, trailers: Headers) -> None:
        """The last of it goes on when all of it is kept."""
        self.asking = False
        self.tape.ended("request", trailers)
        if not self._streams:
            self._early_end = data, trailers
            self._forward()
            return
        if not self._answering:
            self.tape.closed("completed")
        self.once_kept(
            lambda: self._send_end(data, trailers), lambda: self._give_up("the request could not be recorded")
        )

    def _send_end(self, data: bytes, trailers: Headers) -> None:
        if self._carrier is not None:
            self._carrier.end(data, trailers)
        else:
            self._early_end = data, trailers
        if not self._answering:
            self.finish(keep=True)

    def _forward(self) -> None:
        """Once the request is kept, send it to an upstream."""
        self.once_kept(self._connect, self._not_kept)

    def _not_kept(self) -> None:
        detail = "the request could not be recorded, and on_record_failure is refuse: it went nowhere"
        self.refuse(Problem(503, "not_recorded", detail), "refused")

    def _connect(self) -> None:
        self._tries += 1
        if carrier := self._ways.ready(self._key, self._lender, repeatable=self._repeatable()):
            self._send(carrier)
        else:
            self.desk.later(self._connect_later())

    async def _connect_later(self) -> None:
        try:
            carrier = await self._ways.carrier(self._key, self._lender)
        except Problem as problem:
            if not self.over:
                timed_out: Outcome = "timed_out" if problem.status == 504 else "server_closed"
                self.refuse(problem, "refused" if problem.status == 403 else timed_out)
        else:
            self._send(carrier)

    def _repeatable(self) -> bool:
        return self.asked.method in SAFE and not self._streams

    def _send(self, carrier: Carrier) -> None:
        if self.over:
            carrier.put_by()
            return
        self._carrier = carrier
        self._heard = time.monotonic()
        if self._streams:
            carrier.ask(self, self._asking, None, ())
            self._catch_up(carrier)
        else:
            assert self._early_end is not None
            end, trailers = self._early_end
            carrier.ask(self, self._asking, b"".join([*self._early, end]), trailers)
        if self.desk.full and self._carrier is carrier:
            carrier.hold(full=True)

    def _catch_up(self, carrier: Carrier) -> None:
        """Send what came of the request meanwhile, and take in more of it."""
        if self._carrier is not carrier:
            return
        self._went_out = True
        for data in self._early:
            if self._carrier is carrier:
                carrier.send(data)
        if self._carrier is not carrier:
            return
        self._early.clear()
        if self._early_end is not None:
            carrier.end(*self._early_end)
        # It may have been full with that already.
        self.full(full=self._upstream_full)

    # The response

    def interim(self, status: int, fields: Fields) -> None:
        self._heard = time.monotonic()
        self.desk.interim(status, fields)

    def response(self, told: Told, *, last: bool) -> None:
        self._heard = time.monotonic()
        self._begun = True
        self.tape.response(told.status, told.reason, told.version, told.fields)
        fields = told.wire
        if self.live:
            name, value = mark("live", run=self.asked.identity.run)
            fields = [*fields, (name.lower().encode(), value.encode())]
        if last:
            self._end(lambda: self.desk.respond(fields, end=True))
            return
        self._left = told.length or None
        self.desk.respond(fields)

    def body(self, data: bytes, *, last: bool) -> None:
        self._heard = time.monotonic()
        self.tape.data("response", data)
        if last:
            self._end(lambda: self.desk.end(self._unsent + data))
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                # Whoever counts has all of it now, although the end is still to come.
                self._unsent += data
                return
        self.desk.write(data)
        self.paced(len(data))

    def ended(self, trailers: Headers) -> None:
        self._end(lambda: self.desk.end(self._unsent, trailers), trailers)

    def _end(self, send: Callable[[], None], trailers: Headers = ()) -> None:
        """The last of it goes on when all of it is kept."""
        self._answered = True
        self.tape.ended("response", trailers)
        if not self.asking:
            self.tape.closed("completed")
        self.once_kept(lambda: self._done(send), lambda: self._give_up("the response could not be recorded"))

    def _done(self, send: Callable[[], None]) -> None:
        send()
        self._answering = False
        if not self.asking:
            self.finish(keep=True)
        elif self._carrier is None:
            self._unwanted()

    def _unwanted(self) -> None:
        """The response is whole, and the upstream does not want the rest of the request (RFC 9113 8.1)."""
        self.over = True
        self.tape.closed("completed")
        self.desk.reset(ngh2.ErrorCode.NO_ERROR)

    # Ends

    def broken(self, code: int, *, refused: bool = False, unheard: bool = False) -> None:
        if self.over:
            return
        self._carrier = None
        if self._answered:
            if not self._answering and self.asking:
                self._unwanted()
        elif self._may_ask_again(refused=refused, unheard=unheard):
            self._connect()
        else:
            self._break_off("the upstream broke off before its response was complete", code)

    def _break_off(self, why: str, code: int) -> None:
        self.tape.closed("server_closed", why)
        if self._unsent:
            self.desk.write(self._unsent)
        self.over = True
        self.desk.reset(code)

    def _may_ask_again(self, *, refused: bool, unheard: bool) -> bool:
        there = not self._went_out and not self._begun
        return there and self._tries < TRIES and (refused or (unheard and self._repeatable()))

    def malformed(self, fault: str) -> None:
        self._carrier = None
        why = f"the upstream's response is malformed: {fault}"
        if self._begun:
            self._break_off(why, BROKEN)
        else:
            self.refuse(Problem(502, "upstream_malformed", why))

    def failed(self, fault: BaseException) -> None:
        self.desk.failed(fault)

    def _give_up(self, why: str) -> None:
        if not self.over:
            self.tape.closed("refused", why)
            self.cut()

    def overdue(self, now: float) -> None:
        """The upstream may have been silent for too long. What the client still sends counts as silence too."""
        silence = self.engine.config.limits.silence
        if silence is None or self._carrier is None or self._answered or self._heard + silence > now:
            return
        why = f"the upstream was silent for {silence:g} s"
        self.release(keep=False)
        if not self._begun:
            self.refuse(Problem(504, "upstream_silent", why), "timed_out")
        else:
            self.tape.closed("timed_out", why)
            self.cut()

    def room(self, *, full: bool) -> None:
        if self._carrier is not None:
            self._carrier.hold(full=full or self.catching_up)

    def full(self, *, full: bool) -> None:
        self._upstream_full = full
        self.desk.hold(full=full or self.catching_up)

    def regulate(self) -> None:
        self.room(full=self.desk.full)
        self.full(full=self._upstream_full)

    def release(self, *, keep: bool) -> None:
        carrier, self._carrier = self._carrier, None
        self.desk.hold(full=False)
        if carrier is None:
            return
        if keep and self._answered:
            carrier.done()
        else:
            carrier.drop(self.desk.code)
