"""Send a request to an upstream in HTTP/1.1 and read its response, whatever the client speaks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from calls.model import Headers
from proxy.lane.admission import LaneRequest, by_connection
from proxy.lane.exchange import BROKEN, DownstreamHead
from proxy.lane.framing import Body, ChunkedBody, Cut, MalformedBody, SizedBody, UntilClosed
from proxy.lane.h2.heads import http1_request, wired
from proxy.lane.heads import END, BodyFraming, ResponseHead, framing, is_withheld, response_head, without
from proxy.lane.upstream import Upstream, Upstreams, Way
from proxy.wire.destinations import Destinations
from proxy.wire.http1_heads import response_flaw, unfinished_flaw
from proxy.wire.trailers import sendable_trailers


class ResponseSink(Protocol):
    """Whom a response is for."""

    def interim(self, told: DownstreamHead) -> None:
        """A response announces another one."""

    def response(self, told: DownstreamHead, *, alone: bool) -> None:
        """Its head; `alone`: nobody knows when the rest of it comes."""

    def body(self, go: bytes, pieces: Sequence[bytes]) -> None:
        """More of it: what may go on, and its payload, of which a last piece may have to wait for the end."""

    def ended(self, pieces: Sequence[bytes], before: bytes, end: bytes, trailers: Headers) -> None:
        """The rest of it: payload, what may go on, and what completes it."""

    def whole(self, told: DownstreamHead, body: bytes) -> None:
        """All of it at once: head, and a body of known length."""

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

    heard: bool
    """Set whenever the upstream says something."""

    may_refuse: bool
    """Whether an upstream can say that it has not done anything."""

    @property
    def spent(self) -> bool:
        """Whether the upstream takes nothing more once it has answered."""

    def ask(self, taker: ResponseSink, asked: LaneRequest, whole: bytes | None, trailers: Headers) -> None:
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


class Source(Protocol):
    """Where one client's carriers come from."""

    def ready(self, way: Way, *, repeatable: bool) -> Carrier | None:
        """One that is there, and good enough for a request that may be `repeatable`."""

    async def carrier(self, way: Way) -> Carrier:
        """One that may have to be made. Raises Problem."""


class Http1Carrier:
    """One request on a connection of HTTP/1.1, for a client that speaks that too: bytes pass as they are."""

    may_refuse = False

    def __init__(self, upstream: Upstream, lender: "ClientPool") -> None:
        self._upstream = upstream
        self._lender = lender
        self._taker: ResponseSink
        self._asked: LaneRequest
        self._body: Body | None = None
        self._trailers: Headers = ()
        self._unread = b""
        """A head, as far as it is there."""

        self.heard = self._said = False
        """Whether the upstream has said anything."""

        self._over = False
        """Whether all of the response has come."""

        self._keeps = True
        """Whether the upstream keeps the connection."""

    @property
    def spent(self) -> bool:
        return not self._keeps or self._upstream.gone

    def ask(self, taker: ResponseSink, asked: LaneRequest, whole: bytes | None, trailers: Headers) -> None:  # noqa: ARG002 - they are in the bytes
        upstream = self._upstream
        self._taker, self._asked = taker, asked
        if upstream.gone:
            taker.broken(BROKEN, unheard=upstream.used > 0)
            return
        upstream.bound = upstream.bound or asked.bound
        upstream.lend(self)
        upstream.write(asked.head + whole if whole else asked.head)

    def send(self, data: bytes) -> None:
        self._upstream.write(self._framed(data))

    def end(self, data: bytes, trailers: Headers) -> None:
        if last := self._last(data, trailers):
            self._upstream.write(last)

    def hold(self, *, full: bool) -> None:
        self._upstream.read(on=not full)

    def drop(self, code: int) -> None:  # noqa: ARG002 - there is nobody to tell
        self._upstream.drop()

    def done(self) -> None:
        if self._keeps and self._over:
            self._lender.returned(self._upstream)
        else:
            self._upstream.drop()

    def put_by(self) -> None:
        self._lender.returned(self._upstream)

    # What differs where the client speaks HTTP/2

    def _framed(self, data: bytes) -> bytes:
        return data

    def _last(self, data: bytes, trailers: Headers) -> bytes:  # noqa: ARG002 - they are in the bytes
        return data

    def _told(self, head: ResponseHead, *, closes: bool) -> DownstreamHead:
        raw, fields = head.raw, head.fields
        if head.known.withheld:
            raw = without(raw, head.known.lowered, head.known.withheld)
            # Evidence is what the upstream said, also under our names.
            fields = tuple(field for field in fields if field[0].lower() != "alt-svc")
        return DownstreamHead(head.status, head.reason, f"HTTP/{head.version}", fields, raw, (), closes)

    def _pass(self, cut: Cut) -> None:
        if cut.end is None:
            self._taker.body(cut.go, cut.pieces)
        else:
            self._taker.ended(cut.pieces, cut.go, cut.end, self._trailers)

    # What the upstream's connection tells

    def answer(self, data: bytes) -> None:
        self.heard = True
        body = self._body
        if body is None:
            if self._over:
                # Nobody asked for more: it can only be an attack or a mistake.
                self._keeps = False
            else:
                self._head(self._unread + data if self._unread else data)
            return
        try:
            cut = body.feed(data)
        except MalformedBody as fault:
            self._pass(Cut(fault.go, fault.pieces, None))
            self._malformed(str(fault))
            return
        if cut.end is not None:
            self._over, self._body = True, None
            self._trailers = body.trailers
            self._keeps = self._keeps and not cut.rest
        self._pass(cut)

    def _head(self, data: bytes) -> None:
        self._said = True
        while (end := data.find(END)) >= 0:
            raw, data = data[: end + 4], data[end + 4 :]
            head = response_head(raw)
            if head is None or head.status == 101:
                wrong = (
                    f"no sound head ({response_flaw(raw)})"
                    if head is None
                    else "a switch of protocols that nobody asked for"
                )
                self._malformed(wrong)
                return
            if head.status >= 200:
                self._begin(head, data)
                return
            if head.known.coding is not None:
                self._malformed("an interim response has a transfer coding")
                return
            self._taker.interim(self._told(head, closes=False))
        self._unread = data
        if (fault := unfinished_flaw(data)) is not None:
            self._malformed(fault)

    def _begin(self, head: ResponseHead, data: bytes) -> None:
        frame, method = framing(head), self._asked.method
        # RFC 9112 6.1: neither an HTTP/1.0 response nor one of status 204 has a transfer coding.
        if frame.odd or (frame.chunked and (head.version == "1.0" or head.status == 204)):
            self._malformed("its framing is ambiguous or invalid")
            return
        self._unread = b""
        if head.status == 401 and _by_connection(head):
            self._upstream.bound = True
        length = length_of(head.status, method, frame)
        closes = frame.closes or head.version == "1.0"
        if length is not None and len(data) >= length:
            self._over = True
            self._keeps = not (closes or self._asked.closes or len(data) > length)
            self._taker.whole(self._told(head, closes=closes), data[:length])
            return
        self._body = body = body_of(frame)
        closes = closes or isinstance(body, UntilClosed)
        self._keeps = not (closes or self._asked.closes)
        self._taker.response(self._told(head, closes=closes), alone=not data)
        if data:
            self.answer(data)

    def _malformed(self, fault: str) -> None:
        self._upstream.drop()
        self._taker.malformed(fault)

    def broken(self, *, ragged: bool) -> None:
        if isinstance(self._body, UntilClosed) and not ragged:
            self._over = True
            self._taker.ended((), b"", b"", ())
        else:
            self._taker.broken(BROKEN, unheard=not self._said and self._upstream.used > 1)

    def failed(self, fault: BaseException) -> None:
        self._taker.failed(fault)

    def full(self, *, full: bool) -> None:
        self._taker.full(full=full)


class ReframedForHttp2(Http1Carrier):
    """The same for a client that speaks HTTP/2."""

    def ask(self, taker: ResponseSink, asked: LaneRequest, whole: bytes | None, trailers: Headers) -> None:
        self._asked = asked
        last = None if whole is None else self._last(whole, trailers)
        super().ask(taker, asked._replace(head=http1_request(asked)), last, ())

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._asked.chunked and data else data

    def _last(self, data: bytes, trailers: Headers) -> bytes:
        if not self._asked.chunked:
            return data
        lines = "".join(f"{name}: {value}\r\n" for name, value in sendable_trailers(trailers)).encode("latin-1")
        return self._framed(data) + b"0\r\n" + lines + b"\r\n"

    def _told(self, head: ResponseHead, *, closes: bool) -> DownstreamHead:
        told = super()._told(head, closes=closes)
        seen = told.fields
        if head.known.withheld:
            seen = tuple(field for field in seen if not is_withheld(field[0].lower()))
        return replace(told, raw=b"", wire=wired(told.status, seen), closes=False)

    def _pass(self, cut: Cut) -> None:
        pieces = [piece for piece in cut.pieces if piece]
        # A body that ends here ends with its last piece, so that both go out in one frame.
        last = pieces.pop() if cut.end is not None and pieces else b""
        for piece in pieces:
            self._taker.body(piece, (piece,))
        if cut.end is not None:
            self._taker.ended((last,), b"", last, self._trailers)


class ClientPool:
    """One client's connections of HTTP/1.1: what it has asked for before, it asks over the same connection."""

    def __init__(self, upstreams: Upstreams, destinations: Destinations) -> None:
        self._upstreams = upstreams
        self._destinations = destinations
        self._own: dict[Way, Upstream] = {}
        self._closed = False

    def ready(self, way: Way, *, repeatable: bool) -> Carrier | None:
        upstream = self.lend(way, repeatable=repeatable)
        return None if upstream is None else Http1Carrier(upstream, self)

    async def carrier(self, way: Way) -> Carrier:
        return Http1Carrier(await self.connect(way), self)

    def lend(self, way: Way, *, repeatable: bool) -> Upstream | None:
        """A connection that is there, if there is one that is good enough."""
        upstream = self._own.pop(way, None)
        if upstream is not None and not upstream.gone:
            return upstream
        return self._upstreams.waiting(way, repeatable=repeatable)

    async def connect(self, way: Way) -> Upstream:
        """A new one. Raises Problem."""
        return await self._upstreams.connect(way, self._destinations)

    def returned(self, upstream: Upstream) -> None:
        """An exchange is through with it."""
        if not upstream.give_back():
            return
        if self._closed:
            # The client has left while this one was made.
            self._upstreams.keep(upstream)
            return
        if (other := self._own.get(upstream.way)) is not None:
            self._upstreams.keep(other)
        self._own[upstream.way] = upstream

    def close(self) -> None:
        """The client has left."""
        self._closed = True
        for upstream in self._own.values():
            self._upstreams.keep(upstream)
        self._own.clear()


def length_of(status: int, method: str, frame: BodyFraming) -> int | None:
    """How long a response's body is; None where only its end will tell."""
    if method == "HEAD" or status in (204, 304):
        return 0
    return None if frame.chunked else frame.length


def body_of(frame: BodyFraming) -> Body:
    """How a response's body is read that has one, and of which not all is there yet."""
    if frame.chunked:
        return ChunkedBody(padded=True)
    return SizedBody(frame.length) if frame.length else UntilClosed()


def _by_connection(head: ResponseHead) -> bool:
    """Whether the upstream wants its client's name once for a connection."""
    named = zip(head.names, head.fields, strict=True)
    return any(name == "www-authenticate" and by_connection(value) for name, (_, value) in named)
