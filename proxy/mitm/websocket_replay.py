"""Answer a WebSocket from a recording: decide what is sent to its client, and when."""

import time
from collections import deque
from collections.abc import Callable, Iterator

from wsproto.frame_protocol import ParseFailed

from calls.model import ChunkKind
from proxy.mitm.protocol.websocket import WebsocketUpgrade
from proxy.wire.recording_guard import Side
from replay.answer import Dialogue, Frame

GOODBYE_PATIENCE = 5_000_000_000
"""Nanoseconds to wait for the client's close frame after sending one."""


class WebsocketReplay:
    """The server side of one WebSocket, without I/O."""

    def __init__(
        self,
        upgrade: WebsocketUpgrade,
        dialogue: Dialogue,
        record: Callable[[Side, bytes, ChunkKind], None],
    ) -> None:
        """Call `record` with every message of both sides."""
        self._record = record
        self._upgrade = upgrade
        self._dialogue = dialogue
        self._planned_frames: deque[tuple[int, Frame]] = deque()
        self._pongs: list[bytes] = []
        self._has_sent_goodbye = self._has_received_goodbye = False
        self.is_over = False
        """Whether the connection should be closed."""

        self._plan_frames(dialogue.begin())

    def receive_data(self, data: bytes) -> None:
        """Process data from the client."""
        try:
            for kind, message in self._upgrade.frame_reader.feed(data):
                if kind == "ping":
                    self._pongs.append(self._upgrade.encode_pong(message))
                    continue
                self._record("request", message, kind)
                if self._has_sent_goodbye:
                    self.is_over |= kind == "close"
                else:
                    self._has_received_goodbye |= kind == "close"
                    self._plan_frames(self._dialogue.receive(kind, message))
        except ParseFailed as fault:
            self._dialogue.note_client_left()
            self._planned_frames.clear()
            self._has_received_goodbye = True
            self._plan_frames([Frame(kind="close", data=fault.code.to_bytes(2))])

    @property
    def has_goodbye(self) -> bool:
        """Whether one side sent a close frame."""
        return self._has_sent_goodbye or self._has_received_goodbye

    def take_due_data(self) -> Iterator[bytes]:
        """Yield the data to send now."""
        yield from self._pongs
        self._pongs.clear()
        while self._planned_frames and not self.is_over and self._planned_frames[0][0] <= time.monotonic_ns():
            _, frame = self._planned_frames.popleft()
            match frame.kind:
                case "cut":
                    self.is_over = True
                case "wait":
                    self._plan_frames(self._dialogue.answer_waiting_client())
                case "close":
                    yield self._encode_frame(frame, "close")
                    self._has_sent_goodbye = True
                    self.is_over = self._has_received_goodbye
                    self._planned_frames = deque([(time.monotonic_ns() + GOODBYE_PATIENCE, Frame(kind="cut"))])
                case kind:
                    yield self._encode_frame(frame, kind)

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next frame is due, or None if there is none."""
        return max(0, self._planned_frames[0][0] - time.monotonic_ns()) / 1e9 if self._planned_frames else None

    def _encode_frame(self, frame: Frame, kind: ChunkKind) -> bytes:
        self._record("response", frame.data, kind)
        return self._upgrade.encode_frame(frame)

    def _plan_frames(self, frames: list[Frame]) -> None:
        """Schedule frames after those that are already planned. New frames replace a pending wait."""
        if frames and self._planned_frames and self._planned_frames[-1][1].kind == "wait":
            self._planned_frames.pop()
        at = max(time.monotonic_ns(), self._planned_frames[-1][0] if self._planned_frames else 0)
        for frame in frames:
            at += frame.after
            self._planned_frames.append((at, frame))
