"""Search a text that a stream carries in pieces, and replace secrets in the pieces.

A piece is the content of a JSON string (or a line of plain text) in its escaped form. The joined pieces are the content of one
JSON string and are searched as such. So a placeholder has the length in bytes of the secret, and a part of it replaces each
piece.
"""

from base64 import b64encode
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from calls.placeholder import PREFIX, WEB_TOKEN_PLACEHOLDER, is_placeholder, make_placeholder
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import Edit, RuleTable

MAX_CHANNELS: Final = 256
"""The number of channels of a stream that are followed at the same time; another one replaces the oldest."""


class Slice(NamedTuple):
    """Bytes that replace as many at an offset of the stream."""

    at: int
    data: bytes
    is_start: bool
    """Whether a secret begins here instead of continuing."""


class EnclosedText:
    """A text, usually a JSON message, that is in the stream as base64."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = bytearray(data)
        self._at = at

    def replace(self, at: int, new: bytes, *, is_start: bool) -> Slice:
        """Replace a part of the text; return the base64 of the whole text with all replacements so far."""
        self._data[at : at + len(new)] = new
        return Slice(self._at, b64encode(self._data), is_start)


class _Piece(NamedTuple):
    start: int
    """The offset in the channel's text."""

    end: int
    text: bytes
    at: int | None
    """The offset in the stream; None if the piece is not in it, like the line feed between two lines of data."""

    enclosed: EnclosedText | None
    inner: int
    """The offset in the enclosed text, if there is one."""


class Channel:
    """One text of a stream."""

    __slots__ = ("_key", "_length", "_pieces", "_scanner")

    def __init__(self, table: RuleTable, key: bytes) -> None:
        # The quote that opens a string: a text in one whole string follows it, and the result must be the same.
        self._scanner = LayeredScanner(table, key, before=b'"', is_spelled=True)
        self._key = key
        # A list, mostly empty: a `deque` takes 600 bytes of each open stream.
        self._pieces: list[_Piece] = []
        self._length = 0

    def try_pass(self, text: bytes) -> bool:
        """Accept a piece if it is certain that nothing in it, nor in the held pieces, changes."""
        if not self._scanner.try_pass_on(text):
            return False
        self._pieces.clear()
        self._length += len(text)
        return True

    def add(self, text: bytes, at: int | None, enclosed: EnclosedText | None = None, inner: int = 0) -> list[Slice]:
        """Add a piece at an offset of the stream; return the replacements, also in earlier pieces."""
        if not text or self.try_pass(text):
            return []
        end = self._length + len(text)
        self._pieces.append(_Piece(self._length, end, text, at, enclosed, inner))
        self._length = end
        return self._replace(self._scanner.feed(text))

    def settle(self) -> list[Slice]:
        """Decide everything as if the text ended here."""
        return self._replace(self._scanner.feed(b"", last=True))

    @property
    def undecided_at(self) -> int | None:
        """The offset in the stream of the first piece that may still change."""
        # A loop, and no generator: this is asked several times for each event of a stream.
        for piece in self._pieces:
            if piece.at is not None:
                return piece.at
        return None

    def _replace(self, edits: Iterable[Edit]) -> list[Slice]:
        slices = [piece for edit in edits for piece in self._edit_slices(edit)]
        unchanged = self._scanner.unchanged_to
        passed = 0
        for piece in self._pieces:
            if piece.end > unchanged:
                break
            passed += 1
        del self._pieces[:passed]
        return slices

    def _edit_slices(self, edit: Edit) -> list[Slice]:
        stop = edit.at + len(edit.data)
        parts = [(piece, max(edit.at, piece.start), min(stop, piece.end)) for piece in self._pieces]
        parts = [(piece, low, high) for piece, low, high in parts if low < high]
        new = edit.data
        # The messages are also searched one by one, and in a part of it a web token is not recognised as a placeholder.
        if (len(parts) > 1 and WEB_TOKEN_PLACEHOLDER.match(new)) or any(
            piece.at is None and piece.text not in new[low - edit.at : high - edit.at] for piece, low, high in parts
        ):
            new = self._replacement(new, parts)
        found: list[Slice] = []
        for piece, low, high in parts:
            if piece.at is not None and new:
                data, new = new[: high - low], new[high - low :]
                into = low - piece.start
                found.append(
                    piece.enclosed.replace(piece.inner + into, data, is_start=not found)
                    if piece.enclosed
                    else Slice(piece.at + into, data, not found)
                )
        return found

    def _replacement(self, new: bytes, parts: list[tuple[_Piece, int, int]]) -> bytes:
        """Return a placeholder for the bytes of a secret that are in the stream; empty if they are one already."""
        secret = b"".join(
            piece.text[low - piece.start : high - piece.start] for piece, low, high in parts if piece.at is not None
        )
        kind = new.partition(PREFIX)[2][:1].decode() or "J"
        return b"" if is_placeholder(secret) else make_placeholder(secret, kind, self._key)


class Channels:
    """The channels of one stream."""

    __slots__ = ("_key", "_open", "_pending", "_table", "slices")

    def __init__(self, table: RuleTable, key: bytes) -> None:
        self._table, self._key = table, key
        self._open: dict[Hashable, Channel] = {}
        self._pending: dict[Channel, None] = {}
        self.slices: list[Slice] = []
        """The replacements so far; the caller takes them and resets the list."""

    def try_pass(self, channel: Channel, text: bytes) -> bool:
        """Accept a piece of a channel if it is certain that nothing in the channel changes."""
        if not channel.try_pass(text):
            return False
        if self._pending:
            self._pending.pop(channel, None)
        return True

    def get_channel(self, name: Hashable) -> Channel:
        """Return the channel of this name, and open it if necessary."""
        found = self._open.get(name)
        if found is None:
            if len(self._open) == MAX_CHANNELS:
                self._settle(self._open.pop(next(iter(self._open))))
            found = self._open[name] = Channel(self._table, self._key)
        return found

    def add(
        self, channel: Channel, text: bytes, at: int | None, enclosed: EnclosedText | None = None, inner: int = 0
    ) -> None:
        """Add a piece to a channel."""
        self.slices += channel.add(text, at, enclosed, inner)
        if channel.undecided_at is None:
            self._pending.pop(channel, None)
        else:
            self._pending[channel] = None

    @property
    def is_pending(self) -> bool:
        """Whether a piece may still change."""
        return bool(self._pending)

    def settle(self, before: int | None = None) -> None:
        """Decide the undecided pieces; with `before`, only those of channels whose first one is before that offset."""
        for channel in list(self._pending):
            at = channel.undecided_at
            if before is None or (at is not None and at < before):
                self._settle(channel)

    @property
    def undecided_at(self) -> int | None:
        """The offset of the first piece that may still change."""
        first: int | None = None
        for channel in self._pending:
            at = channel.undecided_at
            if at is not None and (first is None or at < first):
                first = at
        return first

    def _settle(self, channel: Channel) -> None:
        self.slices += channel.settle()
        self._pending.pop(channel, None)
