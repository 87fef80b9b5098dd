"""Redact a body in pieces.

A plain body is redacted as it arrives, and its pieces and their times stay the same. A compressed body, or one in which a
profile declares secrets by path, is held until its end. If it contains no secret it is recorded unchanged, else its pieces
are redacted and compressed again.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from calls.codec.encoding import ContentDecoder, ContentEncoder, TooLarge, Undecodable, parse_codings
from calls.redaction.declared import DeclaredSecrets, UnreadableBody
from calls.redaction.scanning.layered_scanner import LayeredScanner
from calls.redaction.scanning.scanner import Edit, RuleTable
from calls.redaction.streams.streamed_body import StreamedBody
from calls.redaction.streams.streamed_text import StreamedText

_STEP: Final = 4096

_PART: Final = 2048
"""Bytes of a collected body that are searched together where others wait."""

_MOST_UNDECIDED: Final = 4 * _PART
"""Bytes that a search may hold back while others wait: once they are decided, they are all searched at once."""


class Piece(NamedTuple):
    """A piece of a body that can be recorded."""

    at: int
    data: bytes
    redactions: int
    size: int
    """The size on the wire."""


class BodyRedactor(Protocol):
    """Redacts one body in pieces."""

    is_heavy: bool
    """Whether `feed` only collects and `finish` does all the work, which then belongs on a thread."""

    is_reencoded: bool
    """Whether the body was compressed again, so that its bytes differ from the sender's. Valid after `finish`."""

    withheld_reason: str | None
    """Why the body must not be stored; None if it may be. Valid after `finish`."""

    def try_pass(self, data: bytes) -> bool:
        """Accept a piece, or several joined, if it can be recorded immediately and unchanged.

        If it returns False, the same bytes must be fed next.
        """

    def feed(self, data: bytes, at: int) -> list[Piece]:
        """Feed a piece; return the pieces that can be recorded."""

    def feed_together(self, pieces: Sequence[tuple[int, bytes]]) -> list[Piece]:
        """Feed pieces that follow one another, which costs less than one by one."""

    def finish(self) -> list[Piece]:
        """Return the remaining pieces."""

    def finish_within(self, limit: int, may_continue: Callable[[], bool]) -> list[Piece] | None:
        """Finish, unless that decodes more than `limit` bytes, or `may_continue`, asked after each 2 KB, returns False.

        Then return None, and the body still has to be finished.
        """


def create_body_redactor(
    table: RuleTable,
    key: bytes,
    content_type: str | None,
    content_encoding: str | None,
    declared: DeclaredSecrets | None = None,
) -> BodyRedactor:
    """Create the redactor for a body of this type; `declared` are secrets in it that a profile declares."""
    essence, names = _essence_and_codings(content_type, content_encoding)
    if names or declared:
        return HeldBody(table, key, essence, names, declared)
    return create_plain_redactor(table, key, essence)


def create_plain_redactor(table: RuleTable, key: bytes, essence: str = "", *, is_stream: bool = False) -> BodyRedactor:
    """Create the redactor for an uncompressed body: it searches each message, and the texts that messages carry in pieces.

    `is_stream`: the body is one message of a stream whose texts are searched elsewhere.
    """
    plain = PlainBody(table, key, essence)
    plain.is_stream = is_stream
    if essence == _FORM:
        return plain
    mend = EventStreamChecksums().repair if essence == EventStreamChecksums.MEDIA else None
    return StreamedBody(StreamedText(table, key, essence), plain, _unchanged_piece, mend)


def _unchanged_piece(at: int, data: bytes) -> Piece:
    return Piece(at, data, 0, len(data))


_FORM: Final = "application/x-www-form-urlencoded"
_BINARY_IN_BASE64: Final = "application/grpc-web-text"


@lru_cache(256)
def is_plain(content_type: str | None, content_encoding: str | None) -> bool:
    """Return whether a body of this type is searched as plain bytes from start to end."""
    essence, names = _essence_and_codings(content_type, content_encoding)
    return not names and essence != _FORM and not essence.startswith(_BINARY_IN_BASE64)


def _is_json(essence: str) -> bool:
    """Return whether a body of this media type consists of JSON texts."""
    return "json" in essence or essence in ("text/event-stream", EventStreamChecksums.MEDIA)


@lru_cache(256)
def _essence_and_codings(content_type: str | None, content_encoding: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the media type and the codings of a body."""
    essence = (content_type or "").partition(";")[0].strip().lower()
    try:
        return essence, parse_codings(content_encoding)
    except Undecodable:
        return essence, ()  # an unknown coding: only the raw bytes can be redacted


class PlainBody:
    """Redacts an uncompressed body."""

    __slots__ = ("_edits", "_mend", "_scanner", "_start", "_waiting")
    is_heavy = False
    is_reencoded = False
    withheld_reason: str | None = None

    def __init__(self, table: RuleTable, key: bytes, essence: str = "") -> None:
        # The first field of a form has no separator before its name.
        form = essence == _FORM
        self._scanner = LayeredScanner(
            table,
            key,
            before=b"&" if form else b"\n",
            is_json=_is_json(essence),
            is_binary=essence.startswith(_BINARY_IN_BASE64),
        )
        self._mend = EventStreamChecksums() if essence == EventStreamChecksums.MEDIA else None
        self._waiting: list[tuple[int, bytes]] = []
        self._start = 0
        self._edits: list[Edit] = []

    @property
    def is_stream(self) -> bool:
        """Whether the bytes are the messages of a stream, usually JSON."""
        return self._scanner.is_stream

    @is_stream.setter
    def is_stream(self, is_stream: bool) -> None:
        self._scanner.is_stream = is_stream
        self._scanner.is_json |= is_stream

    def try_pass(self, data: bytes) -> bool:
        return not (self._waiting or self._mend) and self._scanner.try_pass(data)

    def feed(self, data: bytes, at: int) -> list[Piece]:
        if not self._waiting:
            self._start = self._scanner.decided_to
        self._waiting.append((at, data))
        return self._release(self._scanner.feed(data))

    def feed_together(self, pieces: Sequence[tuple[int, bytes]]) -> list[Piece]:
        return [found for at, data in pieces for found in self.feed(data, at)]

    def finish(self) -> list[Piece]:
        # Pieces that are decided have been released already.
        return self._release(self._scanner.feed(b"", last=True)) if self._waiting else []

    def finish_within(self, limit: int, may_continue: Callable[[], bool]) -> list[Piece] | None:  # noqa: ARG002 - the end is short
        return self.finish()

    def _release(self, edits: Iterable[Edit]) -> list[Piece]:
        """Return the pieces that are decided, redacted."""
        self._edits.extend(edits)
        out: list[Piece] = []
        while self._waiting and self._start + len(self._waiting[0][1]) <= self._scanner.decided_to:
            at, data = self._waiting.pop(0)
            out.append(self._edit_piece(at, data))
            self._start += len(data)
        return out

    def _edit_piece(self, at: int, data: bytes) -> Piece:
        end = self._start + len(data)
        piece_edits = [edit for edit in self._edits if edit.at < end]
        new = apply_edits(data, self._start, piece_edits) if piece_edits else data
        self._edits = [edit for edit in self._edits if edit.at + len(edit.data) > end]
        count = sum(edit.at >= self._start for edit in piece_edits)
        if self._mend:
            new = self._mend.feed(new, is_changed=bool(piece_edits))
        return Piece(at, new, count, len(data))


def overlapping_edits(edits: Iterable[Edit], start: int, size: int) -> list[Edit]:
    """Return the edits that change something in so many bytes from `start` on."""
    return [edit for edit in edits if edit.at < start + size and edit.at + len(edit.data) > start]


def apply_edits(data: bytes, start: int, edits: Iterable[Edit]) -> bytes:
    out = bytearray(data)
    for at, new in edits:
        low, high = max(at, start), min(at + len(new), start + len(data))
        out[low - start : high - start] = new[low - at : high - at]
    return bytes(out)


class _CollectedBody:
    """Collects a body, which is redacted when it ends and may be redacted on a thread."""

    is_heavy = True

    def __init__(self) -> None:
        self._held: list[tuple[int, bytes]] = []
        self.is_reencoded = False
        self.withheld_reason: str | None = None

    def try_pass(self, data: bytes) -> bool:  # noqa: ARG002 - undecided until the end
        return False

    def feed(self, data: bytes, at: int) -> list[Piece]:
        self._held.append((at, data))
        return []

    def feed_together(self, pieces: Sequence[tuple[int, bytes]]) -> list[Piece]:
        self._held += pieces
        return []


class HeldBody(_CollectedBody):
    """Redacts a body that is compressed or has to be parsed; holds it until its end."""

    def __init__(
        self,
        table: RuleTable,
        key: bytes,
        essence: str,
        names: tuple[str, ...],
        declared: DeclaredSecrets | None = None,
    ) -> None:
        super().__init__()
        self._table, self._key, self._essence = table, key, essence
        self._names, self._declared = names, declared

    def finish(self) -> list[Piece]:
        try:
            return self._redact_opened() if self._names else list(self._redact_plain(ContentDecoder(())))
        except (TooLarge, UnreadableBody) as error:
            return self._withhold(error)

    def finish_within(self, limit: int, may_continue: Callable[[], bool]) -> list[Piece] | None:
        decoder = ContentDecoder(self._names, limit)
        try:
            # All of it first: what is too large is not searched here and then again on the thread.
            opened = [(at, decoder.feed(data)) for at, data in self._held]
        except TooLarge:
            return None
        except Undecodable:
            return self.finish() if self._is_small_until_damage() else None
        if decoder.has_surplus or sum(len(data) for _, data in opened) > limit:
            return None
        try:
            found = self._count_redactions(opened, may_continue)
        except UnreadableBody as error:
            return self._withhold(error)
        if found is None:
            return None
        if not found:
            return self._unchanged_pieces()
        return self.finish() if may_continue() else None

    def _count_redactions(self, opened: list[tuple[int, bytes]], may_continue: Callable[[], bool]) -> int | None:
        """Return how many secrets the body has; None if that takes too long."""
        edits: Sequence[Edit] = ()
        if self._declared is not None:
            edits = self._declared.find_edits(b"".join(data for _, data in opened), self._key)
        body = create_plain_redactor(self._table, self._key, self._essence)
        found, start, undecided = len(edits), 0, 0
        is_quick = self._table.is_clean(b"".join(data for _, data in opened))
        for at, data in opened:
            edited = apply_edits(data, start, overlapping_edits(edits, start, len(data)))
            start += len(data)
            for part in _divide(edited):
                pieces = body.feed(part, at)
                found += sum(piece.redactions for piece in pieces)
                undecided += len(part) - sum(piece.size for piece in pieces)
                if (undecided > _MOST_UNDECIDED and not is_quick) or not may_continue():
                    return None
        return found + sum(piece.redactions for piece in body.finish())

    def _redact_opened(self) -> list[Piece]:
        decoder, found = ContentDecoder(self._names), 0
        try:
            # Two passes, because nearly all bodies contain no secret, and the decoded body is never in memory as a whole.
            for piece in self._redact_plain(decoder):
                found += piece.redactions
        except TooLarge:
            raise
        except Undecodable as error:
            return self._withhold(error) if self._has_secret_before_damage() else self._redact_as_bytes()
        if decoder.has_surplus:
            return self._withhold("bytes follow its end") if found else self._redact_as_bytes()
        return list(self._recompress(complete=decoder.is_complete)) if found else self._unchanged_pieces()

    def _redact_plain(self, decoder: ContentDecoder) -> Iterator[Piece]:
        body = create_plain_redactor(self._table, self._key, self._essence)
        pieces = ((at, decoder.feed(data)) for at, data in self._held)
        if self._declared is None:
            for at, data in pieces:
                yield from body.feed(data, at)
            yield from body.finish()
        else:
            yield from self._redact_declared(list(pieces), body)

    def _redact_declared(self, pieces: list[tuple[int, bytes]], body: BodyRedactor) -> Iterator[Piece]:
        """Yield the decoded pieces without the secrets that the profile declares and without all others."""
        assert self._declared
        edits = self._declared.find_edits(b"".join(data for _, data in pieces), self._key)
        out: list[Piece] = []
        start = 0
        for at, data in pieces:
            out += body.feed(apply_edits(data, start, overlapping_edits(edits, start, len(data))), at)
            start += len(data)
        out += body.finish()
        # All declared secrets are counted in the first piece: callers only ask whether there were any.
        first = out[0]._replace(redactions=out[0].redactions + len(edits)) if out else None
        yield from [first, *out[1:]] if first else []

    def _is_small_until_damage(self) -> bool:
        """Whether a damaged body is small, as it is and as far as it decodes: both are searched without a limit."""
        return (
            sum(len(data) for _, data in self._held) <= _STEP
            and sum(len(opened) for opened in self._decode_until_damage()) <= _STEP
        )

    def _has_secret_before_damage(self) -> bool:
        """Whether the body contains a secret before the damage."""
        body = create_plain_redactor(self._table, self._key, self._essence)
        pieces = [piece for opened in self._decode_until_damage() for piece in body.feed(opened, 0)] + body.finish()
        return any(piece.redactions for piece in pieces)

    def _decode_until_damage(self) -> Iterator[bytes]:
        # A piece with damage in it decodes to nothing: find that piece and decode it byte by byte.
        data = b"".join(piece for _, piece in self._held)
        bad = sum(
            _STEP for _ in _decode_pieces(self._names, (data[at : at + _STEP] for at in range(0, len(data), _STEP)))
        )
        yield from _decode_pieces(
            self._names, (data[at : at + _STEP] for at in range(0, bad, _STEP)), data[bad : bad + _STEP]
        )

    def _recompress(self, *, complete: bool) -> Iterator[Piece]:
        """Yield the redacted pieces with their times, each compressed and flushed."""
        self.is_reencoded = True
        encoder = ContentEncoder(self._names)
        last = len(self._held) - 1
        for number, piece in enumerate(self._redact_plain(ContentDecoder(self._names))):
            data = encoder.feed(piece.data)
            if number == last and complete:
                data += encoder.finish()
            yield Piece(piece.at, data, piece.redactions, len(self._held[number][1]))

    def _unchanged_pieces(self) -> list[Piece]:
        return [Piece(at, data, 0, len(data)) for at, data in self._held]

    def _redact_as_bytes(self) -> list[Piece]:
        """Redact a mislabelled or damaged body, without secrets as far as it decodes, as plain bytes."""
        body = create_plain_redactor(self._table, self._key, self._essence)
        return [piece for at, data in self._held for piece in body.feed(data, at)] + body.finish()

    def _withhold(self, fault: object) -> list[Piece]:
        """Discard the body, because it may contain secrets that cannot be redacted."""
        self.withheld_reason = f"a body could not be redacted ({fault})"
        return []


class DeferredBody(_CollectedBody):
    """Has another redactor, which does not reencode or withhold anything, redact a large whole body at its end."""

    def __init__(self, behind: BodyRedactor) -> None:
        super().__init__()
        self._behind = behind
        self._rest: list[tuple[int, bytes]] | None = None
        """What is still to be redacted, once that has begun."""

        self._redacted: list[Piece] = []

    def finish(self) -> list[Piece]:
        for at, data in self._held if self._rest is None else self._rest:
            self._redacted += self._behind.feed(data, at)
        self._redacted += self._behind.finish()
        return list(_join_parts(self._redacted, [len(data) for _, data in self._held]))

    def finish_within(self, limit: int, may_continue: Callable[[], bool]) -> list[Piece] | None:
        if sum(len(data) for _, data in self._held) > limit:
            return None
        self._rest = [(at, part) for at, data in self._held for part in _divide(data)]
        undecided = 0
        while self._rest:
            at, part = self._rest.pop(0)
            pieces = self._behind.feed(part, at)
            self._redacted += pieces
            undecided += len(part) - sum(piece.size for piece in pieces)
            if undecided > _MOST_UNDECIDED or not may_continue():
                return None
        return self.finish()


def _divide(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _PART] for start in range(0, len(data), _PART))


def _join_parts(parts: Sequence[Piece], sizes: Sequence[int]) -> Iterator[Piece]:
    """Join the parts of each piece again; `sizes` are those of the pieces on the wire."""
    waiting = iter(parts)
    for size in filter(None, sizes):
        own = [next(waiting)]
        while sum(part.size for part in own) < size:
            own.append(next(waiting))
        yield (
            own[0]
            if len(own) == 1
            else Piece(own[0].at, b"".join(part.data for part in own), sum(part.redactions for part in own), size)
        )


def _decode_pieces(names: tuple[str, ...], pieces: Iterable[bytes], last: bytes = b"") -> Iterator[bytes]:
    """Decode the pieces, then the last one byte by byte, up to the damage."""
    decoder = ContentDecoder(names)
    try:
        for piece in pieces:
            yield decoder.feed(piece)
        for byte in last:
            yield decoder.feed(bytes([byte]))
    except Undecodable:
        return


class EventStreamChecksums:
    """Corrects the checksums of an AWS event stream after changes in its frames. Lengths never change.

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
        self._is_changed = False
        self._is_lost = False

    def repair(self, data: bytes, is_changed: bool) -> bytes:
        """Correct the checksums in the next piece."""
        return self.feed(data, is_changed=is_changed)

    def feed(self, data: bytes, *, is_changed: bool) -> bytes:
        """Correct the checksums in the next piece; `is_changed`: it differs from what was sent."""
        self._is_changed |= is_changed
        out = bytearray(data)
        at = 0
        while at < len(data) and not self._is_lost:
            if len(self._head) < 4:
                at = self._read_length(data, at)
            elif self._left:
                end = min(at + self._left, len(data))
                self._left -= end - at
                self._crc = zlib.crc32(data[at:end], self._crc)
                at = end
            else:
                at = self._write_checksum(out, at, is_changed=is_changed)
        return bytes(out)

    def _read_length(self, data: bytes, at: int) -> int:
        new = data[at : at + 4 - len(self._head)]
        self._head += new
        self._crc = zlib.crc32(new, self._crc)
        if len(self._head) == 4:
            total = int.from_bytes(self._head, "big")
            self._is_lost = total < self._SHORTEST
            self._left = total - 4 - self._TRAILER
        return at + len(new)

    def _write_checksum(self, out: bytearray, at: int, *, is_changed: bool) -> int:
        if self._is_changed:
            out[at] = self._crc.to_bytes(4, "big")[self._trailer]
        self._trailer += 1
        if self._trailer == self._TRAILER:
            self._crc, self._head, self._trailer = 0, b"", 0
            self._is_changed = is_changed
        return at + 1
