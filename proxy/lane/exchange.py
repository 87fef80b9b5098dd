"""The base of exchanges: one request, which a subclass relays or replays, and its recording."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from calls.model import Headers, Outcome
from proxy.lane.admission import LaneRequest
from proxy.lane.heads import Fields
from proxy.wire.engine_state import EngineState
from proxy.wire.problem import Problem
from proxy.wire.recording_guard import RecorderInterface, RecordingGuard, RecordingInterface

PACED_BYTES: Final = 4 << 10
"""Size of a piece from which on the sender may be asked to wait for the recorder."""
TURN_BYTES: Final = 64 << 10
"""Size of a piece after which other connections get their turn."""

INTERNAL_ERROR: Final = 2
"""The HTTP/2 error code (RFC 9113 7) for a stream where an HTTP/1.1 connection would be closed."""


# Not frozen: one is created for each call, and creating a frozen one takes five times as long.
class DownstreamHead(msgspec.Struct):
    """The head of a response. Treat it as immutable."""

    status: int
    reason: str
    version: str
    fields: Headers
    """The fields as they are recorded."""

    raw: bytes = b""
    """The bytes for an HTTP/1.1 client."""

    h2_fields: Fields = ()
    """The fields for an HTTP/2 client."""

    closes_connection: bool = False
    """Whether an HTTP/1.1 connection closes after this response."""

    ends_by_close: bool = False
    """Whether nothing but the close of an HTTP/1 connection tells where the body ends."""

    def with_field(self, name: str, value: str) -> "DownstreamHead":
        """Return a copy with one more field for the client, which is not recorded."""
        raw = self.raw and self.raw[:-2] + f"{name}: {value}\r\n\r\n".encode()
        return replace(self, raw=raw, h2_fields=[*self.h2_fields, (name.lower().encode(), value.encode())])


class Downstream(Protocol):
    """The client side of one exchange: an HTTP/1.1 connection or one HTTP/2 stream."""

    engine: EngineState
    version: str
    exchange: "LaneExchange | None"
    """The current exchange."""

    is_full: bool
    """Whether the client's send buffer is full."""

    cancel_code: int
    """The HTTP/2 error code with which the client left."""

    def make_head(self, status: int, reason: str, headers: Headers, *, is_http10: bool = False) -> DownstreamHead:
        """Return the head of a response by Playhead, in HTTP/1.0 with `is_http10` if the protocol allows it."""

    def send_interim(self, head: DownstreamHead) -> None:
        """Send an interim response."""

    def send(self, head: DownstreamHead | None, data: bytes, *, is_last: bool = False, trailers: Headers = ()) -> None:
        """Send a piece of a response, after its head if that is given. `is_last` completes the response.

        In HTTP/1.1, data includes the framing.
        """

    def send_pieces(
        self, head: DownstreamHead | None, pieces: Sequence[bytes], *, is_last: bool = False, trailers: Headers = ()
    ) -> None:
        """Send several pieces, each in a frame of its own if the protocol has frames."""

    def set_paused(self, *, is_paused: bool) -> None:
        """Pause or resume reading the request."""

    def finish_exchange(self, *, closes: bool, lingers: bool) -> None:
        """End the exchange. `closes`: take no further requests. `lingers`: the rest of the request is still being received, so
        keep reading for a while, so that the client sees the response."""

    def cut(self, code: int, *, is_reset: bool) -> None:
        """Break off after the data sent so far, so that the client notices that the response is incomplete.

        `is_reset`: not by the end of a TLS connection without close_notify, which many clients take for an orderly end.
        """

    def handle_fault(self, fault: BaseException) -> None:
        """End the connection after an internal error."""

    def call_shared[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        """Call this now, or, if much is happening, after all bytes that have arrived by now were read."""

    def call_soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        """Call this a moment later, together with the calls of other exchanges, so that the spool is written only once."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this as a task. An error in it ends the connection."""


def _no_recorder(_: RecorderInterface) -> RecordingInterface:
    raise AssertionError("there is no recorder")


_NO_RECORDING = RecordingGuard(None, "", _no_recorder)


class LaneExchange:
    """One request and its response."""

    # Attributes have no class-level defaults: CPython's access to them would be three times slower.

    def __init__(self, downstream: Downstream, request: LaneRequest) -> None:
        self.downstream = downstream
        self.request = request
        self.engine = downstream.engine
        self.recording = _NO_RECORDING
        self._buffers_request = False
        self.is_receiving = True
        """Whether the request is still incomplete."""

        self.is_over = False
        self.is_refused = False
        """Whether it was answered with a problem, which may still have to be recorded before it is sent."""

        self.is_catching_up = False
        """Whether reading is paused until other connections have had their turn."""

    # Events of the client

    @property
    def is_accepting(self) -> bool:
        """Whether the exchange accepts more of its request."""
        return self.is_receiving and not self.is_refused

    def start(self) -> None:
        """Start, when the head of the request has arrived."""
        raise NotImplementedError

    def take_data(self, forwardable: bytes, pieces: Sequence[bytes]) -> None:
        """Take more of the request: the bytes to forward now, and its payload. The last piece is forwarded by `take_end`."""
        raise NotImplementedError

    def take_end(self, end: bytes, trailers: Headers) -> None:
        """Take the end of the request: its last bytes and its trailers."""
        raise NotImplementedError

    def take_whole(self, body: bytes) -> None:
        """Take a complete request body of known length."""
        self.take_data(b"", (body,))
        if self.is_accepting:
            self.take_end(body, ())

    def set_client_full(self, *, is_full: bool) -> None:
        """Handle that the client's send buffer is full, or has room again."""

    def check_timeouts(self, now: float) -> None:
        """End the exchange if a time limit is exceeded."""

    def abandon(self, outcome: Outcome, why: str) -> None:
        """End the exchange because the client is gone or the connection failed."""
        if not self.is_over:
            self.is_over = True
            self.recording.record_close(outcome, why)
            self.release(keep=False)

    def release(self, *, keep: bool) -> None:
        """Release the upstream connection and timers. `keep`: the upstream connection may be reused."""

    # For subclasses

    def begin_recording(self, *, buffers_request: bool = False) -> None:
        """Start to record, unless the mode is passthrough. `buffers_request`: see `Recorder.begin`."""
        request = self.request
        if self.engine.config.mode_for(request.target.host, request.named_run) == "passthrough":
            return

        self._buffers_request = buffers_request
        self.recording = RecordingGuard(self.engine.recorder, request.identity.run, self._begin_with)

    def _begin_with(self, recorder: RecorderInterface) -> RecordingInterface:
        request = self.request
        identity = request.identity
        return recorder.begin(
            run=identity.run,
            run_evidence=identity.evidence,
            step=identity.step,
            actor=identity.actor,
            method=request.method,
            url=request.url,
            http_version=self.downstream.version,
            headers=request.headers,
            buffers_request=self._buffers_request,
            memo=request.memo,
        )

    def when_recorded(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Call `then` once everything reported is recorded, or `otherwise` if it cannot be and the policy is to refuse."""
        if self.recording.must_wait:
            self.downstream.call_shared(self._continue_when_recorded, then, otherwise)
        else:
            then()

    def _continue_when_recorded(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        if self.is_over:
            return
        if not self.recording.must_wait or self.recording.is_recorded_now():
            then()
        else:
            self.send_while_waiting()
            self.downstream.start_task(self._continue_later(then, otherwise))

    async def _continue_later(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        is_recorded = await self.recording.wait_until_recorded()
        if not self.is_over:
            then() if is_recorded else otherwise()

    def send_while_waiting(self) -> None:
        """Send what does not have to wait for the recorder, because recording takes longer."""

    def pace(self, size: int) -> None:
        """Pause a fast sender after a large piece, so that other connections get their turn.

        Their records are written after this one's, so if the recorder falls behind, wait until it has caught up. And libuv
        would read 32 times from one connection before the next one.
        """
        if self.is_catching_up or (size < PACED_BYTES and not self.recording.was_behind):
            return
        if self.recording.is_behind:
            self._start_catching_up()
            self.downstream.start_task(self._wait_for_recorder())
        elif size >= TURN_BYTES:
            self._start_catching_up()
            self.downstream.call_soon(self._stop_catching_up)

    def _start_catching_up(self) -> None:
        self.is_catching_up = True
        self.regulate()

    async def _wait_for_recorder(self) -> None:
        await self.recording.wait_until_recorded()
        self._stop_catching_up()

    def _stop_catching_up(self) -> None:
        self.is_catching_up = False
        if not self.is_over:
            self.regulate()

    def regulate(self) -> None:
        """Pause or resume reading on both sides, by `is_catching_up` and the state of their buffers."""

    def refuse(self, problem: Problem, outcome: Outcome = "refused") -> None:
        """Answer with a problem, and record it as a refusal by Playhead."""
        self.is_refused = True
        self.engine.config.counts[f"errors/{problem.code}"] += 1
        headers, body = problem.headers, problem.body if self.request.method != "HEAD" else b""
        if self.is_receiving and self.downstream.version == "HTTP/1.1":
            headers = (*headers, ("Connection", "close"))
        head = self.downstream.make_head(problem.status, problem.reason, headers)
        self.recording.record_response_head(head.status, head.reason, head.version, headers)
        self.recording.record_data("response", body)
        self.recording.record_end("response")
        self.recording.record_close(outcome, problem.detail)

        def send_refusal() -> None:
            self.downstream.send(head, body, is_last=True)
            self.finish(keep=False)

        self.when_recorded(send_refusal, send_refusal)

    def finish(self, *, keep: bool, closes: bool = False) -> None:
        """End the exchange after its response was sent. The rest of the request, if any, is discarded."""
        self.is_over = True
        if self.recording.is_open:
            self.recording.record_close("refused", "the exchange was broken off")
        self.release(keep=keep and not self.is_receiving)
        self.downstream.finish_exchange(closes=closes or self.request.closes_connection, lingers=self.is_receiving)

    def cut(self, code: int = INTERNAL_ERROR, *, is_reset: bool = False) -> None:
        """Break off the exchange on both sides. `is_reset`: see `Downstream.cut`."""
        self.is_over = True
        self.recording.record_close("refused", "the exchange was broken off")
        self.release(keep=False)
        self.downstream.cut(code, is_reset=is_reset)
