"""Relay and record a request and its response, whatever version of HTTP each side uses.

The request's head is recorded before any of it is forwarded. A short body is sent with it, a long one piece by piece.
Pieces of the response are forwarded as they come. Only the bytes that complete a message wait until all earlier ones are
recorded.

A request is sent a second time only if the upstream says that it has not processed it (RFC 9113 8.7), or if it is safe to
repeat and a reused connection broke before any response.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from calls.model import Headers, Outcome
from proxy.lane.admission import LaneRequest
from proxy.lane.exchange import INTERNAL_ERROR, PACED_BYTES, TURN_BYTES, Downstream, DownstreamHead, LaneExchange
from proxy.lane.upstream_http1 import Carrier, Source
from proxy.wire.problem import Problem
from replay.answer import source_header

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_TRIES: Final = 3


class RelayedExchange(LaneExchange):
    """One request on its way to an upstream and back."""

    def __init__(self, downstream: Downstream, request: LaneRequest, source: Source, *, live: bool = False) -> None:
        # Not by `super()`, whose look-up takes as long as the rest of this: there is no other base.
        LaneExchange.__init__(self, downstream, request)
        self._source = source
        self._is_marked_live = live
        """Whether the response is marked as live for the client."""

        self._carrier: Carrier | None = None
        self._tries = 0
        self._last_heard_at = 0.0
        """When the upstream was last known to have sent something."""

        self._is_upstream_full = False

        # The request

        self._is_streamed = False
        """Whether it is forwarded piece by piece."""

        self._is_repeatable = False
        """Whether it may be sent twice."""

        self._early: list[bytes] = []
        """The data to send once there is a carrier."""

        self._early_bytes = 0
        """Its size."""

        self._has_sent_data = False
        """Whether any piece was sent, so that the request cannot be sent again."""

        self._request_end: tuple[bytes, Headers] | None = None
        """The bytes that complete it, and its trailers; None until they may be sent."""

        self._is_request_sent = False
        """Whether all of it was sent."""

        # The response

        self._response_head: DownstreamHead | None = None
        """The head, once received."""

        self._unsent_head: DownstreamHead | None = None
        """The head while it is not sent."""

        self._response_rest = self._response_end = b""
        """The last bytes. `_response_end` completes the response and must wait until it is recorded; `_response_rest` need not."""

        self._trailers: Headers = ()
        self._is_response_whole = False
        """Whether all of it was received."""

        self._is_response_open = True
        """Whether part of it is still to be sent."""

    # The request

    def start(self) -> None:
        request = self.request
        self._is_streamed = request.has_body and (
            request.expects_continue
            or request.is_chunked
            or request.length > self.engine.config.limits.buffered_request
        )
        self._is_repeatable = request.method in SAFE_METHODS and not self._is_streamed
        if not self._try_begin():
            return
        if not request.has_body:
            self.take_whole(b"")
        elif self._is_streamed:
            self._forward()

    def resend(self, body: bytes, pieces: Iterable[bytes], trailers: Headers) -> None:
        """Relay a complete request."""
        self.is_receiving = False
        self._is_repeatable = self.request.method in SAFE_METHODS
        if not self._try_begin():
            return
        for piece in pieces:
            self.recording.record_data("request", piece)
        self.recording.record_end("request", trailers)
        self._request_end = body, trailers
        self._forward()

    def _try_begin(self) -> bool:
        self.begin_recording(buffers_request=not self._is_streamed)
        if problem := self.engine.refusal(self.request.target, self.request.captured):
            self.refuse(problem)
            return False
        return True

    def take_data(self, forwardable: bytes, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if piece:
                self.recording.record_data("request", piece)
        if not forwardable:
            return
        if self._has_sent_data and self._carrier is not None:
            self._carrier.send(forwardable)
            self.pace(len(forwardable))
        elif not self._has_sent_data:
            self._early.append(forwardable)
            self._early_bytes += len(forwardable)
            if self._is_streamed and self._early_bytes > TURN_BYTES:
                self.downstream.set_paused(is_paused=True)

    def take_end(self, end: bytes, trailers: Headers) -> None:
        self.is_receiving = False
        self.recording.record_end("request", trailers)
        if not self._is_streamed:
            self._request_end = end, trailers
            self._forward()
            return
        if self._is_response_whole:
            self.recording.record_close("completed")
        self.when_recorded(
            lambda: self._send_end(end, trailers), lambda: self._give_up("the request could not be recorded")
        )

    def take_whole(self, body: bytes) -> None:
        if self._is_streamed:
            super().take_whole(body)
            return
        self.is_receiving = False
        self.recording.record_request(body)
        self._request_end = body, ()
        self._forward()

    def _send_end(self, end: bytes, trailers: Headers) -> None:
        """Send the end of a streamed request, now that all of it is recorded."""
        self._request_end = end, trailers
        if self._has_sent_data and self._carrier is not None:
            self._is_request_sent = True
            self._carrier.send_end(end, trailers)
        self._finish_if_over()

    def _forward(self) -> None:
        """Send the request to an upstream once it is recorded."""
        self.when_recorded(self._connect, self._refuse_unrecorded)

    def _refuse_unrecorded(self) -> None:
        self.refuse(Problem(503, "not_recorded", self.recording.refusal))

    def _connect(self) -> None:
        self._tries += 1
        if carrier := self._source.ready_carrier(self.request.address, is_repeatable=self._is_repeatable):
            self._send(carrier)
        else:
            self.downstream.start_task(self._connect_later())

    async def _connect_later(self) -> None:
        try:
            carrier = await self._source.connect_carrier(self.request.address)
        except Problem as problem:
            if not self.is_over:
                timed_out: Outcome = "timed_out" if problem.status == 504 else "server_closed"
                self.refuse(problem, "refused" if problem.status == 403 else timed_out)
        else:
            self._send(carrier)

    def _send(self, carrier: Carrier) -> None:
        if self.is_over:
            carrier.release()
            return
        self._carrier = carrier
        self._last_heard_at = time.monotonic()
        if self._is_streamed:
            carrier.send_request(self, self.request, None, ())
            if self._carrier is carrier:
                self._catch_up(carrier)
        else:
            assert self._request_end is not None
            end, trailers = self._request_end
            self._is_request_sent = True
            carrier.send_request(self, self.request, b"".join([*self._early, end]) if self._early else end, trailers)
            if self._carrier is carrier and not (carrier.can_refuse or self._is_repeatable):
                self._early.clear()  # it is never sent again
                self._request_end = None
        if self.downstream.is_full and self._carrier is carrier:
            carrier.set_paused(is_paused=True)

    def _catch_up(self, carrier: Carrier) -> None:
        """Send the data that arrived before there was a carrier, and resume reading."""
        self._has_sent_data = True
        early, self._early = self._early, []
        for data in early:
            if self._carrier is carrier:
                carrier.send(data)
        if self._carrier is not carrier:
            return
        if self._request_end is not None:
            self._is_request_sent = True
            carrier.send_end(*self._request_end)
        # Its send buffer may be full already.
        self.set_upstream_full(is_full=self._is_upstream_full)

    # The response

    def handle_interim(self, head: DownstreamHead) -> None:
        self.downstream.send_interim(head)

    def handle_response(self, head: DownstreamHead, *, is_head_alone: bool) -> None:
        self.recording.record_response_head(head.status, head.reason, head.version, head.fields)
        self._response_head = self._unsent_head = self._live_head(head) if self._is_marked_live else head
        if is_head_alone:
            self.handle_data(b"", ())

    def _live_head(self, head: DownstreamHead) -> DownstreamHead:
        return head.with_field(*source_header("live", run=self.request.identity.run))

    def handle_data(self, forwardable: bytes, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if piece:
                self.recording.record_data("response", piece)
        head = self._unsent_head
        if head is not None:
            self._unsent_head = None
        elif not forwardable:
            return
        self.downstream.send(head, forwardable)
        if len(forwardable) >= PACED_BYTES or self.recording.was_behind:
            self.pace(len(forwardable))

    def handle_end(self, pieces: Sequence[bytes], before: bytes, end: bytes, trailers: Headers) -> None:
        for piece in pieces:
            if piece:
                self.recording.record_data("response", piece)
        self.recording.record_end("response", trailers)
        if not self.is_receiving:
            self.recording.record_close("completed")
        self._complete(before, end, trailers)

    def handle_whole_response(self, head: DownstreamHead, body: bytes) -> None:
        self.recording.record_response(
            head.status, head.reason, head.version, head.fields, body, completes_exchange=not self.is_receiving
        )
        self._response_head = self._unsent_head = self._live_head(head) if self._is_marked_live else head
        self._complete(b"", body, ())

    def _complete(self, before: bytes, end: bytes, trailers: Headers) -> None:
        """Send the end of the response once all of it is recorded."""
        self._is_response_whole = True
        self._response_rest, self._response_end, self._trailers = before, end, trailers
        self.when_recorded(self._send_rest, self._give_up_response)

    def send_while_waiting(self) -> None:
        # If nothing follows the head, the head completes the response, so it must wait.
        if self._response_rest or (self._unsent_head is not None and (self._response_end or self._trailers)):
            self.downstream.send(self._unsent_head, self._response_rest)
            self._unsent_head, self._response_rest = None, b""

    def _send_rest(self) -> None:
        self._is_response_open = False
        self.downstream.send(
            self._unsent_head, self._response_rest + self._response_end, is_last=True, trailers=self._trailers
        )
        self._finish_if_over()

    # Ends

    def _finish_if_over(self) -> None:
        """Finish if both messages are complete, or the upstream does not need the rest of the request (RFC 9113 8.1)."""
        if self._is_response_open:
            return
        carrier, closes = self._carrier, self._response_head is not None and self._response_head.closes_connection
        if self._is_request_sent:
            self.finish(keep=True, closes=closes)
        elif carrier is None or carrier.is_spent:
            self.recording.record_close("completed")
            self.finish(keep=False, closes=closes or self.is_receiving)

    def handle_disconnect(
        self, code: int, *, is_refused: bool = False, is_unanswered: bool = False, is_reset: bool = False
    ) -> None:
        if self.is_over or self.is_refused:
            return
        self._carrier = None
        if self._is_response_whole:
            self._finish_if_over()
        elif self._can_retry(is_refused=is_refused, is_unanswered=is_unanswered):
            self._is_request_sent = False
            self._connect()
        else:
            self._end_incomplete("the upstream broke off before its response was complete", code, is_reset=is_reset)

    def _end_incomplete(self, why: str, code: int, *, is_reset: bool) -> None:
        self.recording.record_close("server_closed", why)
        if self._unsent_head is not None:
            self.handle_data(b"", ())
        self.cut(code, is_reset=is_reset)

    def _can_retry(self, *, is_refused: bool, is_unanswered: bool) -> bool:
        untouched = not self._has_sent_data and self._response_head is None
        return untouched and ((is_refused and self._tries < MAX_TRIES) or (is_unanswered and self._is_repeatable))

    def handle_malformed(self, fault: str) -> None:
        self._carrier = None
        why = f"the upstream's response is malformed: {fault}"
        if self._response_head is not None:
            self._end_incomplete(why, INTERNAL_ERROR, is_reset=True)
        else:
            self.refuse(Problem(502, "upstream_malformed", why))

    def handle_fault(self, fault: BaseException) -> None:
        self.downstream.handle_fault(fault)

    def _give_up_response(self) -> None:
        self._give_up("the response could not be recorded")

    def _give_up(self, why: str) -> None:
        if not self.is_over:
            self.recording.record_close("refused", why)
            self.cut(is_reset=True)

    def check_timeouts(self, now: float) -> None:
        """End the exchange if the upstream has sent nothing for too long, even while the client still sends."""
        silence, carrier = self.engine.config.limits.silence, self._carrier
        if silence is None or carrier is None or self._is_response_whole:
            return
        if carrier.has_heard:
            carrier.has_heard, self._last_heard_at = False, now
        if self._last_heard_at + silence > now:
            return
        why = f"the upstream sent nothing for {silence:g} s"
        self.release(keep=False)
        if self._response_head is None:
            self.refuse(Problem(504, "upstream_silent", why), "timed_out")
        else:
            self.recording.record_close("timed_out", why)
            self.cut(is_reset=True)

    def set_client_full(self, *, is_full: bool) -> None:
        if self._carrier is not None:
            self._carrier.set_paused(is_paused=is_full or self.is_catching_up)

    def set_upstream_full(self, *, is_full: bool) -> None:
        self._is_upstream_full = is_full
        self.downstream.set_paused(is_paused=is_full or self.is_catching_up)

    def regulate(self) -> None:
        self.set_client_full(is_full=self.downstream.is_full)
        self.set_upstream_full(is_full=self._is_upstream_full)

    def release(self, *, keep: bool) -> None:
        carrier, self._carrier = self._carrier, None
        self.downstream.set_paused(is_paused=False)
        if carrier is None:
            return
        if keep and self._is_response_whole:
            carrier.finish()
        else:
            carrier.drop(self.downstream.cancel_code)
