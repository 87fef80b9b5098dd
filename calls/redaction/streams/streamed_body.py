"""Redact a body that is a stream of messages: hold it back until it is decided.

Its output is searched again as plain bytes by another redactor. Only the recording is delayed, not the wire.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from calls.redaction.streams.channels import Slice
from calls.redaction.streams.streamed_text import StreamedText

type Repair = Callable[[bytes, bool], bytes]
"""Corrects the checksums in a piece, given whether it was changed."""


MOST_HELD_AT_END: Final = 4 << 10
"""Bytes that may be held back at the end of a body where others wait while they are searched."""


class StreamedPiece(Protocol):
    """A piece of a body that can be recorded."""

    @property
    def redactions(self) -> int:
        """The number of secrets that begin in it."""

    def _replace[Self](self: Self, *, redactions: int) -> Self: ...


class BytesRedactor[P: StreamedPiece](Protocol):
    """Redacts the bytes of a body, and returns one piece for each that it is fed."""

    is_stream: bool
    """Whether the bytes are the messages of a stream."""

    def try_pass(self, data: bytes) -> bool:
        """Accept a piece if it can be recorded immediately and unchanged."""

    def feed(self, data: bytes, at: int) -> list[P]:
        """Feed a piece; return the pieces that can be recorded."""

    def finish(self) -> list[P]:
        """Return the remaining pieces."""


class StreamedBody[P: StreamedPiece]:
    """Redacts one body (`BodyRedactor` in calls/redaction/body.py)."""

    __slots__ = ("_behind", "_counts", "_end", "_is_taken", "_mend", "_piece", "_slices", "_start", "_text", "_waiting")
    is_heavy = False
    is_reencoded = False
    withheld_reason: str | None = None

    def __init__(
        self, text: StreamedText, behind: BytesRedactor[P], piece: Callable[[int, bytes], P], mend: Repair | None = None
    ) -> None:
        """`piece` creates a piece that is recorded unchanged."""
        self._text = text
        self._behind = behind
        self._piece = piece
        self._mend = mend
        # Lists, mostly empty: a `deque` takes 600 bytes of each open stream.
        self._waiting: list[tuple[int, bytes]] = []
        self._start = self._end = 0
        """The start and end of the held pieces in the body."""

        self._slices: list[Slice] = []
        self._counts: list[int] = []
        """The number of secrets that begin in each piece that the second redactor holds."""

        self._is_taken = False
        """Whether the text search has already processed the next piece."""

    @property
    def waiting_size(self) -> int:
        """The number of bytes that are held back."""
        return self._end - self._start

    def try_pass(self, data: bytes) -> bool:
        if self._waiting or self._counts or self._mend:
            return False
        text = self._text
        slices = text.feed(data)
        end = self._end + len(data)
        if slices or text.decided_to < end or not self._behind.try_pass(data):
            self._slices += slices
            self._is_taken = True
            return False
        self._start = self._end = end
        return True

    def feed(self, data: bytes, at: int) -> list[P]:
        return self.feed_together(((at, data),))

    def feed_together(self, pieces: Sequence[tuple[int, bytes]]) -> list[P]:
        self._waiting += pieces
        data = join_pieces(pieces)
        self._end += len(data)
        if not self._is_taken:
            self._slices += self._text.feed(data)
        self._is_taken = False
        return self._release(self._text.decided_to)

    def finish(self) -> list[P]:
        # The client waits for the end of nearly every stream in this case.
        if not (self._waiting or self._counts or self._is_taken) and self._text.is_settled:
            return self._behind.finish()
        self._slices += self._text.feed(b"", last=True)
        return [*self._release(self._end), *self._add_counts(self._behind.finish())]

    def finish_within(self, limit: int, may_continue: Callable[[], bool]) -> list[P] | None:  # noqa: ARG002 - nothing is decoded
        return self.finish() if self.waiting_size <= MOST_HELD_AT_END else None

    def _release(self, decided_to: int) -> list[P]:
        end, count = self._start, 0
        for _, data in self._waiting:
            if end + len(data) > decided_to:
                break
            end += len(data)
            count += 1
        pieces = self._waiting[:count]
        del self._waiting[:count]
        self._behind.is_stream |= self._text.is_stream
        if pieces and self._is_unchanged and self._behind.try_pass(join_pieces(pieces)):
            self._start = end
            return [self._piece(at, data) for at, data in pieces]
        found: list[P] = []
        for at, data in pieces:
            end = self._start + len(data)
            if self._is_unchanged and self._behind.try_pass(data):
                found.append(self._piece(at, data))
            else:
                found += self._add_counts(self._behind.feed(self._change_piece(data, end), at))
            self._start = end
        return found

    @property
    def _is_unchanged(self) -> bool:
        """Whether nothing changes in the next held piece but what the second redactor finds."""
        return not (self._slices or self._mend or self._counts)

    def _change_piece(self, data: bytes, end: int) -> bytes:
        """Redact the first held piece."""
        piece_slices = [one for one in self._slices if one.at < end]
        self._counts.append(sum(one.is_start and one.at >= self._start for one in piece_slices))
        if piece_slices:
            data = apply_slices(data, self._start, piece_slices)
            self._slices = [one for one in self._slices if one.at + len(one.data) > end]
        return self._mend(data, bool(piece_slices)) if self._mend else data

    def _add_counts(self, pieces: Sequence[P]) -> list[P]:
        return [
            piece._replace(redactions=piece.redactions + count) if (count := self._counts.pop(0)) else piece
            for piece in pieces
        ]


def group_pieces(pieces: Sequence[tuple[int, bytes]], limit: int) -> Iterator[Sequence[tuple[int, bytes]]]:
    """Yield the pieces in groups of at most so many bytes; a longer piece is alone."""
    start, size = 0, 0
    for number, (_, data) in enumerate(pieces):
        size += len(data)
        if size > limit and number > start:
            yield pieces[start:number]
            start, size = number, len(data)
    yield pieces[start:]


def join_pieces(pieces: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the bytes of pieces that follow one another."""
    return pieces[0][1] if len(pieces) == 1 else b"".join([data for _, data in pieces])


def apply_slices(data: bytes, start: int, slices: Sequence[Slice]) -> bytes:
    """Apply the slices that overlap data at an offset."""
    out = bytearray(data)
    for at, new, _ in slices:
        low, high = max(at, start), min(at + len(new), start + len(data))
        if low < high:
            out[low - start : high - start] = new[low - at : high - at]
    return bytes(out)
