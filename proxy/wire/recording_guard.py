"""Report one exchange to the recorder, with a clock of its own, and keep its errors away from the wire.

This is the guard between the wire and the recorder: whatever goes wrong behind it ends in a gap or in a refusal, by the
recorder's policy, and never in a broken or a silent exchange.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Literal, Protocol

from calls.model import ChunkKind, Headers, Outcome

type Side = Literal["request", "response"]

logger = logging.getLogger(__name__)

MUCH: Final = 16 << 10
"""Bytes of one exchange that wait to be told, at most."""

MANY: Final = 64
"""Pieces of one exchange that wait, at most: to record tens of thousands at once would delay everybody."""


class RecordingInterface(Protocol):
    """`proxy.recording.exchange_recording.Recording`, as far as an engine needs it."""

    id: str

    @property
    def missed(self) -> str: ...

    def data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None: ...
    def asked(self, body: bytes, at: int) -> None: ...
    def answered(
        self, at: int, status: int, reason: str, http_version: str, headers: Headers, body: bytes, *, over: bool
    ) -> None: ...
    def response(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None: ...
    def ended(self, side: Side, at: int, trailers: Headers = ()) -> None: ...
    def truncate(self, side: Side) -> None: ...
    def closed(self, at: int, outcome: Outcome, error: str | None = None) -> None: ...
    @property
    def behind(self) -> bool: ...
    def kept_now(self) -> bool: ...
    async def kept(self) -> bool: ...


class RecorderInterface(Protocol):
    """`proxy.recording.recorder.Recorder`, as far as an engine needs it."""

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
        gathers: bool = False,
    ) -> RecordingInterface: ...
    def gap(self, run: str, reason: str, exchange: str | None = None) -> None: ...
    def soon(self, work: Callable[[], None]) -> None: ...


type _Piece = tuple[Side, bytes, int, ChunkKind]
"""With the time at which it came."""


class RecordingGuard:
    """What happens to one exchange, told once each. With no recording it tells nobody.

    Pieces are told in a moment, together with those of others: one that comes alone finds every cache cold, and would cost
    several times as much. Whatever else happens to the exchange, its pieces are told first.
    """

    __slots__ = ("_began", "_lost", "_pieces", "_recorder", "_recording", "_run", "_size", "guarded", "open")

    def __init__(
        self, recorder: RecorderInterface | None, run: str, begin: Callable[[RecorderInterface], RecordingInterface]
    ) -> None:
        self._began = time.monotonic_ns()
        self._recorder = recorder
        self._recording: RecordingInterface | None = None
        self._run = run
        self._pieces: list[_Piece] = []
        self._size = 0
        self._lost = False
        self.open = True
        self.guarded = recorder is not None
        """Whether there is anything to wait for before the exchange may go on."""

        if recorder is not None:
            try:
                self._recording = begin(recorder)
            except Exception as fault:  # noqa: BLE001 - the guard: a recorder that is broken must not break what it records
                self._fail(fault)

    @property
    def behind(self) -> bool:
        """Whether who sends much should wait for the recorder: else all others would."""
        return self._recording is not None and self._recording.behind

    def data(self, side: Side, data: bytes, kind: ChunkKind = "data") -> None:
        """A piece has arrived."""
        if (recorder := self._recorder) is None:
            return
        pieces = self._pieces
        pieces.append((side, data, time.monotonic_ns() - self._began, kind))
        self._size += len(data)
        if self._size > MUCH or len(pieces) >= MANY:
            self._tell_pieces()
        elif len(pieces) == 1:
            recorder.soon(self._tell_pieces)

    def _told_so_far(self) -> RecordingInterface | None:
        """Whom to tell what happens now: all before it is told."""
        if self._pieces:
            self._tell_pieces()
        return self._recording

    def _tell_pieces(self) -> None:
        """Tell those that wait."""
        pieces, self._pieces, self._size = self._pieces, [], 0
        for side, data, at, kind in pieces:
            if (recording := self._recording) is None:
                return
            try:
                recording.data(side, data, at, kind)
            except Exception as fault:  # noqa: BLE001 - the guard, as above
                self._fail(fault)

    def response(self, status: int, reason: str, http_version: str, headers: Headers) -> None:
        """The response's head has arrived."""
        if (recording := self._told_so_far()) is not None:
            self._told(recording.response, self._now(), status, reason, http_version, headers)

    def ended(self, side: Side, trailers: Headers = ()) -> None:
        """One message is whole."""
        if (recording := self._told_so_far()) is not None:
            self._told(recording.ended, side, self._now(), trailers)

    def asked(self, body: bytes) -> None:
        """The request has arrived, all of it."""
        if (recording := self._told_so_far()) is not None:
            # Not by way of `_told` either: nearly every call is told by this and by `answered` alone.
            try:
                recording.asked(body, time.monotonic_ns() - self._began)
            except Exception as fault:  # noqa: BLE001 - the guard, as above
                self._fail(fault)

    def answered(
        self, status: int, reason: str, http_version: str, headers: Headers, body: bytes, *, over: bool
    ) -> None:
        """The response has arrived, all of it; `over`: and the exchange is completed with it."""
        self.open = self.open and not over
        if (recording := self._told_so_far()) is not None:
            at = time.monotonic_ns() - self._began
            try:
                recording.answered(at, status, reason, http_version, headers, body, over=over)
            except Exception as fault:  # noqa: BLE001 - the guard, as above
                self._fail(fault)

    def closed(self, outcome: Outcome, error: str | None = None) -> None:
        """The exchange is over. What comes after the first is ignored."""
        if not self.open:
            return
        self.open = False
        if (recording := self._told_so_far()) is not None:
            self._told(recording.closed, self._now(), outcome, error)

    def truncated(self, side: Side) -> None:
        """Bytes of one side pass from here on that are not told."""
        if (recording := self._told_so_far()) is not None:
            self._told(recording.truncate, side)

    def gap(self, reason: str) -> None:
        """Something of this exchange passes that cannot be recorded."""
        recording, recorder = self._told_so_far(), self._recorder
        if recorder is not None:
            self._told(recorder.gap, self._run, reason, recording.id if recording else None)

    def kept_now(self) -> bool:
        """Whether all told so far is kept already, so that nobody has to wait. False: ask `kept`."""
        recording = self._told_so_far()
        try:
            return recording is not None and recording.kept_now()
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)
            return False

    async def kept(self) -> bool:
        """Whether the exchange may go on: all told so far is kept, or the policy does not ask for it."""
        recording = self._told_so_far()
        if recording is None:
            return not self._lost
        try:
            return await recording.kept()
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)
            return not self._lost

    @property
    def refusal(self) -> str:
        """What a client is told whose request is not kept, where the policy asks for it."""
        why = (self._recording and self._recording.missed) or "the recorder failed"
        return f"the request could not be recorded, and on_record_failure is refuse: it went nowhere ({why})"

    def _now(self) -> int:
        return time.monotonic_ns() - self._began

    def _told[**P](self, tell: Callable[P, object], *what: P.args, **more: P.kwargs) -> None:
        try:
            tell(*what, **more)
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        """Stop telling; by policy say so in the run, or let nothing more of the exchange pass."""
        recorder, recording = self._recorder, self._recording
        self._recorder = self._recording = None
        assert recorder is not None
        logger.error("an exchange could not be recorded", exc_info=fault)
        self._lost = recorder.on_failure == "refuse"
        try:
            recorder.gap(self._run, f"the recorder failed: {type(fault).__name__}", recording.id if recording else None)
        except Exception as worse:
            logger.error("and the gap could not be noted", exc_info=worse)
            self._lost = True
        self.guarded = self._lost
