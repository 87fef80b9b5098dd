"""Connections of HTTP/2 to upstreams, which all clients share, and the way to an upstream that may speak either version.

HTTP/2 knows no authentication by connection; where a client shows NTLM or Negotiate all the same, it gets connections of
its own. What an upstream speaks is found out once, in the handshake, and forgotten when it speaks otherwise.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import ngh2

from calls.model import Headers
from proxy.lane.h2carriers import BROKEN, Carrier, OverHttp1, Taker
from proxy.lane.h2heads import Asking, as_fields, as_text, from_http2
from proxy.lane.h2wire import Flow, Wire
from proxy.lane.upstream import Lender, Upstreams, Way
from proxy.mitm.engine import Engine
from proxy.mitm.problem import Problem

logger = logging.getLogger(__name__)

KEPT: Final = 15.0
"""Seconds for which a connection waits without a stream. An upstream that closes it sooner says what it has not done."""

_REFUSED: Final = int(ngh2.ErrorCode.REFUSED_STREAM)
_MALFORMED: Final = int(ngh2.ErrorCode.PROTOCOL_ERROR)


class Key(NamedTuple):
    """Whose connection it is, and to whom."""

    way: Way
    owner: object | None
    """One client's; None for all."""


class Shared(Wire):
    """One connection."""

    def __init__(self, at_last: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(ngh2.Role.CLIENT, {ngh2.Setting.ENABLE_PUSH: 0}, at_last)
        self.used = 0
        self.since = time.monotonic()
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
        return not self.retiring and len(self._flows) < self._most

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._flows

    def open(self, leg: "Leg", asking: Asking, *, bare: bool) -> bool:
        """Begin with a request, if that may still be."""
        try:
            leg.number = self._session.send_request(asking.fields, end_stream=bare)
        except (ngh2.ConnectionClosingError, ngh2.ConnectionStateError, ngh2.NoAvailableStreamIDError):
            self.retiring = True
            return False
        self._flows[leg.number] = leg
        self.used += 1
        return True

    def lost(self) -> None:
        legs, self._flows = list(self._flows.values()), {}
        for leg in legs:
            leg.broken(BROKEN)

    def broken(self, fault: BaseException, event: ngh2.Event | None = None) -> None:
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

    def __init__(self, shared: Shared) -> None:
        super().__init__(0)
        self.code: int | None = None
        """With which the upstream has reset it."""

        self._shared = shared
        self._taker: Taker | None = None
        self._asked = self._answered = self._heard = False
        self._fresh = shared.used == 0

    def ask(self, taker: Taker, asking: Asking, whole: bytes | None, trailers: Headers) -> None:
        self._taker = taker
        if not self._shared.open(self, asking, bare=whole == b"" and not trailers):
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
        self._shared.end(self, data, as_fields(trailers))

    def hold(self, *, full: bool) -> None:
        self._shared.hold(self, full=full)

    def drop(self, code: int) -> None:
        self._taker = None
        self._shared.hold(self, full=False)
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
        self._heard = True
        if self._taker is not None:
            self._taker.interim(int(dict(event.headers)[b":status"]), event.headers[1:])

    def response(self, event: ngh2.ResponseReceived) -> None:
        """Its head has come."""
        self._heard, self._answered = True, event.end_stream
        if self._taker is not None:
            self._taker.response(from_http2(event.headers), last=event.end_stream)

    def body(self, event: ngh2.DataReceived) -> None:
        """A piece of it has come."""
        self._answered = event.end_stream
        if self._taker is None:
            return
        if event.data:
            self._taker.body(event.data, last=event.end_stream)
        elif event.end_stream:
            self._taker.ended(())

    def trailed(self, event: ngh2.TrailersReceived) -> None:
        """Its trailers have come."""
        self._answered = True
        if self._taker is not None:
            self._taker.ended(as_text(event.headers))

    def closed(self, event: ngh2.StreamClosed) -> None:
        """The stream is closed, by both sides or by one."""
        if self._answered and self._asked:
            return
        if self.code is None and event.error_code == _MALFORMED and not self._heard and self._taker is not None:
            self._taker.malformed("it is no sound HTTP/2 message")
        else:
            self.broken(event.error_code)

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed for this request."""
        taker = self._taker
        self.drop(BROKEN)
        if taker is not None:
            taker.failed(fault)

    def broken(self, code: int) -> None:
        """Nothing more comes."""
        if self._taker is not None:
            refused = code == _REFUSED and not self._heard
            self._taker.broken(code, refused=refused, unheard=not (self._heard or self._fresh))


class Ways:
    """To upstreams that may speak either version."""

    def __init__(self, upstreams: Upstreams, engine: Engine, at_last: Callable[[Callable[[], None]], None]) -> None:
        self._upstreams = upstreams
        self._at_last = at_last
        self._engine = engine
        self._shared: dict[Key, list[Shared]] = {}
        self._coming: dict[Key, asyncio.Future[Problem | None]] = {}

    def ready(self, key: Key, lender: Lender, *, repeatable: bool) -> Carrier | None:
        """What is there already."""
        if not self._old(key.way):
            shared = next((shared for shared in self._shared.get(key, ()) if shared.roomy), None)
            return None if shared is None else Leg(shared)
        upstream = lender.lend(key.way, repeatable=repeatable)
        return None if upstream is None else OverHttp1(upstream, lender)

    async def carrier(self, key: Key, lender: Lender) -> Carrier:
        """What carries one more request there. Raises Problem."""
        while not self._old(key.way):
            if (ready := self.ready(key, lender, repeatable=True)) is not None:
                return ready
            if (made := await self._make(key, lender)) is not None:
                return made
        return OverHttp1(await lender.connect(key.way), lender)

    async def speaks(self, way: Way, lender: Lender) -> None:
        """Find out what an upstream speaks, where nobody knows, by connecting to it. Raises Problem."""
        key = Key(way, None)
        if self._known(way) is None and (made := await self._make(key, lender)) is not None:
            made.put_by()

    def _known(self, way: Way) -> bytes | None:
        return self._engine.alpn.get((way.name or "", way.port))

    def _old(self, way: Way) -> bool:
        return way.name is None or self._known(way) not in (None, b"h2")

    async def _make(self, key: Key, lender: Lender) -> Carrier | None:
        """A new connection; None where somebody else was about to make one, which is there now."""
        if (coming := self._coming.get(key)) is not None:
            if (problem := await asyncio.shield(coming)) is not None:
                raise problem
            return None
        self._coming[key] = coming = asyncio.get_running_loop().create_future()
        problem = Problem(502, "connect_failed", "the connection was given up")
        try:
            made = await self._connect(key, lender)
        except Problem as fault:
            problem = fault
            raise
        else:
            problem = None
            return made
        finally:
            del self._coming[key]
            coming.set_result(problem)

    async def _connect(self, key: Key, lender: Lender) -> Carrier:
        way = key.way
        assert way.name is not None
        upstream = await self._upstreams.connect(way, self._engine.destinations, either=True)
        self._engine.remember_alpn(way.name, way.port, upstream.alpn.encode())
        if upstream.alpn != "h2":
            return OverHttp1(upstream, lender)
        shared = Shared(self._at_last)
        shared.begin(*upstream.given_away())
        self._shared.setdefault(key, []).append(shared)
        return Leg(shared)

    def let_go(self, owner: object) -> None:
        """Let go of the connections that are one client's alone: it has left."""
        for key, every in self._shared.items():
            if key.owner is owner:
                for shared in every:
                    shared.retire()

    def sweep(self) -> None:
        """Let go of those that have waited too long, and forget those that are gone."""
        oldest = time.monotonic() - KEPT
        for key in list(self._shared):
            for shared in self._shared[key]:
                if shared.idle and shared.since < oldest:
                    shared.retire()
            self._shared[key] = left = [shared for shared in self._shared[key] if not shared.gone]
            if not left:
                del self._shared[key]

    def close(self) -> None:
        """Let go of all."""
        for every in self._shared.values():
            for shared in every:
                shared.abort()
        self._shared.clear()
