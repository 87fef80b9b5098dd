"""Relay and record a request and its response, whatever versions of HTTP both sides speak.

The request's head is kept before anything of it goes on; a short body goes with it, a long one piece by piece. Response
pieces go on as they come. Only what completes a message waits until all that came before it is kept.

A request is sent a second time only where its upstream says that it has not done anything with it (RFC 9113 8.7), or where
it may be repeated and a connection that had waited broke without a word.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from calls.model import Headers, Outcome
from proxy.lane.admission import LaneRequest
from proxy.lane.exchange import A_LOT, BROKEN, MUCH, Downstream, DownstreamHead, LaneExchange
from proxy.lane.upstream_http1 import Carrier, Source
from proxy.wire.problem import Problem
from replay.answer import mark

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
TRIES: Final = 3


class RelayedExchange(LaneExchange):
    """One request on its way to an upstream and back."""

    def __init__(self, desk: Downstream, asked: LaneRequest, source: Source, *, live: bool = False) -> None:
        super().__init__(desk, asked)
        self._source = source
        self._live = live
        """Whether the client is told that this is no recording."""

        self._carrier: Carrier | None = None
        self._tries = 0
        self._heard = 0.0
        """When the upstream was last known to have said something."""

        self._upstream_full = False

        # The request

        self._streams = False
        """Whether it goes on piece by piece."""

        self._repeatable = False
        """Whether it may be asked twice."""

        self._early: list[bytes] = []
        """What is to go out once there is a carrier."""

        self._ahead = 0
        """How much that is."""

        self._went_out = False
        """Whether any piece has, so that it could not be sent a second time."""

        self._last: tuple[bytes, Headers] | None = None
        """What completes it, and what comes behind that; None until it may go on."""

        self._sent = False
        """Whether all of it was."""

        # The response

        self._told: DownstreamHead | None = None
        """Its head."""

        self._head: DownstreamHead | None = None
        """The same, where it has not gone out."""

        self._before = self._end = b""
        """The rest of it: what completes it has to wait, what comes before that does not."""

        self._trailers: Headers = ()
        self._answered = False
        """Whether all of it has come."""

        self._answering = True
        """Whether any of it is still to be sent."""

    # The request

    def start(self) -> None:
        asked = self.asked
        self._streams = asked.body_follows and (
            asked.expects or asked.chunked or asked.length > self.engine.config.limits.buffered_request
        )
        self._repeatable = asked.method in SAFE and not self._streams
        if not self._may_begin():
            return
        if not asked.body_follows:
            self.take_whole(b"")
        elif self._streams:
            self._forward()

    def resend(self, body: bytes, pieces: Iterable[bytes], trailers: Headers) -> None:
        """Relay a request of which all is there."""
        self.asking = False
        self._repeatable = self.asked.method in SAFE
        if not self._may_begin():
            return
        for piece in pieces:
            self.tape.data("request", piece)
        self.tape.ended("request", trailers)
        self._last = body, trailers
        self._forward()

    def _may_begin(self) -> bool:
        self.begin_tape(gathers=not self._streams)
        if problem := self.engine.refusal(self.asked.target, self.asked.captured):
            self.refuse(problem)
            return False
        return True

    def take(self, go: bytes, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if piece:
                self.tape.data("request", piece)
        if not go:
            return
        if self._went_out and self._carrier is not None:
            self._carrier.send(go)
            self.paced(len(go))
        elif not self._went_out:
            self._early.append(go)
            self._ahead += len(go)
            if self._streams and self._ahead > A_LOT:
                self.desk.hold(full=True)

    def take_end(self, end: bytes, trailers: Headers) -> None:
        self.asking = False
        self.tape.ended("request", trailers)
        if not self._streams:
            self._last = end, trailers
            self._forward()
            return
        if self._answered:
            self.tape.closed("completed")
        self.once_kept(
            lambda: self._send_end(end, trailers), lambda: self._give_up("the request could not be recorded")
        )

    def take_whole(self, body: bytes) -> None:
        if self._streams:
            super().take_whole(body)
            return
        self.asking = False
        self.tape.asked(body)
        self._last = body, ()
        self._forward()

    def _send_end(self, end: bytes, trailers: Headers) -> None:
        """The last of what goes on piece by piece, now that all of it is kept."""
        self._last = end, trailers
        if self._went_out and self._carrier is not None:
            self._sent = True
            self._carrier.end(end, trailers)
        self._check_over()

    def _forward(self) -> None:
        """Once the request is kept, send it to an upstream."""
        self.once_kept(self._connect, self._not_kept)

    def _not_kept(self) -> None:
        self.refuse(Problem(503, "not_recorded", self.tape.refusal))

    def _connect(self) -> None:
        self._tries += 1
        if carrier := self._source.ready(self.asked.way, repeatable=self._repeatable):
            self._send(carrier)
        else:
            self.desk.later(self._connect_later())

    async def _connect_later(self) -> None:
        try:
            carrier = await self._source.carrier(self.asked.way)
        except Problem as problem:
            if not self.over:
                timed_out: Outcome = "timed_out" if problem.status == 504 else "server_closed"
                self.refuse(problem, "refused" if problem.status == 403 else timed_out)
        else:
            self._send(carrier)

    def _send(self, carrier: Carrier) -> None:
        if self.over:
            carrier.put_by()
            return
        self._carrier = carrier
        self._heard = time.monotonic()
        if self._streams:
            carrier.ask(self, self.asked, None, ())
            if self._carrier is carrier:
                self._catch_up(carrier)
        else:
            assert self._last is not None
            end, trailers = self._last
            self._sent = True
            carrier.ask(self, self.asked, b"".join([*self._early, end]) if self._early else end, trailers)
            if self._carrier is carrier and not (carrier.may_refuse or self._repeatable):
                self._early.clear()  # it is never sent a second time
                self._last = None
        if self.desk.full and self._carrier is carrier:
            carrier.hold(full=True)

    def _catch_up(self, carrier: Carrier) -> None:
        """Send what came of the request meanwhile, and take in more of it."""
        self._went_out = True
        early, self._early = self._early, []
        for data in early:
            if self._carrier is carrier:
                carrier.send(data)
        if self._carrier is not carrier:
            return
        if self._last is not None:
            self._sent = True
            carrier.end(*self._last)
        # It may have been full with that already.
        self.full(full=self._upstream_full)

    # The response

    def interim(self, told: DownstreamHead) -> None:
        self.desk.announce(told)

    def response(self, told: DownstreamHead, *, alone: bool) -> None:
        self.tape.response(told.status, told.reason, told.version, told.fields)
        self._told = self._head = self._marked(told) if self._live else told
        if alone:
            self.body(b"", ())

    def _marked(self, told: DownstreamHead) -> DownstreamHead:
        return told.marked(*mark("live", run=self.asked.identity.run))

    def body(self, go: bytes, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if piece:
                self.tape.data("response", piece)
        head = self._head
        if head is not None:
            self._head = None
        elif not go:
            return
        self.desk.send(head, go)
        if len(go) >= MUCH:
            self.paced(len(go))

    def ended(self, pieces: Sequence[bytes], before: bytes, end: bytes, trailers: Headers) -> None:
        for piece in pieces:
            if piece:
                self.tape.data("response", piece)
        self.tape.ended("response", trailers)
        if not self.asking:
            self.tape.closed("completed")
        self._complete(before, end, trailers)

    def whole(self, told: DownstreamHead, body: bytes) -> None:
        self.tape.answered(told.status, told.reason, told.version, told.fields, body, over=not self.asking)
        self._told = self._head = self._marked(told) if self._live else told
        self._complete(b"", body, ())

    def _complete(self, before: bytes, end: bytes, trailers: Headers) -> None:
        """The last of it goes on when all of it is kept."""
        self._answered = True
        self._before, self._end, self._trailers = before, end, trailers
        self.once_kept(self._done, self._give_up_response)

    def meanwhile(self) -> None:
        # Where nothing follows the head, it is the head that completes the response.
        if self._before or (self._head is not None and (self._end or self._trailers)):
            self.desk.send(self._head, self._before)
            self._head, self._before = None, b""

    def _done(self) -> None:
        self._answering = False
        self.desk.send(self._head, self._before + self._end, last=True, trailers=self._trailers)
        self._check_over()

    # Ends

    def _check_over(self) -> None:
        """Be through, where both messages are or the upstream does not want the rest of the request (RFC 9113 8.1)."""
        if self._answering:
            return
        carrier, closes = self._carrier, self._told is not None and self._told.closes
        if self._sent:
            self.finish(keep=True, closes=closes)
        elif carrier is None or carrier.spent:
            self.tape.closed("completed")
            self.finish(keep=False, closes=closes or self.asking)

    def broken(self, code: int, *, refused: bool = False, unheard: bool = False) -> None:
        if self.over or self.refused:
            return
        self._carrier = None
        if self._answered:
            self._check_over()
        elif self._may_ask_again(refused=refused, unheard=unheard):
            self._sent = False
            self._connect()
        else:
            self._break_off("the upstream broke off before its response was complete", code)

    def _break_off(self, why: str, code: int) -> None:
        self.tape.closed("server_closed", why)
        if self._head is not None:
            self.body(b"", ())
        self.cut(code)

    def _may_ask_again(self, *, refused: bool, unheard: bool) -> bool:
        untouched = not self._went_out and self._told is None
        return untouched and ((refused and self._tries < TRIES) or (unheard and self._repeatable))

    def malformed(self, fault: str) -> None:
        self._carrier = None
        why = f"the upstream's response is malformed: {fault}"
        if self._told is not None:
            self._break_off(why, BROKEN)
        else:
            self.refuse(Problem(502, "upstream_malformed", why))

    def failed(self, fault: BaseException) -> None:
        self.desk.failed(fault)

    def _give_up_response(self) -> None:
        self._give_up("the response could not be recorded")

    def _give_up(self, why: str) -> None:
        if not self.over:
            self.tape.closed("refused", why)
            self.cut()

    def overdue(self, now: float) -> None:
        """The upstream may have been silent for too long. What the client still sends counts as silence too."""
        silence, carrier = self.engine.config.limits.silence, self._carrier
        if silence is None or carrier is None or self._answered:
            return
        if carrier.heard:
            carrier.heard, self._heard = False, now
        if self._heard + silence > now:
            return
        why = f"the upstream was silent for {silence:g} s"
        self.release(keep=False)
        if self._told is None:
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
