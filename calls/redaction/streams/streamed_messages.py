"""Redact one side of a WebSocket: hold messages back while they may form a secret together."""

import re
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from calls.model import ChunkKind
from calls.redaction.declared import Unreadable
from calls.redaction.scanning.scanner import Table
from calls.redaction.streams.channels import Slice
from calls.redaction.streams.message_bounds import LONGEST
from calls.redaction.streams.streamed_body import apply_slices
from calls.redaction.streams.streamed_text import WAITING, MessageSearch

_ENDS: Final = re.compile(
    rb'"(?:response\.(?:done|completed|failed|incomplete)|turnComplete|generationComplete|interrupted)"'
)
"""Messages with which an answer is over (OpenAI, Google): the next may be a long time off."""


class RedactedMessage(NamedTuple):
    """A message as it can be recorded."""

    at: int
    kind: ChunkKind
    data: bytes
    redactions: int
    fault: Unreadable | None
    """Why nothing of it can be."""

    size: int
    """What crossed the wire."""


class StreamedMessages:
    """The messages of one side; what is found does not depend on when they came."""

    def __init__(self, table: Table, key: bytes, redact: Callable[[bytes], tuple[bytes, int]]) -> None:
        """`redact` searches one message as the bytes that it is, and may raise Unreadable."""
        self._search = MessageSearch(table, key)
        self._redact = redact
        self._waiting: deque[tuple[int, ChunkKind, bytes]] = deque()
        self._start = self._end = 0
        """Where what waits begins in the bytes of all messages, and where it ends."""

        self._slices: list[Slice] = []

    def feed(self, data: bytes, at: int, kind: ChunkKind) -> list[RedactedMessage]:
        """Take a message, and give those that can be recorded."""
        base, channels = self._end, self._search.channels
        self._waiting.append((at, kind, data))
        self._end += len(data)
        if len(data) <= LONGEST:
            self._read(data, base)
        if channels.is_pending:
            over = kind == "close" or _ENDS.search(data) is not None
            channels.settle(None if over else self._end - WAITING)
        return self._release()

    @property
    def waiting(self) -> int:
        """Bytes of messages that are held back."""
        return self._end - self._start

    def finish(self) -> list[RedactedMessage]:
        """Give the rest."""
        self._search.channels.settle()
        return self._release()

    def _read(self, data: bytes, base: int) -> None:
        size = len(data)
        if data.lstrip()[:1] in (b"{", b"[") and (
            self._search.is_known(data, 0, size, base) == size or self._search.read(data, (0, size), base)
        ):
            return
        if data.isascii() or _is_text(data):
            self._search.take_lines("", data, [(0, size)], base)

    def _release(self) -> list[RedactedMessage]:
        channels = self._search.channels
        self._slices += channels.slices
        channels.slices = []
        undecided_at = channels.undecided_at
        limit = self._end if undecided_at is None else undecided_at
        found: list[RedactedMessage] = []
        while self._waiting and self._start + len(self._waiting[0][2]) <= limit:
            found.append(self._redact_message(*self._waiting.popleft()))
        return found

    def _redact_message(self, at: int, kind: ChunkKind, data: bytes) -> RedactedMessage:
        start, end = self._start, self._start + len(data)
        mine = [one for one in self._slices if one.at < end]
        if mine:
            self._slices = [one for one in self._slices if one.at >= end]
        self._start = end
        begun = sum(one.begins for one in mine)
        try:
            new, count = self._redact(apply_slices(data, start, mine) if mine else data)
        except Unreadable as fault:
            return RedactedMessage(at, kind, b"", begun, fault, len(data))
        return RedactedMessage(at, kind, new, count + begun, None, len(data))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
