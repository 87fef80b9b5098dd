"""Connect to upstreams that may speak either version: the first handshake shows which.

Connections of HTTP/2 are for all clients at once. It knows no authentication by connection; where a client shows NTLM or
Negotiate all the same, it gets connections of its own.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from proxy.lane.h2.upstreams import Leg, SharedConnection
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.upstream import Upstreams, Way
from proxy.lane.upstream_http1 import Carrier, ClientPool, ReframedForHttp2
from proxy.wire.engine_state import EngineState
from proxy.wire.problem import Problem

KEPT: Final = 15.0
"""Seconds for which a connection waits without a stream. An upstream that closes it sooner says what it has not done."""

ASK_AGAIN: Final = 3600.0
"""Seconds after which upstreams that spoke only HTTP/1 are asked again what they speak: they may have learned more."""


class Key(NamedTuple):
    """Whose connection it is, and to whom."""

    way: Way
    owner: object | None
    """One client's; None for all."""


class RouteTable:
    """To upstreams that may speak either version."""

    def __init__(
        self,
        upstreams: Upstreams,
        engine: EngineState,
        at_last: Callable[[Callable[[], None]], None],
        receive_queue: ReceiveQueue,
    ) -> None:
        self._upstreams = upstreams
        self._at_last = at_last
        self._receive_queue = receive_queue
        self._engine = engine
        self._shared: dict[Key, list[SharedConnection]] = {}
        self._coming: dict[Key, asyncio.Future[Problem | None]] = {}
        self._forgot = time.monotonic()

    def ready(self, key: Key, lender: ClientPool, *, repeatable: bool) -> Carrier | None:
        """What is there already."""
        if not self._old(key.way):
            shared = next((shared for shared in self._shared.get(key, ()) if shared.roomy), None)
            return None if shared is None else Leg(shared)
        upstream = lender.lend(key.way, repeatable=repeatable)
        return None if upstream is None else ReframedForHttp2(upstream, lender)

    async def carrier(self, key: Key, lender: ClientPool) -> Carrier:
        """What carries one more request there. Raises Problem."""
        while not self._old(key.way):
            if (ready := self.ready(key, lender, repeatable=True)) is not None:
                return ready
            if (made := await self._make(key, lender)) is not None:
                return made
        return ReframedForHttp2(await lender.connect(key.way), lender)

    async def speaks(self, way: Way, lender: ClientPool) -> None:
        """Find out what an upstream speaks, where nobody knows, by connecting to it. Raises Problem."""
        if self._known(way) is None and (made := await self._make(Key(way, None), lender)) is not None:
            made.put_by()

    def _known(self, way: Way) -> bytes | None:
        return self._engine.alpn.get((way.name or "", way.port))

    def _old(self, way: Way) -> bool:
        return way.name is None or self._known(way) not in (None, b"h2")

    async def _make(self, key: Key, lender: ClientPool) -> Carrier | None:
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

    async def _connect(self, key: Key, lender: ClientPool) -> Carrier:
        way = key.way
        assert way.name is not None
        upstream = await self._upstreams.connect(way, self._engine.destinations, either=True)
        self._engine.remember_alpn(way.name, way.port, upstream.alpn.encode())
        if upstream.alpn != "h2":
            return ReframedForHttp2(upstream, lender)
        if upstream.gone:
            # Nobody would be told of it again.
            raise Problem(502, "connect_failed", f"{way.name} closed the connection as soon as it was made")
        shared = SharedConnection(self._at_last, self._receive_queue)
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
        now = time.monotonic()
        oldest = now - KEPT
        for key in list(self._shared):
            for shared in self._shared[key]:
                if shared.idle and shared.since < oldest:
                    shared.retire()
            self._shared[key] = left = [shared for shared in self._shared[key] if not shared.gone]
            if not left:
                del self._shared[key]
        if now - self._forgot > ASK_AGAIN:
            self._forgot = now
            self._engine.forget_old()

    def close(self) -> None:
        """Let go of all."""
        for every in self._shared.values():
            for shared in every:
                shared.abort()
        self._shared.clear()


class EitherSource:
    """For a client of HTTP/2: of all such, or, with an `owner`, of one that wants nobody else on its connections."""

    def __init__(self, ways: RouteTable, lender: ClientPool, owner: object | None) -> None:
        self._ways = ways
        self._lender = lender
        self._owner = owner

    def ready(self, way: Way, *, repeatable: bool) -> Carrier | None:
        return self._ways.ready(Key(way, self._owner), self._lender, repeatable=repeatable)

    async def carrier(self, way: Way) -> Carrier:
        return await self._ways.carrier(Key(way, self._owner), self._lender)
