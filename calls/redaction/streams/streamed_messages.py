"""Redact one side of a WebSocket: hold messages back while they may contain a secret in pieces."""

import re
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from calls.model import ChunkKind
from calls.redaction.declared import UnreadableBody
from calls.redaction.scanning.scanner import RuleTable
from calls.redaction.streams.channels import Slice
from calls.redaction.streams.message_bounds import MAX_MESSAGE
from calls.redaction.streams.message_search import MessageSearch
from calls.redaction.streams.streamed_body import apply_slices
from calls.redaction.streams.streamed_text import MAX_WAITING

_ANSWER_END: Final = re.compile(
    rb'"(?:response\.(?:done|completed|failed|incomplete)|turnComplete|generationComplete|interrupted)"'
)
"""Messages that end an answer (OpenAI, Google), after which the next one may come much later."""


class RedactedMessage(NamedTuple):
    """A message that can be recorded."""

    at: int
    kind: ChunkKind
    data: bytes
    redactions: int
    fault: UnreadableBody | None
    """Why the message cannot be recorded; None if it can."""

    size: int
    """The size on the wire."""


class StreamedMessages:
    """Redacts the messages of one side, with a result that does not depend on their times."""

    def __init__(self, table: RuleTable, key: bytes, redact: Callable[[bytes], tuple[bytes, int]]) -> None:
        """`redact` redacts one message as plain bytes, and may raise UnreadableBody."""
        self._search = MessageSearch(table, key)
        self._redact = redact
        self._waiting: deque[tuple[int, ChunkKind, bytes]] = deque()
        self._start = self._end = 0
        """The start and end of the held messages in the bytes of all messages."""

        self._slices: list[Slice] = []

    def feed(self, data: bytes, at: int, kind: ChunkKind) -> list[RedactedMessage]:
        """Feed a message; return the messages that can be recorded."""
        base, channels = self._end, self._search.channels
        self._waiting.append((at, kind, data))
        self._end += len(data)
        if len(data) <= MAX_MESSAGE:
            self._search_message(data, base)
        if channels.is_pending:
            over = kind == "close" or _ANSWER_END.search(data) is not None
            channels.settle(None if over else self._end - MAX_WAITING)
        return self._release()

    @property
    def waiting_size(self) -> int:
        """The number of bytes that are held back."""
        return self._end - self._start

    def finish(self) -> list[RedactedMessage]:
        """Return the remaining messages."""
        self._search.channels.settle()
        return self._release()

    def _search_message(self, data: bytes, base: int) -> None:
        size = len(data)
        if data.lstrip()[:1] in (b"{", b"[") and (
            self._search.take_known(data, 0, size, base) or self._search.take_json(data, (0, size), base)
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
        message_slices = [one for one in self._slices if one.at < end]
        if message_slices:
            self._slices = [one for one in self._slices if one.at >= end]
        self._start = end
        started = sum(one.is_start for one in message_slices)
        try:
            new, count = self._redact(apply_slices(data, start, message_slices) if message_slices else data)
        except UnreadableBody as fault:
            return RedactedMessage(at, kind, b"", started, fault, len(data))
        return RedactedMessage(at, kind, new, count + started, None, len(data))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
