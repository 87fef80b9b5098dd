"""Redact a body in pieces.

A plain body is redacted as it comes, and leaves in the pieces and at the times in which it came. A compressed one, and
one in which a profile declares secrets by path, has to be held until it can be opened; it leaves as it came when there is
nothing secret in it, else in the same pieces, compressed again.
"""

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from calls.codec.encoding import LIMIT, Decoder, Encoder, TooLarge, Undecodable, codings
from calls.redaction.declared import DeclaredSecrets, Unreadable
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import Edit, Table
from calls.redaction.streams.streamed_body import StreamedBody
from calls.redaction.streams.streamed_text import StreamedText

_STEP: Final = 4096


class Piece(NamedTuple):
    """A piece of a body, ready to be recorded."""

    at: int
    data: bytes
    redactions: int
    size: int
    """What crossed the wire."""


class BodyRedactor(Protocol):
    """One body on its way."""

    heavy: bool
    """Whether `feed` only holds and `finish` does all the work: better done on a thread."""

    reencoded: bool
    """Known after `finish`: whether the bytes are ours and not the sender's."""

    withheld: str | None
    """Known after `finish`: why the body must not be kept, if it must not."""

    def passes(self, data: bytes) -> bool:
        """Take a piece, if it can be recorded at once and as it is. `feed` can as well, and takes all others, but longer."""

    def feed(self, data: bytes, at: int) -> list[Piece]:
        """Take a piece, and give those that can be recorded."""

    def finish(self) -> list[Piece]:
        """Give the rest."""

    def finish_within(self, limit: int) -> list[Piece] | None:
        """The same, unless it means to open more than so many bytes: None, and it is still to be finished."""


def redactor_of(
    table: Table,
    key: bytes,
    content_type: str | None,
    content_encoding: str | None,
    declared: DeclaredSecrets | None = None,
) -> BodyRedactor:
    """What redacts a body of this kind; `declared` are secrets in it that a profile names."""
    essence, names = _kind(content_type, content_encoding)
    if names or declared:
        return HeldBody(table, key, essence, names, declared)
    return plain_body(table, key, essence)


def plain_body(table: Table, key: bytes, essence: str = "", *, is_stream: bool = False) -> BodyRedactor:
    """What redacts a body that is not compressed: each message of a stream, and what its messages spell out together.

    `is_stream`: it is one message of a stream whose texts are searched elsewhere.
    """
    plain = PlainBody(table, key, essence)
    plain.is_stream = is_stream
    if essence == _FORM:
        return plain
    mend = EventStream().mend if essence == EventStream.MEDIA else None
    return StreamedBody(StreamedText(table, key, essence), plain, _as_it_is, mend)


def _as_it_is(at: int, data: bytes) -> Piece:
    return Piece(at, data, 0, len(data))


_FORM: Final = "application/x-www-form-urlencoded"
_BINARY_IN_BASE64: Final = "application/grpc-web-text"


@lru_cache(256)
def is_plain(content_type: str | None, content_encoding: str | None) -> bool:
    """Whether a body of this kind is searched as the bytes that it is, from its first to its last."""
    essence, names = _kind(content_type, content_encoding)
    return not names and essence != _FORM and not essence.startswith(_BINARY_IN_BASE64)


def _is_json(essence: str) -> bool:
    """Whether a body of this kind is JSON texts, as far as its label tells."""
    return "json" in essence or essence in ("text/event-stream", EventStream.MEDIA)


@lru_cache(256)
def _kind(content_type: str | None, content_encoding: str | None) -> tuple[str, tuple[str, ...]]:
    """What a body is, and by what it is encoded."""
    essence = (content_type or "").partition(";")[0].strip().lower()
    try:
        return essence, codings(content_encoding)
    except Undecodable:
        return essence, ()  # nobody can say what is inside: what can be seen is redacted


class PlainBody:
    """A body whose bytes are what they seem."""

    __slots__ = ("_edits", "_mend", "_scanner", "_start", "_waiting")
    heavy = False
    reencoded = False
    withheld: str | None = None

    def __init__(self, table: Table, key: bytes, essence: str = "") -> None:
        # The first field of a form has no separator before its name.
        form = essence == _FORM
        self._scanner = LayeredScanner(
            table,
            key,
            before=b"&" if form else b"\n",
            is_json=_is_json(essence),
            is_binary=essence.startswith(_BINARY_IN_BASE64),
        )
        self._mend = EventStream() if essence == EventStream.MEDIA else None
        self._waiting: list[tuple[int, bytes]] = []
        self._start = 0
        self._edits: list[Edit] = []

    @property
    def is_stream(self) -> bool:
        """Whether the bytes are the messages of a stream, in JSON mostly."""
        return self._scanner.is_stream

    @is_stream.setter
    def is_stream(self, is_stream: bool) -> None:
        self._scanner.is_stream = is_stream
        self._scanner.is_json |= is_stream

    def passes(self, data: bytes) -> bool:
        return not (self._waiting or self._mend) and self._scanner.passes(data)

    def feed(self, data: bytes, at: int) -> list[Piece]:
        if not self._waiting:
            self._start = self._scanner.decided_to
        self._waiting.append((at, data))
        return self._release(self._scanner.feed(data))

    def finish(self) -> list[Piece]:
        # What waits for nothing has left already.
        return self._release(self._scanner.feed(b"", last=True)) if self._waiting else []

    def finish_within(self, limit: int) -> list[Piece] | None:  # noqa: ARG002 - nothing is opened
        return self.finish()

    def _release(self, edits: Iterable[Edit]) -> list[Piece]:
        """The pieces in which nothing will change any more, changed."""
        self._edits.extend(edits)
        out: list[Piece] = []
        while self._waiting and self._start + len(self._waiting[0][1]) <= self._scanner.decided_to:
            at, data = self._waiting.pop(0)
            out.append(self._edit_piece(at, data))
            self._start += len(data)
        return out

    def _edit_piece(self, at: int, data: bytes) -> Piece:
        end = self._start + len(data)
        mine = [edit for edit in self._edits if edit.at < end]
        new = apply_edits(data, self._start, mine) if mine else data
        self._edits = [edit for edit in self._edits if edit.at + len(edit.data) > end]
        count = sum(edit.at >= self._start for edit in mine)
        if self._mend:
            new = self._mend.feed(new, changed=bool(mine))
        return Piece(at, new, count, len(data))


def apply_edits(data: bytes, start: int, edits: Iterable[Edit]) -> bytes:
    out = bytearray(data)
    for at, new in edits:
        low, high = max(at, start), min(at + len(new), start + len(data))
        out[low - start : high - start] = new[low - at : high - at]
    return bytes(out)


class HeldBody:
    """A body that is compressed, or has to be parsed: held until its end."""

    def __init__(
        self, table: Table, key: bytes, essence: str, names: tuple[str, ...], declared: DeclaredSecrets | None = None
    ) -> None:
        self._table, self._key, self._essence = table, key, essence
        self._names, self._declared = names, declared
        self._held: list[tuple[int, bytes]] = []
        self.heavy = True
        self.reencoded = False
        self.withheld: str | None = None

    def passes(self, data: bytes) -> bool:  # noqa: ARG002 - nobody can say before it is opened
        return False

    def feed(self, data: bytes, at: int) -> list[Piece]:
        self._held.append((at, data))
        return []

    def finish(self) -> list[Piece]:
        try:
            return self._finish(LIMIT)
        except TooLarge as error:
            return self._withhold(error)

    def finish_within(self, limit: int) -> list[Piece] | None:
        try:
            return self._finish(limit)
        except TooLarge:
            return None

    def _finish(self, limit: int) -> list[Piece]:
        """Give the rest. Raises TooLarge."""
        try:
            return self._redact_opened(limit) if self._names else self._redact_parsed(limit)
        except Unreadable as error:
            return self._withhold(error)

    def _redact_parsed(self, limit: int) -> list[Piece]:
        if sum(len(data) for _, data in self._held) > limit:
            raise TooLarge
        return list(self._plain(Decoder(())))

    def _redact_opened(self, limit: int) -> list[Piece]:
        decoder, found = Decoder(self._names, limit), 0
        try:
            # Twice through, since nearly all bodies hold nothing secret, and the plain one is never held as a whole.
            for piece in self._plain(decoder):
                found += piece.redactions
        except TooLarge:
            raise
        except Undecodable as error:
            return self._withhold(error) if self._shows_a_secret() else self._as_seen()
        if decoder.surplus:
            return self._withhold("bytes follow its end") if found else self._as_seen()
        return list(self._recompress(complete=decoder.complete)) if found else self._as_it_came()

    def _plain(self, decoder: Decoder) -> Iterator[Piece]:
        body = plain_body(self._table, self._key, self._essence)
        pieces = ((at, decoder.feed(data)) for at, data in self._held)
        if self._declared is None:
            for at, data in pieces:
                yield from body.feed(data, at)
            yield from body.finish()
        else:
            yield from self._without_declared(list(pieces), body)

    def _without_declared(self, pieces: list[tuple[int, bytes]], body: BodyRedactor) -> Iterator[Piece]:
        """The plain pieces without the secrets that the profile names, then without all others."""
        assert self._declared
        edits = self._declared.edits(b"".join(data for _, data in pieces), self._key)
        out: list[Piece] = []
        start = 0
        for at, data in pieces:
            mine = [edit for edit in edits if edit.at < start + len(data) and edit.at + len(edit.data) > start]
            out += body.feed(apply_edits(data, start, mine), at)
            start += len(data)
        out += body.finish()
        # All are counted where the first piece is: who asks wants to know whether there were any.
        first = out[0]._replace(redactions=out[0].redactions + len(edits)) if out else None
        yield from [first, *out[1:]] if first else []

    def _shows_a_secret(self) -> bool:
        """Whether there is one before the damage."""
        body = plain_body(self._table, self._key, self._essence)
        pieces = [piece for opened in self._before_damage() for piece in body.feed(opened, 0)] + body.finish()
        return any(piece.redactions for piece in pieces)

    def _before_damage(self) -> Iterator[bytes]:
        # What a piece opens to is lost with a fault in it: so find the piece, and go through that one byte by byte.
        data = b"".join(piece for _, piece in self._held)
        bad = sum(
            _STEP for _ in _open_pieces(self._names, (data[at : at + _STEP] for at in range(0, len(data), _STEP)))
        )
        yield from _open_pieces(
            self._names, (data[at : at + _STEP] for at in range(0, bad, _STEP)), data[bad : bad + _STEP]
        )

    def _recompress(self, *, complete: bool) -> Iterator[Piece]:
        """The same pieces at the same times: each ends with a flush."""
        self.reencoded = True
        encoder = Encoder(self._names)
        last = len(self._held) - 1
        for number, piece in enumerate(self._plain(Decoder(self._names))):
            data = encoder.feed(piece.data)
            if number == last and complete:
                data += encoder.finish()
            yield Piece(piece.at, data, piece.redactions, len(self._held[number][1]))

    def _as_it_came(self) -> list[Piece]:
        return [Piece(at, data, 0, len(data)) for at, data in self._held]

    def _as_seen(self) -> list[Piece]:
        """Mislabelled or damaged, and nothing secret as far as it opens: redacted as what it is, bytes."""
        body = plain_body(self._table, self._key, self._essence)
        return [piece for at, data in self._held for piece in body.feed(data, at)] + body.finish()

    def _withhold(self, fault: object) -> list[Piece]:
        """It hides what cannot be redacted, so nothing of it may be kept."""
        self.withheld = f"a body could not be redacted ({fault})"
        return []


def _open_pieces(names: tuple[str, ...], pieces: Iterable[bytes], last: bytes = b"") -> Iterator[bytes]:
    """What the pieces open to, and then every byte of the last one, up to the damage."""
    decoder = Decoder(names)
    try:
        for piece in pieces:
            yield decoder.feed(piece)
        for byte in last:
            yield decoder.feed(bytes([byte]))
    except Undecodable:
        return


class EventStream:
    """Sets the checksums of an AWS event stream right behind what was changed in it. Lengths never change.

    A frame is its length, the length of its headers, the CRC of both; headers; payload; the CRC of all before.
    """

    MEDIA: Final = "application/vnd.amazon.eventstream"
    _TRAILER: Final = 4
    _SHORTEST: Final = 16

    def __init__(self) -> None:
        self._crc = 0
        self._head = b""
        self._left = 0
        self._trailer = 0
        self._changed = False
        self._lost = False

    def mend(self, data: bytes, changed: bool) -> bytes:
        """The next piece, right again."""
        return self.feed(data, changed=changed)

    def feed(self, data: bytes, *, changed: bool) -> bytes:
        """The next piece, right again; `changed` says that it is not what was sent."""
        self._changed |= changed
        out = bytearray(data)
        at = 0
        while at < len(data) and not self._lost:
            if len(self._head) < 4:
                at = self._length(data, at)
            elif self._left:
                end = min(at + self._left, len(data))
                self._left -= end - at
                self._crc = zlib.crc32(data[at:end], self._crc)
                at = end
            else:
                at = self._checksum(out, at, changed=changed)
        return bytes(out)

    def _length(self, data: bytes, at: int) -> int:
        new = data[at : at + 4 - len(self._head)]
        self._head += new
        self._crc = zlib.crc32(new, self._crc)
        if len(self._head) == 4:
            total = int.from_bytes(self._head, "big")
            self._lost = total < self._SHORTEST
            self._left = total - 4 - self._TRAILER
        return at + len(new)

    def _checksum(self, out: bytearray, at: int, *, changed: bool) -> int:
        if self._changed:
            out[at] = self._crc.to_bytes(4, "big")[self._trailer]
        self._trailer += 1
        if self._trailer == self._TRAILER:
            self._crc, self._head, self._trailer = 0, b"", 0
            self._changed = changed
        return at + 1
