"""Process the input of HTTP/2 connections in slices of a few milliseconds, so that a flood by one client delays no other.

One read of a socket brings up to 256 KiB, which can be 26,000 frames or 256 request heads: seconds of work. A connection
processes the start of what it has read at once, as long as `FIRST_SLICE` lasts. What is left over waits here, while nothing
more is read from that connection, and is processed in turn with that of others: `SLICE` in each turn of the event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

FIRST_SLICE: Final = 0.002
"""Seconds for which a connection processes input as soon as it is read."""

SLICE: Final = 0.004
"""Seconds in each turn of the event loop for what is left over, of all connections together."""

FRAMES: Final = 64
"""Maximum number of frames that are processed before the clock is checked. A header block always ends such a group."""

GROUP_BYTES: Final = 64 << 10

_PREFACE: Final = 24
_HEAD: Final = 9
_HEADERS: Final = 1
_CONTINUATION: Final = 9


class FrameGroups:
    """Where to interrupt the input of one connection (RFC 9113 4.1). `preface`: whether it begins with a client's preface."""

    def __init__(self, *, preface: bool) -> None:
        self._left = _PREFACE if preface else 0
        """Remaining bytes of the current frame."""

        self._head = b""
        """The first bytes of a frame while its frame header is incomplete."""

        self._ends_group = False
        """Whether the current frame is the last of its group."""

    def end_of_group(self, data: bytes, start: int) -> int:
        """Return the end of the group of frames that begins at `start`, or the end of the data if the group is incomplete."""
        at, frames, limit = start, 0, min(len(data), start + GROUP_BYTES)
        while at < limit:
            if self._left:
                step = min(self._left, limit - at)
                self._left -= step
                at += step
            else:
                at = self._read_head(data, at)
                frames += not self._head
            if not (self._left or self._head) and (self._ends_group or frames >= FRAMES):
                self._ends_group = False
                break
        return at

    def _read_head(self, data: bytes, at: int) -> int:
        part = data[at : at + _HEAD - len(self._head)]
        self._head += part
        if len(self._head) == _HEAD:
            self._left = int.from_bytes(self._head[:3])
            self._ends_group = self._head[3] in (_HEADERS, _CONTINUATION)
            self._head = b""
        return at + len(part)


class QueuedConnection(Protocol):
    """A connection that has input left over."""

    def process_input(self, deadline: float) -> bool:
        """Process some of it, until the deadline at most. Return whether more is left."""


class ReceiveQueue:
    """The connections that have input left over, in the order of their turns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._waiting: deque[QueuedConnection] = deque()
        self._is_planned = False

    def add(self, connection: QueuedConnection) -> None:
        """Queue a connection whose input is left over. Call this once until `process_input` returns False."""
        self._waiting.append(connection)
        self._plan()

    def _plan(self) -> None:
        if self._waiting and not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._process)

    def _process(self) -> None:
        self._is_planned = False
        deadline = self.clock() + SLICE
        try:
            for _ in range(len(self._waiting)):
                connection = self._waiting.popleft()
                if connection.process_input(deadline):
                    self._waiting.append(connection)
                if self.clock() >= deadline:
                    break
        finally:
            # Also after an internal error: the other connections wait for their turn.
            self._plan()
