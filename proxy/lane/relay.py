"""One request and its response, relayed and recorded. Bytes go on as they came.

The request's head is kept before anything of it goes on; a short body goes with it, a long one piece by piece. Response
pieces go on as they come. Only what completes a message waits until all that came before it is kept.
"""

import re
import time
from collections.abc import Iterable
from typing import Final

from calls.model import Headers, Outcome
from proxy.lane.admission import Asked
from proxy.lane.exchange import MUCH, Desk, Exchange
from proxy.lane.framing import Body, Chunked, Malformed, Sized, UntilClosed
from proxy.lane.heads import END, Framing, ResponseHead, framing, response_head, without
from proxy.lane.upstream import Lender, Upstream
from proxy.mitm.problem import Problem
from replay.answer import mark

HEAD_BYTES: Final = 1 << 20
BARE: Final = re.compile(rb"(?<!\r)\n")

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ALT_SVC: Final = frozenset({"alt-svc"})


class Relay(Exchange):
    """One request on its way to an upstream and back."""

    live = False
    """Whether the client is told that this is no recording."""

    _upstream: Upstream | None = None
    _request: Body | None = None
    _streams = False
    """Whether the request goes on piece by piece."""

    _unread = b""
    """A response's head, as far as it is there."""

    _response: Body | None = None
    _unsent = b""
    """What goes out with the next piece."""

    _end_of_request = b""
    _end_of_response = b""
    """What completes them, and has to wait."""

    _upstream_full = False
    _answered = False
    """Whether all of the response has come."""

    _answering = True
    """Whether any of it is still to be sent."""

    _keeps = True
    """Whether the upstream keeps the connection."""

    _closes = False
    _heard = 0.0

    def __init__(self, desk: Desk, asked: Asked, upstreams: Lender) -> None:
        super().__init__(desk, asked)
        self._upstreams = upstreams
        self._collected: list[bytes] = []

    # The request

    @property
    def accepts(self) -> bool:
        return self.asking and not self.refused and (not self._streams or self._upstream is not None)

    def start(self) -> None:
        asked = self.asked
        bodied = asked.chunked or asked.length > 0
        self._streams = bodied and (
            asked.expects or asked.chunked or asked.length > self.engine.config.limits.buffered_request
        )
        self.begin_tape(gathers=not self._streams)
        if problem := self.engine.refusal(asked.target):
            self.refuse(problem, "refused")
        elif not bodied:
            self._whole(b"")
        elif self._streams:
            self._forward()

    def resend(self, body: bytes, pieces: Iterable[bytes], trailers: Headers) -> None:
        """Relay a request of which all is there."""
        self.asking = False
        self.begin_tape(gathers=True)
        if problem := self.engine.refusal(self.asked.target):
            self.refuse(problem, "refused")
            return
        for piece in pieces:
            self.tape.data("request", piece)
        self.tape.ended("request", trailers)
        self._collected.append(body)
        self._forward()

    def feed(self, data: bytes) -> bytes:
        if self._request is None:
            length = self.asked.length
            if not self._streams and len(data) >= length:
                self._whole(data[:length])
                return data[length:]
            self._request = Chunked() if self.asked.chunked else Sized(length)
        cut = self._request.feed(data)
        for piece in cut.pieces:
            self.tape.data("request", piece)
        if not self._streams:
            self._collected.append(cut.go if cut.end is None else cut.go + cut.end)
            if cut.end is not None:
                self.asking = False
                self.tape.ended("request")
                self._forward()
            return cut.rest
        if cut.go and self._upstream is not None:
            self._upstream.write(cut.go)
        if cut.end is not None:
            self._end_request(cut.end)
        else:
            self.paced(len(data))
        return cut.rest

    def _whole(self, body: bytes) -> None:
        """All of it came at once."""
        self.asking = False
        self.tape.asked(body)
        self._collected.append(body)
        self._forward()

    def _end_request(self, end: bytes) -> None:
        """The last of it goes on when all of it is kept."""
        assert self._request is not None
        self.asking = False
        self.tape.ended("request", self._request.trailers)
        if not self._answering:
            self.tape.closed("completed")
        self._end_of_request = end
        self.once_kept(self._send_end, self._give_up_request)

    def _send_end(self) -> None:
        if self._upstream is not None:
            self._upstream.write(self._end_of_request)
        if not self._answering:
            self.finish(keep=self._keeps, closes=self._closes)

    def _forward(self) -> None:
        """Once the request is kept, send it to an upstream."""
        self.once_kept(self._connect, self._not_kept)

    def _not_kept(self) -> None:
        detail = "the request could not be recorded, and on_record_failure is refuse: it went nowhere"
        self.refuse(Problem(503, "not_recorded", detail), "refused")

    def _connect(self) -> None:
        if upstream := self._upstreams.lend(self.asked.way, repeatable=self._repeatable()):
            self._send(upstream)
        else:
            self.desk.later(self._connect_later())

    async def _connect_later(self) -> None:
        try:
            upstream = await self._upstreams.connect(self.asked.way)
        except Problem as problem:
            if not self.over:
                timed_out: Outcome = "timed_out" if problem.status == 504 else "server_closed"
                self.refuse(problem, "refused" if problem.status == 403 else timed_out)
        else:
            self._send(upstream)

    def _repeatable(self) -> bool:
        return self.asked.method in SAFE and not self._streams

    def _send(self, upstream: Upstream) -> None:
        if self.over:
            upstream.drop()
            return
        if upstream.gone:
            self.broken(ragged=True)
            return
        self._upstream = upstream
        self._heard = time.monotonic()
        upstream.bound = upstream.bound or self.asked.bound
        upstream.lend(self)
        if self.desk.full:
            upstream.read(on=False)
        upstream.write(b"".join([self.asked.head, *self._collected]))
        if self._streams:
            self.desk.go_on()
        elif self.asked.method not in SAFE:
            self._collected.clear()  # it is never sent a second time

    # The response

    def answer(self, data: bytes) -> None:
        """The upstream says something."""
        self._heard = time.monotonic()
        if self._answered:
            self._keeps = False
        elif self._response is not None:
            self._body(self._response, data)
        else:
            self._head(self._unread + data if self._unread else data)

    def _head(self, data: bytes) -> None:
        while (end := data.find(END)) >= 0:
            head = response_head(data[: end + 4])
            data = data[end + 4 :]
            if head is None or head.status == 101:
                self._malformed("no sound head" if head is None else "a switch of protocols that nobody asked for")
                return
            if head.status >= 200:
                self._begin(head, data)
                return
            self.desk.write(head.raw)
        self._unread = data
        if len(data) > HEAD_BYTES:
            self._malformed("its head is too large")
        elif BARE.search(data):
            # Its end could not be found, and would be waited for.
            self._malformed("a line of its head ends in a bare LF")

    def _begin(self, head: ResponseHead, data: bytes) -> None:
        frame = framing(head)
        if frame.odd or (frame.chunked and head.version == "1.0"):
            self._malformed("its framing is ambiguous or invalid")
            return
        self._unread = b""
        raw, fields = head.raw, head.fields
        # Else the client would leave for QUIC, past us.
        if "alt-svc" in head.names:
            raw = without(raw, head.names, _ALT_SVC)
            fields = tuple(field for field in fields if field[0].lower() != "alt-svc")
        if self.live:
            raw = raw[:-2] + "{}: {}\r\n\r\n".format(*mark("live", run=self.asked.identity.run)).encode()
        if head.status == 401 and self._upstream is not None and by_connection(head):
            self._upstream.bound = True
        self._closes = self._closes or frame.closes or head.version == "1.0"
        self._keeps = self._keeps and not self._closes and not self.asked.closes
        length = length_of(head.status, self.asked.method, frame)
        told = head.status, head.reason, f"HTTP/{head.version}", fields
        if length is not None and len(data) >= length:
            self._unsent = raw
            self._answered_at_once(told, data[:length], data[length:])
            return
        self.tape.response(*told)
        self._response = body = body_of(head.status, self.asked.method, frame)
        assert body is not None
        if isinstance(body, UntilClosed):
            self._closes, self._keeps = True, False
        self._unsent = raw
        self._body(body, data)

    def _answered_at_once(self, told: tuple[int, str, str, Headers], body: bytes, surplus: bytes) -> None:
        """All of it has come with its head, as most short answers do."""
        self.tape.answered(*told, body, over=not self.asking)
        if body:
            self._complete(body, surplus)
            return
        # Where nothing follows the head, it is the head that completes the answer.
        raw, self._unsent = self._unsent, b""
        self._complete(raw, surplus)

    def _body(self, body: Body, data: bytes) -> None:
        try:
            cut = body.feed(data)
        except Malformed as fault:
            self._break_down(fault)
            return
        for piece in cut.pieces:
            if piece:
                self.tape.data("response", piece)
        go = self._unsent + cut.go if self._unsent else cut.go
        self._unsent = b""
        if cut.end is not None:
            self._end(go, cut.end, cut.rest)
        elif go:
            self.desk.write(go)
            if len(data) >= MUCH:
                self.paced(len(data))

    def _break_down(self, fault: Malformed) -> None:
        """What is sound of it goes on, and then no more."""
        for piece in fault.pieces:
            self.tape.data("response", piece)
        self._unsent += fault.go
        self.meanwhile()
        self.tape.closed("server_closed", f"the upstream's response is malformed: {fault}")
        self.cut()

    def _end(self, before: bytes, end: bytes, surplus: bytes = b"") -> None:
        self.tape.ended("response", self._response.trailers if self._response else ())
        if not self.asking:
            self.tape.closed("completed")
        self._unsent = before
        self._complete(end, surplus)

    def _complete(self, end: bytes, surplus: bytes) -> None:
        """The last of it goes on when all of it is kept."""
        self._answered = True
        # Nobody asked for more: what comes behind can only be an attack or a mistake.
        self._keeps = self._keeps and not surplus
        self._end_of_response = end
        self.once_kept(self._done, self._give_up_response)

    def meanwhile(self) -> None:
        if self._unsent:
            self.desk.write(self._unsent)
            self._unsent = b""

    def _done(self) -> None:
        if data := self._unsent + self._end_of_response:
            self.desk.write(data)
        self._unsent = b""
        self._answering = False
        gone = self._upstream is None or self._upstream.gone or not self._keeps
        if not self.asking:
            self.finish(keep=self._keeps, closes=self._closes)
        elif gone:
            self.tape.closed("completed")
            self.finish(keep=False, closes=True)

    # Ends

    def broken(self, *, ragged: bool) -> None:
        """The upstream is gone."""
        if self.over:
            return
        self._keeps = False
        if self._answered:
            if not self._answering and self.asking:
                self.tape.closed("completed")
                self.finish(keep=False, closes=True)
        elif isinstance(self._response, UntilClosed) and not ragged:
            self._end(b"", b"")
        elif self._may_ask_again():
            self._upstream = None
            self._unread = b""
            self._keeps = True
            self._connect()
        else:
            self.tape.closed("server_closed", "the upstream broke off before its response was complete")
            self.meanwhile()
            self.cut()

    def _may_ask_again(self) -> bool:
        """A connection that had waited and was closed meanwhile: only what may be asked twice is asked again."""
        untouched = self._response is None and not self._unread
        return untouched and self._repeatable() and self._upstream is not None and self._upstream.used > 1

    def _malformed(self, fault: str) -> None:
        if self._upstream is not None:
            self._upstream.drop()
        self.refuse(Problem(502, "upstream_malformed", f"the upstream's response is malformed: {fault}"))

    def _give_up_request(self) -> None:
        self._give_up("the request could not be recorded")

    def _give_up_response(self) -> None:
        self._give_up("the response could not be recorded")

    def _give_up(self, why: str) -> None:
        if not self.over:
            self.tape.closed("refused", why)
            self.cut()

    def overdue(self, now: float) -> None:
        """The upstream may have been silent for too long. What the client still sends counts as silence too."""
        silence = self.engine.config.limits.silence
        if silence is None or self._upstream is None or self._answered or self._heard + silence > now:
            return
        why = f"the upstream was silent for {silence:g} s"
        self._upstream.drop()
        if self._response is None:
            self.refuse(Problem(504, "upstream_silent", why), "timed_out")
        else:
            self.tape.closed("timed_out", why)
            self.cut()

    def room(self, *, full: bool) -> None:
        if self._upstream is not None:
            self._upstream.read(on=not (full or self.catching_up))

    def full(self, *, full: bool) -> None:
        """The upstream takes no more for now, or more again."""
        self._upstream_full = full
        self.desk.hold(full=full or self.catching_up)

    def regulate(self) -> None:
        self.room(full=self.desk.full)
        self.full(full=self._upstream_full)

    def release(self, *, keep: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        self.desk.hold(full=False)
        if not keep or upstream.gone:
            upstream.drop()
            return
        upstream.read(on=True)
        upstream.give_back()
        self._upstreams.returned(upstream)


def length_of(status: int, method: str, frame: Framing) -> int | None:
    """How long a response's body is; None where only its end will tell."""
    if method == "HEAD" or status in (204, 304):
        return 0
    return None if frame.chunked else frame.length


def body_of(status: int, method: str, frame: Framing) -> Body | None:
    """How a response's body is read; None where it has none."""
    length = length_of(status, method, frame)
    if length is not None:
        return Sized(length) if length else None
    return Chunked(padded=True) if frame.chunked else UntilClosed()


def by_connection(head: ResponseHead) -> bool:
    """Whether the upstream wants its client's name once for a connection."""
    return any(
        name == "www-authenticate" and value.lower().startswith(("ntlm", "negotiate"))
        for name, (_, value) in zip(head.names, head.fields, strict=True)
    )
