"""Redact a body that is a stream: hold it back until its secrets can no longer change.

What it gives is searched once more as the bytes that it is, by the redactor behind it. Only the record waits; the wire does not.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from calls.redaction.streams.channels import Slice
from calls.redaction.streams.streamed_text import StreamedText

type Mend = Callable[[bytes, bool], bytes]
"""Sets checksums right in a piece, given whether it was changed."""


class StreamedPiece(Protocol):
    """A piece of a body that can be recorded."""

    @property
    def redactions(self) -> int:
        """How many secrets began in it."""

    def _replace[Self](self: Self, *, redactions: int) -> Self: ...


class BytesRedactor[P: StreamedPiece](Protocol):
    """What redacts the bytes of a body, and gives a piece for each that it was given."""

    is_stream: bool
    """Whether the bytes are the messages of a stream."""

    def passes(self, data: bytes) -> bool:
        """Take a piece, if it can be recorded at once and as it is."""

    def feed(self, data: bytes, at: int) -> list[P]:
        """Take a piece, and give those that can be recorded."""

    def finish(self) -> list[P]:
        """Give the rest."""


class StreamedBody[P: StreamedPiece]:
    """One body (`BodyRedactor` in redact_body.py)."""

    __slots__ = ("_behind", "_counts", "_end", "_is_taken", "_mend", "_piece", "_slices", "_start", "_text", "_waiting")
    heavy = False
    reencoded = False
    withheld: str | None = None

    def __init__(
        self, text: StreamedText, behind: BytesRedactor[P], piece: Callable[[int, bytes], P], mend: Mend | None = None
    ) -> None:
        """`piece` makes one of what can be recorded as it is."""
        self._text = text
        self._behind = behind
        self._piece = piece
        self._mend = mend
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._start = self._end = 0
        """Where what waits begins, and where it ends."""

        self._slices: list[Slice] = []
        self._counts: deque[int] = deque()
        """How many secrets began in each of the pieces that wait behind this."""

        self._is_taken = False
        """Whether the text knows the next piece already."""

    @property
    def waiting(self) -> int:
        """How many bytes are held back."""
        return self._end - self._start

    def passes(self, data: bytes) -> bool:
        if self._waiting or self._mend or not self._text.takes(data):
            return False
        self._is_taken = True
        if not self._text.is_clear or self._counts or not self._behind.passes(data):
            return False
        self._is_taken = False
        self._start = self._end = self._end + len(data)
        return True

    def feed(self, data: bytes, at: int) -> list[P]:
        self._waiting.append((at, data))
        self._end += len(data)
        if self._is_taken or self._text.takes(data):
            self._slices += self._text.take_slices()
        else:
            self._slices += self._text.feed(data)
        self._is_taken = False
        return self._release(self._text.decided_to)

    def finish(self) -> list[P]:
        self._slices += self._text.feed(b"", last=True)
        return [*self._release(self._end), *self._add_counts(self._behind.finish())]

    def finish_within(self, limit: int) -> list[P] | None:  # noqa: ARG002 - nothing is opened
        return self.finish()

    def _release(self, decided_to: int) -> list[P]:
        found: list[P] = []
        while self._waiting and self._start + len(self._waiting[0][1]) <= decided_to:
            at, data = self._waiting.popleft()
            end = self._start + len(data)
            self._behind.is_stream |= self._text.is_stream
            if not (self._slices or self._mend or self._counts) and self._behind.passes(data):
                found.append(self._piece(at, data))
            else:
                found += self._add_counts(self._behind.feed(self._change_piece(data, end), at))
            self._start = end
        return found

    def _change_piece(self, data: bytes, end: int) -> bytes:
        """The piece that begins what waits, as it is to be recorded."""
        mine = [one for one in self._slices if one.at < end]
        self._counts.append(sum(one.begins and one.at >= self._start for one in mine))
        if mine:
            data = apply_slices(data, self._start, mine)
            self._slices = [one for one in self._slices if one.at + len(one.data) > end]
        return self._mend(data, bool(mine)) if self._mend else data

    def _add_counts(self, pieces: Sequence[P]) -> list[P]:
        return [
            piece._replace(redactions=piece.redactions + count) if (count := self._counts.popleft()) else piece
            for piece in pieces
        ]


def apply_slices(data: bytes, start: int, slices: Sequence[Slice]) -> bytes:
    """Data that stands at an offset, with these slices in it as far as they reach into it."""
    out = bytearray(data)
    for at, new, _ in slices:
        low, high = max(at, start), min(at + len(new), start + len(data))
        if low < high:
            out[low - start : high - start] = new[low - at : high - at]
    return bytes(out)
