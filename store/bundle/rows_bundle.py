"""A run as its rows, for a replay on this machine: bodies stay compressed until they are needed.

It is made (`packer`) and read in a fraction of a bundle's time. It is no format for keeping: only the version that wrote it reads it.

    PLAYHEAD ROWS, then frames, each behind its length in four bytes:  head, rows …, parts …, tail
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, overload

import msgspec

from calls.events import Gap
from calls.model import Exchange, Headers
from store.bundle.bundle import BadBundle, Bundle, Entry
from store.bundle.bundle import read as read_bundle
from store.bundle.exchange_summary import Brief
from store.database.blobs import parts_of, unpack
from store.database.rows import EMPTY_DIGEST, exchange_of
from store.database.schema_version import SCHEMA

MAGIC: Final = b"PLAYHEAD ROWS\n"

COLUMNS: Final = (
    *("id", "run", "started_at", "first_byte_at", "ended_at", "method", "url", "status", "outcome", "redactions"),
    *("request_digest", "response_digest", "head", "request_body", "response_body"),
)

HEAVY: Final = 256 << 10
"""Bytes of packed bodies from which unpacking is felt."""

type _Row = tuple[Any, ...]


class RowsHead(msgspec.Struct, array_like=True):
    schema: str
    run: dict[str, Any]
    profiles: str


class Rows(msgspec.Struct, array_like=True, tag="rows"):
    rows: list[_Row]


class Parts(msgspec.Struct, array_like=True, tag="parts"):
    parts: list[tuple[bytes, bytes]]


class Tail(msgspec.Struct, array_like=True, tag="tail"):
    rows: int
    gaps: list[Gap]


class _Chunks(msgspec.Struct, array_like=True):
    waits: msgspec.Raw
    sizes: msgspec.Raw
    offsets: msgspec.Raw
    kinds: list[str] | None


class _Message(msgspec.Struct, array_like=True):
    http_version: str
    headers: Headers
    trailers: msgspec.Raw
    chunks: _Chunks


class _Exchange(msgspec.Struct, array_like=True):
    """Of `store.database.rows.ExchangeHead` what a `Brief` tells; the rest is passed over, which is cheaper."""

    format: msgspec.Raw
    request: _Message
    response: msgspec.Raw
    reason: msgspec.Raw
    run_evidence: msgspec.Raw
    step: msgspec.Raw
    actor: str | None
    error: msgspec.Raw
    exact: tuple[str, str] | None


_encode = msgspec.msgpack.Encoder().encode
_in_short = msgspec.msgpack.Decoder(_Exchange)
_head = msgspec.msgpack.Decoder(RowsHead)
_frame = msgspec.msgpack.Decoder(Rows | Parts | Tail)


def read(content: bytes) -> Bundle:
    """The run that was packed, as its bundle would be. Raises BadBundle and Corrupt."""
    frames = _frames(content)
    head = _head.decode(next(frames))
    if head.schema != SCHEMA:
        raise BadBundle(1, f"the store server is of another version ({head.schema}, not {SCHEMA}); start it again")
    rows: list[_Row] = []
    forms: dict[bytes, bytes] = {}
    for frame in frames:
        match _frame.decode(frame):
            case Rows(more):
                rows += more
            case Parts(parts):
                forms.update(parts)
            case Tail(count, gaps):
                if count != len(rows):
                    break
                entries = StoredRun(rows, _unpacked(forms))
                return Bundle(run=head.run, profiles=head.profiles, entries=entries, gaps=tuple(gaps))
    raise BadBundle(1, "the store server's answer breaks off")


class StoredRun(Sequence[Entry]):
    """The exchanges of a run as they are stored. What is looked at is unpacked, each time. Raises Corrupt then."""

    def __init__(self, rows: Sequence[_Row], parts: Mapping[bytes, bytes]) -> None:
        self._rows = rows
        self._parts = parts

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Entry: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Entry]: ...

    def __getitem__(self, place: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(place, slice):
            return StoredRun(self._rows[place], self._parts)
        row = self._rows[place]
        *_, key, profile = row
        call = {"key": key, "profile": profile} if key else None
        return Entry(exchange=_exchange(row, self._parts), call=call)

    def briefs(self) -> Iterator[Brief]:
        """Each in short."""
        return map(self._brief, self._rows)

    def _brief(self, row: _Row) -> Brief:
        name, _, started_at, _, ended_at, method, url, _, _, _, body, _, head, asked, answered, key, profile = row
        told = _in_short.decode(unpack(head, self._parts))
        request, kinds = told.request, told.request.chunks.kinds
        spoken = kinds is not None and kinds[0] != "data"
        if told.exact:
            method, url = told.exact
        body, whole = EMPTY_DIGEST if spoken else body, partial(_exchange, row, self._parts)
        version, headers = request.http_version, request.headers
        return Brief(
            name,
            started_at,
            ended_at,
            method,
            url,
            version,
            headers,
            body,
            told.actor,
            spoken,
            key,
            profile,
            len(asked) + len(answered or b"") > HEAVY,
            whole,
        )


def load(path: Path) -> Bundle:
    """The run in a file of either form. Raises OSError, BadBundle, UnknownFormat and Corrupt."""
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
        file.seek(0)
        return read(file.read()) if begin == MAGIC else read_bundle(file)


def is_packed(path: Path) -> bool:
    """Whether a file holds rows. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def framed(frame: msgspec.Struct) -> bytes:
    """A frame as it is written."""
    data = _encode(frame)
    return len(data).to_bytes(4) + data


def _frames(content: bytes) -> Iterator[memoryview]:
    view, at = memoryview(content), len(MAGIC)
    while at + 4 <= len(content):
        end = at + 4 + int.from_bytes(view[at : at + 4])
        if end > len(content):
            break
        yield view[at + 4 : end]
        at = end
    if at != len(content) or at == len(MAGIC):
        raise BadBundle(1, "the store server's answer breaks off")


def _unpacked(forms: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """All parts. One that leans on another one does so on one that stands alone."""
    found = {part: unpack(form) for part, form in forms.items() if not parts_of(form)}
    leaning = {part: unpack(form, found) for part, form in forms.items() if part not in found}
    return found | leaning


def _exchange(columns: _Row, parts: Mapping[bytes, bytes]) -> Exchange:
    # Rows have their key and profile behind the columns.
    return exchange_of(dict(zip(COLUMNS, columns, strict=False)), parts)
