"""Read a run as database rows, for a replay on this machine: bodies stay compressed until they are needed.

Writing (`store.query.rows_export`) and reading it takes a fraction of the time of a bundle. It is not for storage: only the
version that wrote it can read it.

    PLAYHEAD ROWS, then frames, each after its length in four bytes:  head, rows …, parts …, effects …, tail
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, overload

import msgspec

from calls.events import EffectBatch, Gap
from calls.model import Exchange, Headers
from store.bundle.bundle import BadBundle, Bundle, Entry
from store.bundle.bundle import read_bundle as read_bundle
from store.bundle.exchange_summary import ExchangeSummary
from store.database.blobs import UNAVAILABLE, referenced_parts, unpack
from store.database.rows import EMPTY_DIGEST, read_exchange
from store.database.schema_version import SCHEMA

MAGIC: Final = b"PLAYHEAD ROWS\n"

COLUMNS: Final = (
    *("id", "run", "started_at", "first_byte_at", "ended_at", "method", "url", "status", "outcome", "redactions"),
    *("request_digest", "response_digest", "head", "request_body", "response_body"),
)

_PACKED: Final = tuple(map(COLUMNS.index, ("head", "request_body", "response_body")))

PRELOAD_HEADER: Final = "playhead-preload"
"""The header in which workers show that they may load recordings ahead."""

HEAVY_BYTES: Final = 256 << 10
"""Bytes of packed bodies from which unpacking takes noticeable time."""

type _Row = tuple[Any, ...]


class RowsHead(msgspec.Struct, array_like=True):
    schema: str
    run: dict[str, Any]
    profiles: str


class NamedRecording(msgspec.Struct, array_like=True):
    """What a name means to a replay. It precedes the rows of the recording, if there is one."""

    run: str
    """The run that the name means: that of the replay of this name, else the name itself."""

    labels: dict[str, str]
    """The labels of that run."""

    requested: dict[str, Any] | None
    """The options of the replay or fork of this name that was created over REST; None without one."""


class Rows(msgspec.Struct, array_like=True, tag="rows"):
    rows: list[_Row]


class Parts(msgspec.Struct, array_like=True, tag="parts"):
    parts: list[tuple[bytes, bytes]]


class Effects(msgspec.Struct, array_like=True, tag="effects"):
    batches: list[EffectBatch]


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
    """The members of `store.database.rows.ExchangeHead` that an `ExchangeSummary` needs; skipping the rest is faster."""

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
_exchange_decoder = msgspec.msgpack.Decoder(_Exchange)
_head_decoder = msgspec.msgpack.Decoder(RowsHead)
_name_decoder = msgspec.msgpack.Decoder(NamedRecording)
_frame_decoder = msgspec.msgpack.Decoder(Rows | Parts | Effects | Tail)


def read_rows(content: bytes) -> Bundle:
    """Read a run. Raises BadBundle and CorruptData."""
    frames = _frames(content)
    head = _head_decoder.decode(next(frames))
    if head.schema != SCHEMA:
        raise BadBundle(1, f"the store server has another version ({head.schema}, not {SCHEMA}); restart it")
    rows: list[_Row] = []
    forms: dict[bytes, bytes] = {}
    effects: list[EffectBatch] = []
    for frame in frames:
        match _frame_decoder.decode(frame):
            case Rows(more):
                rows += more
            case Parts(parts):
                forms.update(parts)
            case Effects(batches):
                effects += batches
            case Tail(count, gaps):
                if count != len(rows):
                    break
                unavailable = {part: form for part, form in forms.items() if form[:1] == UNAVAILABLE}
                there = {part: form for part, form in forms.items() if part not in unavailable}
                entries = StoredRun(_without_unavailable(rows, unavailable), _unpack_parts(there))
                return Bundle(
                    run=head.run,
                    profiles=head.profiles,
                    entries=entries,
                    gaps=tuple(gaps),
                    effects=tuple(effects),
                )
    raise BadBundle(1, "the store server's answer is incomplete")


def read_named_recording(content: bytes) -> tuple[NamedRecording, Bundle | None]:
    """Read what a name means, and its recording if there is one. Raises BadBundle and CorruptData."""
    begin = 4 + int.from_bytes(content[:4])
    rows = content[begin:]
    return _name_decoder.decode(content[4:begin]), read_rows(rows) if rows else None


def encode_named_rows(head: NamedRecording, rows: bytes) -> bytes:
    """Return one of several recordings in an answer."""
    return encode_frame(head) + len(rows).to_bytes(4) + rows


def read_named_recordings(content: bytes) -> Iterator[tuple[NamedRecording, Bundle | None]]:
    """Read several recordings, each after its name. Raises BadBundle and CorruptData."""
    at = 0
    while at < len(content):
        begin = at + 4 + int.from_bytes(content[at : at + 4])
        end = begin + 4 + int.from_bytes(content[begin : begin + 4])
        rows = content[begin + 4 : end]
        yield _name_decoder.decode(content[at + 4 : begin]), read_rows(rows) if rows else None
        at = end


class StoredRun(Sequence[Entry]):
    """The exchanges of a run as they are stored. An item is unpacked each time it is read, which may raise CorruptData."""

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

    @property
    def size(self) -> int:
        """The bytes that it holds."""
        row_bytes = sum(len(row[place] or b"") for place in _PACKED for row in self._rows)
        return row_bytes + sum(map(len, self._parts.values()))

    @property
    def lacks_bodies(self) -> bool:
        """Whether object storage did not have a body at this time."""
        places = [COLUMNS.index("request_body"), COLUMNS.index("response_body")]
        return any((row[place] or b"")[:1] == UNAVAILABLE for row in self._rows for place in places)

    def summaries(self) -> Iterator[ExchangeSummary]:
        """Summarize all exchanges without unpacking their bodies."""
        return map(self._summary, self._rows)

    def _summary(self, row: _Row) -> ExchangeSummary:
        (
            name,
            _,
            started_at,
            _,
            ended_at,
            method,
            url,
            _,
            _,
            _,
            body,
            _,
            head,
            request_body,
            response_body,
            key,
            profile,
        ) = row
        fields = _exchange_decoder.decode(unpack(head, self._parts))
        request, kinds = fields.request, fields.request.chunks.kinds
        spoken = kinds is not None and kinds[0] != "data"
        if fields.exact:
            method, url = fields.exact
        body, whole = EMPTY_DIGEST if spoken else body, partial(_exchange, row, self._parts)
        version, headers = request.http_version, request.headers
        return ExchangeSummary(
            name,
            started_at,
            ended_at,
            method,
            url,
            version,
            headers,
            body,
            fields.actor,
            spoken,
            key,
            profile,
            len(request_body or b"") + len(response_body or b"") > HEAVY_BYTES,
            whole,
        )


def load_recording(path: Path) -> Bundle:
    """Read a bundle or a rows bundle. Raises OSError, BadBundle, UnknownFormat and CorruptData."""
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
        file.seek(0)
        if begin != MAGIC:
            return read_bundle(file)
        try:
            return read_rows(file.read())
        except msgspec.MsgspecError as error:
            raise BadBundle(1, f"its rows cannot be read: {error}") from error


def is_rows_bundle(path: Path) -> bool:
    """Whether a file is a rows bundle. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def encode_frame(frame: msgspec.Struct) -> bytes:
    """Encode a frame with its length."""
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
        raise BadBundle(1, "the store server's answer is incomplete")


def _without_unavailable(rows: list[_Row], unavailable: Mapping[bytes, bytes]) -> list[_Row]:
    """Return the rows with why a part cannot be had in place of each body that needs it."""
    if not unavailable:
        return rows
    place = COLUMNS.index("request_body")
    found = []
    for row in rows:
        reason = next((unavailable[part] for part in referenced_parts(row[place]) if part in unavailable), None)
        found.append(row if reason is None else (*row[:place], reason, *row[place + 1 :]))
    return found


def _unpack_parts(forms: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Unpack all parts. A part that depends on another one depends on one that is independent."""
    found = {part: unpack(form) for part, form in forms.items() if not referenced_parts(form)}
    leaning = {part: unpack(form, found) for part, form in forms.items() if part not in found}
    return found | leaning


def _exchange(columns: _Row, parts: Mapping[bytes, bytes]) -> Exchange:
    # Rows have their key and profile after the columns.
    return read_exchange(dict(zip(COLUMNS, columns, strict=False)), parts)
