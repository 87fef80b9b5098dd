"""What carries a request of HTTP/2 to its upstream and the response back, whatever is spoken there; here: HTTP/1.1."""

from typing import Final, Protocol

import ngh2

from calls.model import Headers
from proxy.lane.framing import Body, Malformed, UntilClosed
from proxy.lane.h2heads import Asking, Told, as_fields, from_http1, http1_request
from proxy.lane.h2wire import Fields
from proxy.lane.heads import END, ResponseHead, framing, response_head
from proxy.lane.relay import BARE, HEAD_BYTES, body_of, by_connection
from proxy.lane.upstream import Lender, Upstream

BROKEN: Final = int(ngh2.ErrorCode.INTERNAL_ERROR)
"""What a stream is told where a connection of HTTP/1.1 would be closed."""


class Taker(Protocol):
    """Whom a response is for."""

    def interim(self, status: int, fields: Fields) -> None:
        """A response announces another one."""

    def response(self, told: Told, *, last: bool) -> None:
        """Its head; `last` where it is all there is."""

    def body(self, data: bytes, *, last: bool) -> None:
        """A piece of it, which is not empty."""

    def ended(self, trailers: Headers) -> None:
        """It is whole."""

    def malformed(self, fault: str) -> None:
        """It is none, or the rest of it."""

    def broken(self, code: int, *, refused: bool = False, unheard: bool = False) -> None:
        """Nothing more comes. `refused`: the upstream has not done anything. `unheard`: it never said a word, on a
        connection that had waited."""

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed."""

    def full(self, *, full: bool) -> None:
        """The upstream takes no more for now, or more again."""


class Carrier(Protocol):
    """Carries one request."""

    def ask(self, taker: Taker, asking: Asking, whole: bytes | None, trailers: Headers) -> None:
        """Send the head, and with it the whole body, where that is there."""

    def send(self, data: bytes) -> None:
        """A piece of the body."""

    def end(self, data: bytes, trailers: Headers) -> None:
        """The last of it."""

    def hold(self, *, full: bool) -> None:
        """Read no more of the response for now, or go on."""

    def drop(self, code: int) -> None:
        """Break off."""

    def done(self) -> None:
        """Both sides are through."""

    def put_by(self) -> None:
        """Nobody has asked anything."""


class OverHttp1:
    """One request on a connection of HTTP/1.1."""

    def __init__(self, upstream: Upstream, lender: Lender) -> None:
        self._upstream = upstream
        self._lender = lender
        self._taker: Taker
        self._method = ""
        self._chunked = False
        self._body: Body | None = None
        self._unread = b""
        self._heard = self._over = False
        self._keeps = True
        self._left = False
        """Whether nobody wants to hear of it any more."""

    def ask(self, taker: Taker, asking: Asking, whole: bytes | None, trailers: Headers) -> None:
        upstream, asked = self._upstream, asking.asked
        self._taker, self._method, self._chunked = taker, asked.method, asked.chunked
        if upstream.gone:
            taker.broken(BROKEN, unheard=upstream.used > 0)
            return
        upstream.bound = upstream.bound or asked.bound
        upstream.lend(self)
        head = http1_request(asking)
        upstream.write(head if whole is None else head + self._ending(whole, trailers))

    def send(self, data: bytes) -> None:
        self._upstream.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, data: bytes, trailers: Headers) -> None:
        if ending := self._ending(data, trailers):
            self._upstream.write(ending)

    def _ending(self, data: bytes, trailers: Headers) -> bytes:
        if not self._chunked:
            return data
        lines = "".join(f"{name}: {value}\r\n" for name, value in trailers).encode("latin-1")
        return (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + b"0\r\n" + lines + b"\r\n"

    def hold(self, *, full: bool) -> None:
        self._upstream.read(on=not full)

    def drop(self, code: int) -> None:  # noqa: ARG002 - there is nobody to tell
        self._left = True
        self._upstream.drop()

    def done(self) -> None:
        self._left = True
        if not (self._keeps and self._over) or self._upstream.gone:
            self._upstream.drop()
            return
        self._upstream.read(on=True)
        self._upstream.give_back()
        self._lender.returned(self._upstream)

    def put_by(self) -> None:
        self._upstream.give_back()
        self._lender.returned(self._upstream)

    # What the upstream's connection tells

    def answer(self, data: bytes) -> None:
        self._heard = True
        if self._over:
            # Nobody asked for more: it can only be an attack or a mistake.
            self._keeps = False
        elif self._body is not None:
            self._feed(self._body, data)
        else:
            self._head(self._unread + data)

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
            self._taker.interim(head.status, as_fields(head.fields))
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
        if head.status == 401 and by_connection(head):
            self._upstream.bound = True
        self._body = body_of(head.status, self._method, frame)
        until_closed = isinstance(self._body, UntilClosed)
        self._keeps = not (frame.closes or head.version == "1.0" or until_closed)
        if self._body is None:
            self._over, self._keeps = True, self._keeps and not data
        self._taker.response(from_http1(head, frame.length), last=self._over)
        if self._body is not None and data and not self._left:
            self._feed(self._body, data)

    def _feed(self, body: Body, data: bytes) -> None:
        try:
            cut = body.feed(data)
        except Malformed as fault:
            for piece in fault.pieces:
                if not self._left:
                    self._taker.body(piece, last=False)
            self._malformed(str(fault))
            return
        pieces = [piece for piece in cut.pieces if piece]
        self._over = cut.end is not None
        self._keeps = self._keeps and not cut.rest
        # A body that ends here ends with its last piece, so that both go out in one frame.
        whole = bool(self._over and pieces and not body.trailers)
        for number, piece in enumerate(pieces, 1):
            if not self._left:
                self._taker.body(piece, last=whole and number == len(pieces))
        if self._over and not whole and not self._left:
            self._taker.ended(body.trailers)

    def _malformed(self, fault: str) -> None:
        self._upstream.drop()
        self._taker.malformed(fault)

    def broken(self, *, ragged: bool) -> None:
        if isinstance(self._body, UntilClosed) and not ragged and not self._over:
            self._over = True
            self._taker.ended(())
        else:
            self._taker.broken(BROKEN, unheard=not self._heard and self._upstream.used > 1)

    def full(self, *, full: bool) -> None:
        self._taker.full(full=full)
