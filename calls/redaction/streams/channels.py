"""Search a text that a stream carries in pieces, and replace secrets in the pieces.

A piece is the inside of a JSON string (or a line of plain text) as it is written in the stream. Put together such pieces are
the inside of one JSON string, and it is searched as that: so a placeholder has the length of what it replaces in the bytes
too, and a part of it goes into each piece.
"""

from base64 import b64encode
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from calls.placeholder import MARK, is_placeholder, make
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import Edit, Table

MOST: Final = 256
"""Channels of one stream that are followed at a time; the one that was opened first gives way to one more."""


class Slice(NamedTuple):
    """Bytes to be put at an offset of the stream, in place of as many."""

    at: int
    data: bytes
    begins: bool
    """Whether a secret begins here, and does not only go on."""


class EnclosedText:
    """A text, mostly a message in JSON, that stands in the stream in base64."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = bytearray(data)
        self._at = at

    def replacement(self, at: int, new: bytes, *, begins: bool) -> Slice:
        """The base64 of all of it, with this in it and all that was replaced before."""
        self._data[at : at + len(new)] = new
        return Slice(self._at, b64encode(self._data), begins)


class _Piece(NamedTuple):
    start: int
    """Where it begins in the channel's text."""

    end: int
    text: bytes
    at: int | None
    """Where that stands in the stream; None where it stands nowhere, as the line feed between two lines of data."""

    enclosed: EnclosedText | None
    inner: int
    """Where in that text it stands, if it stands in one."""


class Channel:
    """One text."""

    __slots__ = ("_key", "_length", "_pieces", "_scanner")

    def __init__(self, table: Table, key: bytes) -> None:
        # The quote that opens a string: what is written as one whole string has it, and the two must come to the same.
        self._scanner = LayeredScanner(table, key, before=b'"', is_spelled=True)
        self._key = key
        self._pieces: deque[_Piece] = deque()
        self._length = 0

    def passes(self, text: bytes) -> bool:
        """Take a piece, if it is decided at once that nothing of it changes, nor of those that wait."""
        if not self._scanner.passes_on(text):
            return False
        self._pieces.clear()
        self._length += len(text)
        return True

    def take(self, text: bytes, at: int | None, enclosed: EnclosedText | None = None, inner: int = 0) -> list[Slice]:
        """Take a piece that stands at this offset of the stream; what is to be replaced, also in pieces before it."""
        if not text or self.passes(text):
            return []
        end = self._length + len(text)
        self._pieces.append(_Piece(self._length, end, text, at, enclosed, inner))
        self._length = end
        return self._replace(self._scanner.feed(text))

    def settle(self) -> list[Slice]:
        """Decide all there is, as if nothing more came."""
        return self._replace(self._scanner.feed(b"", last=True))

    @property
    def undecided_at(self) -> int | None:
        """Where in the stream the first piece stands that may still change."""
        return next((piece.at for piece in self._pieces if piece.at is not None), None)

    def _replace(self, edits: Iterable[Edit]) -> list[Slice]:
        slices = [piece for edit in edits for piece in self._slices_of(edit)]
        unchanged = self._scanner.unchanged
        while self._pieces and self._pieces[0].end <= unchanged:
            self._pieces.popleft()
        return slices

    def _slices_of(self, edit: Edit) -> list[Slice]:
        stop = edit.at + len(edit.data)
        parts = [(piece, max(edit.at, piece.start), min(stop, piece.end)) for piece in self._pieces]
        parts = [(piece, low, high) for piece, low, high in parts if low < high]
        new = edit.data
        if any(
            piece.at is None and piece.text not in new[low - edit.at : high - edit.at] for piece, low, high in parts
        ):
            new = self._replacement(new, parts)
        found: list[Slice] = []
        for piece, low, high in parts:
            if piece.at is not None and new:
                data, new = new[: high - low], new[high - low :]
                into = low - piece.start
                found.append(
                    piece.enclosed.replacement(piece.inner + into, data, begins=not found)
                    if piece.enclosed
                    else Slice(piece.at + into, data, not found)
                )
        return found

    def _replacement(self, new: bytes, parts: list[tuple[_Piece, int, int]]) -> bytes:
        """What fits where some of the secret stands nowhere; nothing where that is what stands there."""
        secret = b"".join(
            piece.text[low - piece.start : high - piece.start] for piece, low, high in parts if piece.at is not None
        )
        kind = new[len(MARK) :][:1].decode() if new.startswith(MARK) else "J"
        return b"" if is_placeholder(secret) else make(secret, kind, self._key)


class Channels:
    """The channels of one stream."""

    def __init__(self, table: Table, key: bytes) -> None:
        self._table, self._key = table, key
        self._open: dict[Hashable, Channel] = {}
        self._pending: dict[Channel, None] = {}
        self.slices: list[Slice] = []
        """What is to be replaced; whoever takes it leaves the list empty."""

    def passes(self, channel: Channel, text: bytes) -> bool:
        """Take a piece of a channel, if it is decided at once that nothing of the channel changes."""
        if not channel.passes(text):
            return False
        if self._pending:
            self._pending.pop(channel, None)
        return True

    def channel(self, name: Hashable) -> Channel:
        """The channel of this name."""
        found = self._open.get(name)
        if found is None:
            if len(self._open) == MOST:
                self._settle(self._open.pop(next(iter(self._open))))
            found = self._open[name] = Channel(self._table, self._key)
        return found

    def take(
        self, channel: Channel, text: bytes, at: int | None, enclosed: EnclosedText | None = None, inner: int = 0
    ) -> None:
        """A piece of a channel has come."""
        self.slices += channel.take(text, at, enclosed, inner)
        if channel.undecided_at is None:
            self._pending.pop(channel, None)
        else:
            self._pending[channel] = None

    @property
    def is_pending(self) -> bool:
        """Whether a piece may still change."""
        return bool(self._pending)

    def settle(self, before: int | None = None) -> None:
        """Decide what is undecided; only what began before this offset, if one is given."""
        for channel in list(self._pending):
            at = channel.undecided_at
            if before is None or (at is not None and at < before):
                self._settle(channel)

    @property
    def undecided_at(self) -> int | None:
        """Where the first piece stands that may still change."""
        return min((at for channel in self._pending if (at := channel.undecided_at) is not None), default=None)

    def _settle(self, channel: Channel) -> None:
        self.slices += channel.settle()
        self._pending.pop(channel, None)
