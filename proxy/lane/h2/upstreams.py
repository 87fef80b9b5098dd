"""Connections of HTTP/2 to upstreams, and one request on them."""

import logging
import time
from collections.abc import Callable
from typing import Final

import ngh2

from calls.model import Headers, header
from proxy.lane.admission import LaneRequest
from proxy.lane.exchange import BROKEN
from proxy.lane.h2.heads import as_text, as_trailers, from_http2
from proxy.lane.h2.wire import Flow, Wire
from proxy.lane.heads import Fields
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.upstream_http1 import ResponseSink
from proxy.wire.http1_heads import is_length

logger = logging.getLogger(__name__)

SILENT: Final = 15.0
"""Seconds without a word on which something is under way, after which a connection may be dead: nobody else is put on it."""

_REFUSED: Final = int(ngh2.ErrorCode.REFUSED_STREAM)
_MALFORMED: Final = int(ngh2.ErrorCode.PROTOCOL_ERROR)


class SharedConnection(Wire):
    """One connection."""

    def __init__(self, at_last: Callable[[Callable[[], None]], None], receive_queue: ReceiveQueue) -> None:
        super().__init__(ngh2.Role.CLIENT, {ngh2.Setting.ENABLE_PUSH: 0}, at_last, receive_queue)
        self.used = 0
        self.since = self.heard = time.monotonic()
        self._most = 100
        self._flows: dict[int, Leg]
        self._hearing |= {
            ngh2.SettingsReceived: self._settled,
            ngh2.InformationalResponseReceived: self._announced,
            ngh2.ResponseReceived: self._answered,
            ngh2.DataReceived: self._went_on,
            ngh2.TrailersReceived: self._trailed,
            ngh2.StreamReset: self._reset,
            ngh2.StreamClosed: self._closed,
            ngh2.GoAwayReceived: self._leaves,
        }

    @property
    def roomy(self) -> bool:
        """Whether one more stream may be opened."""
        if self.retiring or len(self._flows) >= self._most:
            return False
        return self.idle or time.monotonic() - self.heard < SILENT

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._flows

    def open(self, leg: "Leg", fields: Fields, *, bare: bool) -> bool:
        """Begin with a request, if that may still be."""
        try:
            leg.number = self._session.send_request(fields, end_stream=bare)
        except (ngh2.ConnectionClosingError, ngh2.ConnectionStateError, ngh2.NoAvailableStreamIDError):
            self.retiring = True
            return False
        self._flows[leg.number] = leg
        self.used += 1
        return True

    def data_received(self, data: bytes) -> None:
        self.heard = time.monotonic()
        super().data_received(data)

    def lost(self) -> None:
        legs, self._flows = list(self._flows.values()), {}
        for leg in legs:
            leg.lost()

    def failed(self, fault: BaseException, event: ngh2.Event | None = None) -> None:
        leg = self._flows.get(getattr(event, "stream_id", 0))
        if leg is not None:
            leg.failed(fault)
            return
        logger.error("a connection to an upstream was given up: %s", type(fault).__name__, exc_info=fault)
        self.abort()
        self.lost()

    # Hearing

    def _settled(self, event: ngh2.SettingsReceived) -> None:
        self._most = event.settings.get(ngh2.Setting.MAX_CONCURRENT_STREAMS, self._most)

    def _announced(self, event: ngh2.InformationalResponseReceived) -> None:
        if leg := self._flows.get(event.stream_id):
            leg.interim(event)

    def _answered(self, event: ngh2.ResponseReceived) -> None:
        if leg := self._flows.get(event.stream_id):
            leg.response(event)

    def _went_on(self, event: ngh2.DataReceived) -> None:
        if leg := self._flows.get(event.stream_id):
            leg.body(event)
        self.taken(event.stream_id, len(event.data))

    def _trailed(self, event: ngh2.TrailersReceived) -> None:
        if leg := self._flows.get(event.stream_id):
            leg.trailed(event)

    def _reset(self, event: ngh2.StreamReset) -> None:
        if leg := self._flows.get(event.stream_id):
            leg.code = event.error_code

    def _closed(self, event: ngh2.StreamClosed) -> None:
        if leg := self._flows.get(event.stream_id):
            self.forget(leg)
            self.since = time.monotonic()
            leg.closed(event)

    def _leaves(self, _: ngh2.GoAwayReceived) -> None:
        # Streams above the last one that counts are closed as refused by libnghttp2 (RFC 9113 6.8).
        self.retiring = True


class Leg(Flow):
    """One request on such a connection."""

    may_refuse = True
    spent = False
    """A stream that its upstream has no more use for is closed by it."""

    def __init__(self, shared: SharedConnection) -> None:
        super().__init__(0)
        self._shared = shared
        self._fresh = shared.used == 0
        self._taker: ResponseSink | None = None
        self.heard = self._said = False
        """Whether a head has come."""

        self._asked = self._answered = False
        """Which side is through."""

        self._left: int | None = None
        """How much of the body is to come, where the head says so."""

        self._kept = b""
        """The piece that makes the body as long as that."""

        self.code: int | None = None
        """With which the upstream has reset it."""

    def ask(self, taker: ResponseSink, asked: LaneRequest, whole: bytes | None, trailers: Headers) -> None:
        self._taker = taker
        if not self._shared.open(self, asked.wire, bare=whole == b"" and not trailers):
            taker.broken(BROKEN, refused=True)
        elif whole is None:
            self._shared.push()
        elif whole or trailers:
            self.end(whole, trailers)
        else:
            self._asked = True
            self._shared.push()

    def send(self, data: bytes) -> None:
        self._shared.send(self, data)

    def end(self, data: bytes, trailers: Headers) -> None:
        self._asked = True
        self._shared.end(self, data, as_trailers(trailers))

    def hold(self, *, full: bool) -> None:
        self._shared.hold(self, full=full)

    def drop(self, code: int) -> None:
        self.done()  # with what it hears, not with the stream
        self._shared.reset(self, code)

    def done(self) -> None:
        self._taker = None
        self._shared.hold(self, full=False)

    def put_by(self) -> None:
        pass  # it has no stream yet

    def room(self, *, full: bool) -> None:
        if self._taker is not None:
            self._taker.full(full=full)

    # What the connection tells

    def interim(self, event: ngh2.InformationalResponseReceived) -> None:
        """A response announces another one."""
        self.heard = self._said = True
        if self._taker is not None:
            self._taker.interim(from_http2(event.headers))

    def response(self, event: ngh2.ResponseReceived) -> None:
        """Its head has come."""
        self.heard = self._said = True
        self._answered = event.end_stream
        if self._taker is None:
            return
        told = from_http2(event.headers)
        length = header(told.fields, "content-length")
        if length is not None and not is_length(length):
            taker = self._taker
            self.drop(_MALFORMED)
            taker.malformed("its Content-Length is not a plain number")
            return
        if event.end_stream:
            self._taker.whole(told, b"")
            return
        self._left = None if length is None else int(length)
        self._taker.response(told, alone=self._left != 0)

    def body(self, event: ngh2.DataReceived) -> None:
        """A piece of it has come."""
        data = event.data
        self.heard, self._answered = True, event.end_stream
        if self._taker is None:
            return
        if event.end_stream:
            self._taker.ended((data,), b"", self._kept + data, ())
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                # Whoever counts has all of it now, although the end is still to come.
                self._kept += data
                self._taker.body(b"", (data,))
                return
        self._taker.body(data, (data,))

    def trailed(self, event: ngh2.TrailersReceived) -> None:
        """Its trailers have come."""
        self.heard = self._answered = True
        if self._taker is not None:
            self._taker.ended((), b"", self._kept, as_text(event.headers))

    def closed(self, event: ngh2.StreamClosed) -> None:
        """The stream is closed, by both sides or by one."""
        if self._answered and self._asked:
            return
        taker = self._taker
        if self.code is None and event.error_code == _MALFORMED and taker is not None:
            # With what came of the body, whose length may be what is wrong.
            if self._kept:
                taker.body(self._kept, ())
            taker.malformed("it is no sound HTTP/2 message")
        else:
            self._break(event.error_code, refused=event.error_code == _REFUSED and not self._said)

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed for this request."""
        taker = self._taker
        self.drop(BROKEN)
        if taker is not None:
            taker.failed(fault)

    def lost(self) -> None:
        """The connection is gone."""
        self._break(BROKEN, unheard=not (self._said or self._fresh))

    def _break(self, code: int, *, refused: bool = False, unheard: bool = False) -> None:
        if self._taker is None:
            return
        if self._kept and not self._answered:
            self._taker.body(self._kept, ())
        self._taker.broken(code, refused=refused, unheard=unheard)
