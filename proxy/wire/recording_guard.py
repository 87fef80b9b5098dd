"""Report one exchange to the recorder, with its own clock, and keep the recorder's errors away from the wire.

An error of the recorder becomes a gap or a refusal, depending on the recorder's policy. It never breaks an exchange, and
never leaves one unrecorded without a gap.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from calls.model import ChunkKind, Headers, Outcome
from proxy.recording.request_start import HeadMemo

type Side = Literal["request", "response"]

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES: Final = 16 << 10
"""Maximum bytes of one exchange that wait to be reported."""

MAX_PENDING_PIECES: Final = 64
"""Maximum number of pieces of one exchange that wait. Recording tens of thousands at once would delay other connections."""


class RecordingInterface(Protocol):
    """The part of `proxy.recording.exchange_recording.ExchangeRecording` that an engine uses."""

    id: str

    @property
    def loss_reason(self) -> str: ...

    def record_data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None: ...
    def record_response_pieces(self, pieces: Sequence[tuple[int, bytes]]) -> None: ...
    def record_request(self, body: bytes, at: int) -> None: ...
    def record_response(
        self,
        at: int,
        status: int,
        reason: str,
        http_version: str,
        headers: Headers,
        body: bytes,
        *,
        completes_exchange: bool,
    ) -> None: ...
    def record_response_head(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None: ...
    def record_end(self, side: Side, at: int, trailers: Headers = ()) -> None: ...
    def record_truncation(self, side: Side) -> None: ...
    def record_close(self, at: int, outcome: Outcome, error: str | None = None) -> None: ...
    @property
    def is_behind(self) -> bool: ...
    def is_recorded_now(self) -> bool: ...
    async def wait_until_recorded(self) -> bool: ...


class RecorderInterface(Protocol):
    """The part of `proxy.recording.recorder.Recorder` that an engine uses."""

    @property
    def on_failure(self) -> Literal["gap", "refuse"]: ...
    def begin(
        self,
        *,
        run: str,
        run_evidence: tuple[tuple[str, str], ...],
        step: int | None,
        actor: str | None,
        method: str,
        url: str,
        http_version: str,
        headers: Headers,
        buffers_request: bool = False,
        memo: HeadMemo | None = None,
    ) -> RecordingInterface: ...
    def record_gap(self, run: str, reason: str, exchange: str | None = None) -> None: ...
    def call_soon(self, work: Callable[[], None]) -> None: ...


type _Piece = tuple[Side, bytes, int, ChunkKind]
"""Side, data, arrival time and kind."""

type _ResponseHead = tuple[int, int, str, str, Headers]
"""Arrival time, status, reason, version and headers."""


class RecordingGuard:
    """Reports the events of one exchange, each once. Without a recorder it does nothing.

    Heads of responses and pieces of bodies are reported a moment later, together with those of other exchanges: alone, with
    cold caches, a piece costs several times as much, and the first event of a stream would wait for its head to be redacted.
    They are always reported before later events of the exchange. The busier a worker is, the later it reports them
    (`Spool.call_soon`), and the more of one stream at a time.
    """

    __slots__ = (
        "_must_refuse",
        "_pending_bytes",
        "_pieces",
        "_recorder",
        "_recording",
        "_run",
        "_started_at",
        "is_open",
        "must_wait",
        "was_behind",
    )

    def __init__(
        self, recorder: RecorderInterface | None, run: str, begin: Callable[[RecorderInterface], RecordingInterface]
    ) -> None:
        self._started_at = time.monotonic_ns()
        self._recorder = recorder
        self._recording: RecordingInterface | None = None
        self._run = run
        self._pieces: list[_Piece | _ResponseHead] = []
        self._pending_bytes = 0
        self._must_refuse = False
        self.is_open = True
        self.was_behind = False
        """Whether the recorder was behind when pieces were last reported: then also a sender of small ones should wait."""

        self.must_wait = recorder is not None
        """Whether the exchange must wait for the recorder before it may continue."""

        if recorder is not None:
            try:
                self._recording = begin(recorder)
            except Exception as fault:  # noqa: BLE001 - the guard: a faulty recorder must not break the exchange
                self._fail(fault)

    @property
    def is_behind(self) -> bool:
        """Whether the recorder has so much to write that a fast sender should wait, so that others need not."""
        return self._recording is not None and self._recording.is_behind

    def record_data(self, side: Side, data: bytes, kind: ChunkKind = "data") -> None:
        """Report a piece of a body, or a WebSocket message."""
        if (recorder := self._recorder) is None:
            return
        pieces = self._pieces
        pieces.append((side, data, time.monotonic_ns() - self._started_at, kind))
        self._pending_bytes += len(data)
        if self._pending_bytes > MAX_PENDING_BYTES or len(pieces) >= MAX_PENDING_PIECES:
            self._flush_pieces()
        elif len(pieces) == 1:
            recorder.call_soon(self._flush_pieces)

    def _flushed_recording(self) -> RecordingInterface | None:
        """Return the recording, after reporting the pieces that wait."""
        if self._pieces:
            self._flush_pieces()
        return self._recording

    def _flush_pieces(self) -> None:
        """Report the head and the pieces that wait."""
        pieces, self._pieces, self._pending_bytes = self._pieces, [], 0
        if (recording := self._recording) is None:
            return
        response_pieces: list[tuple[int, bytes]] = []
        try:
            for piece in pieces:
                if len(piece) != 4:
                    recording.record_response_head(*piece)
                    continue
                side, data, at, kind = piece
                if side == "response" and kind == "data":
                    response_pieces.append((at, data))
                    continue
                if response_pieces:
                    recording.record_response_pieces(response_pieces)
                    response_pieces = []
                recording.record_data(side, data, at, kind)
            if response_pieces:
                recording.record_response_pieces(response_pieces)
            self.was_behind = recording.is_behind
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)

    def record_response_head(self, status: int, reason: str, http_version: str, headers: Headers) -> None:
        """Report the head of the response."""
        if (recorder := self._recorder) is None:
            return
        self._pieces.append((time.monotonic_ns() - self._started_at, status, reason, http_version, headers))
        if len(self._pieces) == 1:
            recorder.call_soon(self._flush_pieces)

    def record_end(self, side: Side, trailers: Headers = ()) -> None:
        """Report the end of one side's message."""
        if (recording := self._flushed_recording()) is not None:
            self._try_record(recording.record_end, side, self._elapsed_ns(), trailers)

    def record_request(self, body: bytes) -> None:
        """Report a complete request body."""
        # Inlined, as in `record_response` and `is_recorded_now`: nearly every call is reported by these methods alone.
        if self._pieces:
            self._flush_pieces()
        if (recording := self._recording) is not None:
            try:
                recording.record_request(body, time.monotonic_ns() - self._started_at)
            except Exception as fault:  # noqa: BLE001 - the guard, as above
                self._fail(fault)

    def record_response(
        self, status: int, reason: str, http_version: str, headers: Headers, body: bytes, *, completes_exchange: bool
    ) -> None:
        """Report a complete response and, with `completes_exchange`, the end of the exchange."""
        self.is_open = self.is_open and not completes_exchange
        if self._pieces:
            self._flush_pieces()
        if (recording := self._recording) is not None:
            at = time.monotonic_ns() - self._started_at
            try:
                recording.record_response(
                    at, status, reason, http_version, headers, body, completes_exchange=completes_exchange
                )
            except Exception as fault:  # noqa: BLE001 - the guard, as above
                self._fail(fault)

    def record_close(self, outcome: Outcome, error: str | None = None) -> None:
        """Report the end of the exchange. Later calls are ignored."""
        if not self.is_open:
            return
        self.is_open = False
        if (recording := self._flushed_recording()) is not None:
            self._try_record(recording.record_close, self._elapsed_ns(), outcome, error)

    def record_truncation(self, side: Side) -> None:
        """Report that the later bytes of one side are left out."""
        if (recording := self._flushed_recording()) is not None:
            self._try_record(recording.record_truncation, side)

    def record_gap(self, reason: str) -> None:
        """Report that part of this exchange cannot be recorded."""
        recording, recorder = self._flushed_recording(), self._recorder
        if recorder is not None:
            self._try_record(recorder.record_gap, self._run, reason, recording.id if recording else None)

    def is_recorded_now(self) -> bool:
        """Return whether everything reported so far is recorded. If False, use `wait_until_recorded`."""
        if self._pieces:
            self._flush_pieces()
        try:
            return (recording := self._recording) is not None and recording.is_recorded_now()
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)
            return False

    async def wait_until_recorded(self) -> bool:
        """Wait until everything reported so far is recorded. Return False if it is not and the policy is to refuse."""
        recording = self._flushed_recording()
        if recording is None:
            return not self._must_refuse
        try:
            return await recording.wait_until_recorded()
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)
            return not self._must_refuse

    @property
    def refusal(self) -> str:
        """The error message for a client whose request could not be recorded."""
        why = (self._recording and self._recording.loss_reason) or "the recorder failed"
        return f"the request could not be recorded, and on_record_failure is refuse: it was not forwarded ({why})"

    def _elapsed_ns(self) -> int:
        return time.monotonic_ns() - self._started_at

    def _try_record[**P](self, record: Callable[P, object], *what: P.args, **more: P.kwargs) -> None:
        try:
            record(*what, **more)
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        """Stop recording, note a gap, and, if the policy is to refuse, let nothing more of the exchange pass."""
        recorder, recording = self._recorder, self._recording
        self._recorder = self._recording = None
        assert recorder is not None
        logger.error("an exchange could not be recorded", exc_info=fault)
        self._must_refuse = recorder.on_failure == "refuse"
        try:
            recorder.record_gap(
                self._run, f"the recorder failed: {type(fault).__name__}", recording.id if recording else None
            )
        except Exception as worse:
            logger.error("the gap of that exchange could not be recorded either", exc_info=worse)
            self._must_refuse = True
        self.must_wait = self._must_refuse
