"""Answer a WebSocket from a recording: what is sent to its client, and when."""

import time
from collections import deque
from collections.abc import Callable, Iterator

from wsproto.frame_protocol import ParseFailed

from calls.model import ChunkKind
from proxy.mitm.protocol.websocket import Upgrade
from proxy.wire.recording_guard import Side
from replay.answer import Dialogue, Frame

PARTING = 5_000_000_000
"""How long a client may take to answer our goodbye, in nanoseconds."""


class WebsocketReplay:
    """The server's side of one WebSocket. Bytes go in and out; nobody waits here."""

    def __init__(
        self,
        upgrade: Upgrade,
        dialogue: Dialogue,
        told: Callable[[Side, bytes, ChunkKind], None],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`told` hears every message, of both sides."""
        self._told = told
        self._upgrade = upgrade
        self._dialogue = dialogue
        self._now = now
        self._due: deque[tuple[int, Frame]] = deque()
        self._pongs: list[bytes] = []
        self._said_goodbye = self._heard_goodbye = False
        self.over = False
        """Whether the connection is to be closed."""

        self._add(dialogue.begin())

    def hear(self, data: bytes) -> None:
        """The client has sent this."""
        try:
            for kind, message in self._upgrade.listener.feed(data):
                if kind == "ping":
                    self._pongs.append(self._upgrade.pong(message))
                    continue
                self._told("request", message, kind)
                if self._said_goodbye:
                    self.over |= kind == "close"
                else:
                    self._heard_goodbye |= kind == "close"
                    self._add(self._dialogue.hear(kind, message))
        except ParseFailed as fault:
            self._dialogue.left()
            self._due.clear()
            self._heard_goodbye = True
            self._add([Frame(kind="close", data=fault.code.to_bytes(2))])

    @property
    def parted(self) -> bool:
        """Whether one side said goodbye."""
        return self._said_goodbye or self._heard_goodbye

    def due(self) -> Iterator[bytes]:
        """What is to be sent now."""
        yield from self._pongs
        self._pongs.clear()
        while self._due and not self.over and self._due[0][0] <= self._now():
            _, frame = self._due.popleft()
            match frame.kind:
                case "cut":
                    self.over = True
                case "wait":
                    self._add(self._dialogue.stayed())
                case "close":
                    yield self._sent(frame, "close")
                    self._said_goodbye = True
                    self.over = self._heard_goodbye
                    self._due = deque([(self._now() + PARTING, Frame(kind="cut"))])
                case kind:
                    yield self._sent(frame, kind)

    def next_in(self) -> float | None:
        """Seconds until something is due."""
        return max(0, self._due[0][0] - self._now()) / 1e9 if self._due else None

    def _sent(self, frame: Frame, kind: ChunkKind) -> bytes:
        self._told("response", frame.data, kind)
        return self._upgrade.sent(frame)

    def _add(self, frames: list[Frame]) -> None:
        """Each comes after what was said before it; whoever speaks has not stayed silent."""
        if frames and self._due and self._due[-1][1].kind == "wait":
            self._due.pop()
        at = max(self._now(), self._due[-1][0] if self._due else 0)
        for frame in frames:
            at += frame.after
            self._due.append((at, frame))
