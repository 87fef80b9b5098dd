"""Connect to upstreams that support either version of HTTP: the first handshake shows which.

HTTP/2 connections are shared by all clients. HTTP/2 does not define authentication of connections; a client that uses NTLM
or Negotiate anyway gets connections of its own.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.upstream import UpstreamAddress, Upstreams
from proxy.lane.upstream_http1 import Carrier, ClientPool, ReframedForHttp2
from proxy.wire.engine_state import EngineState
from proxy.wire.problem import Problem

if TYPE_CHECKING:
    # Imported by the first connection: most workers have none over HTTP/2, and each starts without libnghttp2.
    from proxy.lane.h2.upstreams import SharedConnection

KEEP_SECONDS: Final = 15.0
"""Seconds to keep a connection without streams. An upstream that closes it sooner says which requests it has not processed."""

RECHECK_SECONDS: Final = 3600.0
"""Seconds after which the version of upstreams that supported only HTTP/1 is checked again."""


class RouteKey(NamedTuple):
    """The upstream of a connection, and its owner."""

    address: UpstreamAddress
    owner: object | None
    """The one client that may use it; None if it is shared."""


class RouteTable:
    """Connections to upstreams that support either version."""

    def __init__(
        self,
        upstreams: Upstreams,
        engine: EngineState,
        call_last: Callable[[Callable[[], None]], None],
        receive_queue: ReceiveQueue,
    ) -> None:
        self._upstreams = upstreams
        self._call_last = call_last
        self._receive_queue = receive_queue
        self._engine = engine
        self._shared: dict[RouteKey, list[SharedConnection]] = {}
        self._pending: dict[RouteKey, asyncio.Future[Problem | None]] = {}
        self._rechecked_at = time.monotonic()

    def ready_carrier(self, key: RouteKey, pool: ClientPool, *, is_repeatable: bool) -> Carrier | None:
        """Return a carrier on an existing connection, if there is one."""
        if not self._is_http1(key.address):
            shared = next((shared for shared in self._shared.get(key, ()) if shared.has_room), None)
            return None if shared is None else shared.new_carrier()
        upstream = pool.lend(key.address, is_repeatable=is_repeatable)
        return None if upstream is None else ReframedForHttp2(upstream, pool)

    async def connect_carrier(self, key: RouteKey, pool: ClientPool) -> Carrier:
        """Return a carrier for one more request, connecting if necessary. Raises Problem."""
        while not self._is_http1(key.address):
            if (ready := self.ready_carrier(key, pool, is_repeatable=True)) is not None:
                return ready
            if (carrier := await self._connect_once(key, pool)) is not None:
                return carrier
        return ReframedForHttp2(await pool.connect(key.address), pool)

    async def learn_protocol(self, address: UpstreamAddress, pool: ClientPool) -> None:
        """Learn which protocol an upstream supports by connecting to it, unless it is known. Raises Problem."""
        if (
            self._known_protocol(address) is None
            and (carrier := await self._connect_once(RouteKey(address, None), pool)) is not None
        ):
            carrier.release()

    def _known_protocol(self, address: UpstreamAddress) -> bytes | None:
        return self._engine.alpn.get((address.server_name or "", address.port))

    def _is_http1(self, address: UpstreamAddress) -> bool:
        return address.server_name is None or self._known_protocol(address) not in (None, b"h2")

    async def _connect_once(self, key: RouteKey, pool: ClientPool) -> Carrier | None:
        """Make a connection. Return None if another task was already making one, which is ready now."""
        if (coming := self._pending.get(key)) is not None:
            if (problem := await asyncio.shield(coming)) is not None:
                raise problem
            return None
        self._pending[key] = coming = asyncio.get_running_loop().create_future()
        problem = Problem(502, "connect_failed", "the attempt to connect was cancelled")
        try:
            carrier = await self._connect(key, pool)
        except Problem as fault:
            problem = fault
            raise
        else:
            problem = None
            return carrier
        finally:
            del self._pending[key]
            coming.set_result(problem)

    async def _connect(self, key: RouteKey, pool: ClientPool) -> Carrier:
        address = key.address
        assert address.server_name is not None
        upstream = await self._upstreams.connect(address, self._engine.destinations, offers_http2=True)
        self._engine.remember_alpn(address.server_name, address.port, upstream.alpn.encode())
        if upstream.alpn != "h2":
            return ReframedForHttp2(upstream, pool)
        if upstream.is_gone:
            # The end of the connection would not be reported again.
            raise Problem(502, "connect_failed", f"{address.server_name} closed the connection as soon as it was made")
        from proxy.lane.h2.upstreams import SharedConnection

        shared = SharedConnection(self._call_last, self._receive_queue)
        shared.begin(*upstream.detach_tls())
        self._shared.setdefault(key, []).append(shared)
        return shared.new_carrier()

    def retire_private(self, owner: object) -> None:
        """Retire the connections of one client, because it has left."""
        for key, connections in self._shared.items():
            if key.owner is owner:
                for shared in connections:
                    shared.retire()

    def sweep(self) -> None:
        """Retire connections that were idle for too long, and forget closed ones."""
        now = time.monotonic()
        oldest = now - KEEP_SECONDS
        for key in list(self._shared):
            for shared in self._shared[key]:
                if shared.is_idle and shared.idle_since < oldest:
                    shared.retire()
            self._shared[key] = live_connections = [shared for shared in self._shared[key] if not shared.is_gone]
            if not live_connections:
                del self._shared[key]
        if now - self._rechecked_at > RECHECK_SECONDS:
            self._rechecked_at = now
            self._engine.forget_http1_upstreams()

    def close(self) -> None:
        """Close all connections."""
        for connections in self._shared.values():
            for shared in connections:
                shared.abort()
        self._shared.clear()


class Http2ClientSource:
    """Provides the carriers of an HTTP/2 client. With an `owner`, it does not share connections with other clients."""

    def __init__(self, routes: RouteTable, pool: ClientPool, owner: object | None) -> None:
        self._routes = routes
        self._pool = pool
        self._owner = owner

    def ready_carrier(self, address: UpstreamAddress, *, is_repeatable: bool) -> Carrier | None:
        return self._routes.ready_carrier(RouteKey(address, self._owner), self._pool, is_repeatable=is_repeatable)

    async def connect_carrier(self, address: UpstreamAddress) -> Carrier:
        return await self._routes.connect_carrier(RouteKey(address, self._owner), self._pool)
