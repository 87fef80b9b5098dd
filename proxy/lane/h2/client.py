"""One client's HTTP/2 connection in a tunnel, and its streams, each of which is an exchange."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import ngh2

from calls.model import Headers, Outcome
from proxy.lane.admission import LaneRequest, TunnelTarget
from proxy.lane.connection_base import DISCARD_BYTES, LINGER_SECONDS, ClientConnection, LaneContext
from proxy.lane.exchange import DownstreamHead, LaneExchange
from proxy.lane.h2.heads import admitted_h2_request, h2_response_fields, h2_trailers, text_fields
from proxy.lane.h2.routes import Http2ClientSource
from proxy.lane.h2.wire import HEAD_BYTES, Flow, Wire
from proxy.lane.heads import Fields
from proxy.lane.replay_answer import exchange_for
from proxy.lane.tls import Tls
from proxy.lane.upstream import UpstreamAddress
from proxy.lane.upstream_http1 import ClientPool
from proxy.wire.config import Origin
from proxy.wire.problem import Problem

MAX_STREAMS: Final = 256
"""Maximum number of open streams of a client. nginx allows 128, Go 250."""


class H2Downstream(Flow):
    """One stream of a client."""

    version = "HTTP/2"

    def __init__(self, client: "Http2Client", number: int) -> None:
        super().__init__(number)
        self.engine = client.engine
        self.is_full = False
        self.exchange: LaneExchange | None = None
        self.cancel_code = int(ngh2.ErrorCode.CANCEL)
        """The error code with which the client reset the stream."""

        self._has_ended = False
        self.lingers_since: float | None = None
        """When its exchange ended before the end of the request."""

        self._client = client
        self._discarded = 0
        self._queued_bytes = -1
        self._stuck_since = 0.0
        self._is_dropped = False

    def set_peer_full(self, *, is_full: bool) -> None:
        self.is_full = is_full
        if self.exchange is not None:
            self.exchange.set_client_full(is_full=is_full)

    def make_head(self, status: int, reason: str, headers: Headers, *, is_http10: bool = False) -> DownstreamHead:  # noqa: ARG002 - HTTP/2 has no such form
        return DownstreamHead(status, reason, self.version, headers, h2_fields=h2_response_fields(status, headers))

    def send_interim(self, head: DownstreamHead) -> None:
        self._client.send_interim(self, head.h2_fields)

    def send(self, head: DownstreamHead | None, data: bytes, *, is_last: bool = False, trailers: Headers = ()) -> None:
        self._has_ended = is_last
        ends = is_last and not (data or trailers)
        if head is not None:
            self._client.respond(self, head.h2_fields, ends_stream=ends)
        if is_last and not (ends and head is not None):
            self._client.end(self, data, h2_trailers(trailers))
        elif data:
            self._client.send(self, data)

    @property
    def is_served(self) -> bool:
        """Whether request and response are complete, although the exchange may still wait for the recorder."""
        return self._has_ended and self.exchange is not None and not self.exchange.is_receiving

    def send_pieces(
        self, head: DownstreamHead | None, pieces: Sequence[bytes], *, is_last: bool = False, trailers: Headers = ()
    ) -> None:
        pieces = [piece for piece in pieces if piece] or [b""]
        for piece in pieces[:-1]:
            self.send(head, piece)
            head = None
        self.send(head, pieces[-1], is_last=is_last, trailers=trailers)

    def set_paused(self, *, is_paused: bool) -> None:
        self._client.set_paused(self, is_paused=is_paused)

    def finish_exchange(self, *, closes: bool, lingers: bool) -> None:
        self.exchange = None
        if closes and lingers:
            self.reset(ngh2.ErrorCode.NO_ERROR)
        elif lingers:
            self.linger()

    def cut(self, code: int, *, is_reset: bool) -> None:  # noqa: ARG002 - the stream is reset in any case
        self.exchange = None
        self._client.break_off(self, code)

    def reset(self, code: int) -> None:
        """Reset the stream with an error code."""
        self.exchange = None
        self._client.reset(self, code)

    def linger(self) -> None:
        """Keep reading the rest of the request for a while, and discard it."""
        self.lingers_since = time.monotonic()

    def is_stuck(self, queued_bytes: int, now: float) -> bool:
        """Return whether the client has not read any of the queued response for too long, although the exchange is over."""
        if queued_bytes != self._queued_bytes:
            self._queued_bytes, self._stuck_since = queued_bytes, now
        return now - self._stuck_since > self.engine.config.limits.idle

    def drop(self, now: float) -> bool:
        """Reset the stream of such a client. Return False if it was reset before, and the client did not read that either."""
        if self._is_dropped:
            return False
        self._is_dropped, self._stuck_since = True, now
        self.reset(ngh2.ErrorCode.CANCEL)
        return True

    def discard(self, size: int) -> None:
        """Discard more of a request."""
        self._discarded += size
        if self._discarded > DISCARD_BYTES:
            self.reset(ngh2.ErrorCode.NO_ERROR)

    def call_shared[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self._client.lane.call_shared(self._client, work, *what)

    def call_soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self._client.lane.call_soon(self._client, work, *what)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._client.start_task(work)

    def handle_fault(self, fault: BaseException) -> None:
        self._client.handle_fault(fault)


class Http2Client(Wire, ClientConnection):
    """One client's HTTP/2 connection. `since` is the time at which its last stream was closed."""

    def __init__(self, lane: LaneContext, owner: str, tunnel: TunnelTarget, origin: Origin) -> None:
        ClientConnection.__init__(self, lane, owner)
        Wire.__init__(
            self,
            ngh2.Role.SERVER,
            {ngh2.Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS, ngh2.Setting.MAX_HEADER_LIST_SIZE: HEAD_BYTES},
            lane.call_last,
            lane.receive_queue,
        )
        self._tunnel = tunnel
        self._origin = origin
        self._pool = ClientPool(lane.upstreams, lane.engine.destinations)
        self._private_owner = object()
        """The owner of upstream connections that are not shared with other clients."""

        self._shared_source = Http2ClientSource(lane.routes, self._pool, None)
        self._private_source = Http2ClientSource(lane.routes, self._pool, self._private_owner)
        self._bound_addresses: set[UpstreamAddress] = set()
        """The upstreams to which the client sent authentication of the connection (NTLM, Negotiate)."""

        self._flows: dict[int, H2Downstream]
        self._handlers |= {
            ngh2.RequestReceived: self._on_request,
            ngh2.DataReceived: self._on_data,
            ngh2.TrailersReceived: self._on_trailers,
            ngh2.StreamReset: self._on_reset,
            ngh2.StreamClosed: self._on_close,
        }

    # Events of the session

    def _on_request(self, event: ngh2.RequestReceived) -> None:
        self._flows[event.stream_id] = stream = H2Downstream(self, event.stream_id)
        try:
            request = admitted_h2_request(
                event.headers, self.engine, self.owner, self._tunnel, self._origin, is_bodiless=event.end_stream
            )
        except Problem as problem:
            self._refuse(stream, problem, event)
            return
        stream.exchange = exchange = exchange_for(stream, request, self.owner, self._source_for(request))
        exchange.start()

    def _refuse(self, downstream: H2Downstream, problem: Problem, event: ngh2.RequestReceived) -> None:
        self.engine.config.counts[f"errors/{problem.code}"] += 1
        head = downstream.make_head(problem.status, problem.reason, problem.headers)
        downstream.send(head, b"" if dict(event.headers)[b":method"] == b"HEAD" else problem.body, is_last=True)
        if not event.end_stream:
            downstream.linger()

    def _source_for(self, request: LaneRequest) -> Http2ClientSource:
        if request.is_connection_bound:
            self._bound_addresses.add(request.address)
        return self._private_source if request.address in self._bound_addresses else self._shared_source

    def _on_data(self, event: ngh2.DataReceived) -> None:
        data = event.data
        if stream := self._flows.get(event.stream_id):
            if stream.exchange is not None and stream.exchange.is_accepting:
                self._take_data(stream.exchange, data, is_last=event.end_stream)
            else:
                stream.discard(len(data))
        self.acknowledge(event.stream_id, len(data))

    def _take_data(self, exchange: LaneExchange, data: bytes, *, is_last: bool) -> None:
        if not is_last:
            exchange.take_data(data, (data,))
        elif data and len(data) == exchange.request.length:
            exchange.take_whole(data)
        else:
            exchange.take_data(b"", (data,))
            if exchange.is_accepting:
                exchange.take_end(data, ())

    def _on_trailers(self, event: ngh2.TrailersReceived) -> None:
        stream = self._flows.get(event.stream_id)
        if stream is not None and stream.exchange is not None and stream.exchange.is_accepting:
            stream.exchange.take_end(b"", text_fields(event.headers))

    def _on_reset(self, event: ngh2.StreamReset) -> None:
        if stream := self._flows.get(event.stream_id):
            stream.cancel_code = event.error_code

    def _on_close(self, event: ngh2.StreamClosed) -> None:
        stream = self._flows.get(event.stream_id)
        if stream is None:
            return
        if not stream.is_served:
            self._abandon(stream, "client_closed", "the client left before the exchange was over")
        self.forget(stream)
        self.since = time.monotonic()

    # For its exchanges

    def respond(self, downstream: H2Downstream, fields: Fields, *, ends_stream: bool) -> None:
        """Send the head of a response."""
        self.attempt(lambda: self._session.send_response(downstream.number, fields, end_stream=ends_stream))

    def send_interim(self, downstream: H2Downstream, fields: Fields) -> None:
        """Send an interim response."""
        self.attempt(lambda: self._session.send_informational_response(downstream.number, fields))

    # For the lane

    def check_timeouts(self, now: float) -> None:
        for stream in list(self._flows.values()):
            if stream.exchange is not None:
                stream.exchange.check_timeouts(now)
            elif stream.lingers_since is not None and stream.lingers_since + LINGER_SECONDS < now:
                stream.reset(ngh2.ErrorCode.NO_ERROR)
            elif stream.is_stuck(self.queued_bytes(stream), now) and not stream.drop(now):
                self.stop()
                return
        if self._flows or now - self.since < self.engine.config.limits.idle:
            return
        if self.is_retiring:
            self.stop()
        else:
            self.since = now
            self.retire()

    def leave(self) -> None:
        self.retire()

    def handle_fault(self, fault: BaseException, event: ngh2.Event | None = None) -> None:  # noqa: ARG002 - the whole connection is one client's
        ClientConnection.handle_fault(self, fault)

    def give_up(self, outcome: Outcome, why: str) -> None:
        if not self.is_gone:
            self.abort()
            self._leave(outcome, why)

    def begin(self, transport: asyncio.Transport | Tls, data: bytes = b"") -> None:
        self.lane.add_client(self)
        super().begin(transport, data)

    def handle_loss(self) -> None:
        self._leave("client_closed", "the client left before the exchange was over")

    def _leave(self, outcome: Outcome, why: str) -> None:
        streams, self._flows = list(self._flows.values()), {}
        for stream in streams:
            self._abandon(stream, outcome, why)
        self._pool.close()
        self.lane.routes.retire_private(self._private_owner)
        self.lane.remove_client(self)

    def _abandon(self, downstream: H2Downstream, outcome: Outcome, why: str) -> None:
        exchange, downstream.exchange = downstream.exchange, None
        if exchange is not None:
            exchange.abandon(outcome, why)
