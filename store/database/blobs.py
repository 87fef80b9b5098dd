"""Encode bytes for Postgres: compressed, and content that a conversation repeats only once.

A stored body is a *form*: one tag byte and its content.

    0  the bytes    1  the bytes in zstd    2  composed: slices of parts, and the bytes between
    3  the bytes in zstd with the first dictionary    4  the hash of a part, and the bytes in zstd with that and the first dictionary
    5  bytes in object storage (`object_forms`)       6  bytes that cannot be had, and why

An agent sends its whole history with every request. So the large values and the array elements of a JSON body are
looked up by their hash in the stored content of its run. Adjacent new elements become one *part*, and the body keeps slices of
parts. No JSON is re-encoded: slices are byte ranges of the body as it came, so every form restores exactly its bytes, in any
dialect.

The requests of a run resemble each other. So from its second exchange on a run has a *primer*: a part with a head and the
beginning of a body, with which short bytes of the run are compressed. A primer depends on no other part.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, cast, get_args

import msgspec
import zstandard

from calls.codec.elements import HASH_SIZE, SEPARATORS, Element
from store.database.dictionary import FIRST

RAW, ZSTD, COMPOSED, SHORT, PRIMED = b"\x00", b"\x01", b"\x02", b"\x03", b"\x04"
OBJECT, UNAVAILABLE = b"\x05", b"\x06"
OBJECT_SIZE: Final = slice(1, 9)
"""Where a form of an object has the size of its bytes."""

LEVEL = 3
SHORT_LEVEL = 1
"""Levels of zstd. With a dictionary, short content takes a third less time at level 1, and 2.6 % more bytes."""

MIN_COMPRESSED_SIZE = 32
MAX_SHORT_SIZE = 8192
"""Bytes up to which a dictionary is used; longer content has enough repetition of its own."""

PRIMER_SIZE = 4096
"""Bytes of a primer at most."""

CACHED_PRIMERS = 64
"""Compressors and decompressors with a primer that each thread caches."""

MIN_PART_SIZE = 128

type Unavailability = Literal["missing", "damaged", "unreachable", "erased"]
"""Why bytes cannot be had: their object is missing or damaged, the object storage does not answer, or retention has erased them."""

_NONE: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class CorruptData(Exception):
    """Stored bytes are damaged."""


class BodyUnavailable(CorruptData):
    """Bytes cannot be had, although what is stored of them in the database is whole; the message says why."""

    @property
    def is_temporary(self) -> bool:
        """Whether the same may work later."""
        return self.kind == "unreachable"

    def __init__(self, kind: Unavailability, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class ElementPlace(msgspec.Struct, frozen=True):
    """The stored place of an element."""

    part: bytes
    offset: int
    length: int
    before: bytes
    """The bytes between it and the previous element of the same part."""


class Slice(msgspec.Struct, frozen=True):
    """A range of a part."""

    part: bytes
    offset: int
    length: int


class FormPlan(msgspec.Struct, frozen=True):
    """A body's form, the new parts to be stored with it, and the places of their elements."""

    form: bytes
    parts: dict[bytes, bytes]
    places: dict[bytes, ElementPlace]


class _Codecs(threading.local):
    """The zstd compressors of a thread, which are slow to create and must not be shared between threads."""

    def __init__(self) -> None:
        words = _make_dictionary(b"")
        self.compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress
        self.compress_short = zstandard.ZstdCompressor(level=SHORT_LEVEL, dict_data=words).compress
        self.decompress_short = zstandard.ZstdDecompressor(dict_data=words).decompress
        self.compress_primed = lru_cache(CACHED_PRIMERS)(_primed_compressor)
        self.decompress_primed = lru_cache(CACHED_PRIMERS)(_primed_decompressor)


def _make_dictionary(primer: bytes) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(FIRST + primer, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    dictionary.precompute_compress(level=SHORT_LEVEL)
    return dictionary


def _primed_compressor(primer: bytes) -> Callable[[bytes], bytes]:
    return zstandard.ZstdCompressor(level=SHORT_LEVEL, dict_data=_make_dictionary(primer)).compress


def _primed_decompressor(primer: bytes) -> Callable[[bytes], bytes]:
    words = zstandard.ZstdCompressionDict(FIRST + primer, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdDecompressor(dict_data=words).decompress


_codecs = _Codecs()


class Primer(NamedTuple):
    """A part that short bytes of a run are compressed with."""

    part: bytes
    data: bytes

    @classmethod
    def create(cls, head: bytes, body: bytes) -> "Primer":
        """Create the primer of a run from an exchange."""
        data = (head + body)[:PRIMER_SIZE]
        return cls(part_hash(data), data)


def pack(data: bytes, primer: Primer | None = None) -> bytes:
    """Encode bytes as a form that is not composed."""
    if len(data) < MIN_COMPRESSED_SIZE:
        return RAW + data
    if len(data) > MAX_SHORT_SIZE:
        form = ZSTD + _codecs.compress(data)
    elif primer is None:
        form = SHORT + _codecs.compress_short(data)
    else:
        form = PRIMED + primer.part + _codecs.compress_primed(primer.data)(data)
    return form if len(form) <= len(data) else RAW + data


def unpack(form: bytes, parts: Mapping[bytes, bytes] = _NONE) -> bytes:
    """Decode a form that is not composed. `parts` has the bytes of its `referenced_parts`. Raises `CorruptData`."""
    try:
        return _unpack(form, parts)
    except zstandard.ZstdError as error:
        raise CorruptData(f"stored bytes cannot be decompressed: {error}") from error


def _unpack(form: bytes, parts: Mapping[bytes, bytes]) -> bytes:
    match form[:1]:
        case b"\x00":
            return form[1:]
        case b"\x01":
            return _codecs.decompress(form[1:])
        case b"\x03":
            return _codecs.decompress_short(form[1:])
        case b"\x04":
            primer = form[1 : 1 + HASH_SIZE]
            return _codecs.decompress_primed(_get_part(parts, primer))(form[1 + HASH_SIZE :])
        case b"\x05":
            raise BodyUnavailable("missing", "the bytes are in object storage, and were not loaded from there")
        case b"\x06":
            kind, _, reason = form[1:].decode("utf-8", "replace").partition(":")
            if kind not in get_args(Unavailability.__value__):
                raise CorruptData(f"a stored body says {kind[:20]!r} of itself")
            raise BodyUnavailable(cast("Unavailability", kind), reason)
        case tag:
            raise CorruptData(f"a stored body has the unknown form {tag!r}")


def _get_part(parts: Mapping[bytes, bytes], part: bytes) -> bytes:
    if part not in parts:
        raise CorruptData(f"the part {part.hex()} of a stored body is missing")
    return parts[part]


def unavailable_form(kind: Unavailability, reason: str) -> bytes:
    """Return the form of bytes that cannot be had; `unpack` raises `BodyUnavailable` with the reason."""
    return UNAVAILABLE + f"{kind}:{reason}".encode()


def part_hash(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()[:HASH_SIZE]


type Pack = Callable[[bytes, Primer | None], bytes]
"""Encodes bytes as a form that is not composed."""


def plan_form(
    body: bytes,
    elements: Sequence[Element],
    find: Callable[[bytes], ElementPlace | None],
    primer: Primer | None = None,
    encode: Pack = pack,
) -> FormPlan:
    """Encode a body as a form. `find` returns the place of a stored element by its hash, `encode` the forms of what is new."""
    slices: list[tuple[int, int, Slice]] = []
    parts: dict[bytes, bytes] = {}
    places: dict[bytes, ElementPlace] = {}
    for group in _group_neighbours(body, elements, find):
        start, end = group[0][0].start, group[-1][0].end
        if place := group[0][1]:
            slices.append((start, end, Slice(place.part, place.offset, end - start)))
        elif end - start >= MIN_PART_SIZE:
            part = part_hash(data := body[start:end])
            parts[part] = encode(data, primer)
            slices.append((start, end, Slice(part, 0, end - start)))
            places |= _element_places(body, part, [element for element, _ in group])
    form = _compose(body, slices, primer, encode) if slices else encode(body, primer)
    return FormPlan(form, parts, places)


type _Neighbours = list[tuple[Element, ElementPlace | None]]


def _group_neighbours(
    body: bytes, elements: Sequence[Element], find: Callable[[bytes], ElementPlace | None]
) -> list[_Neighbours]:
    """Group adjacent elements that are new, and those that are adjacent in one part."""
    groups: list[_Neighbours] = []
    end = 0
    part = b""
    offset = 0  # where the previous element ends in its part, if it is stored
    previous = None
    for element in elements:
        place = find(element.hash)
        between = body[end : element.start]
        if not groups:
            is_next = False
        elif place is None or previous is None:
            is_next = place is previous and not between.strip(SEPARATORS)
        else:
            # Whether the part has one element right after the other, with the same bytes between them as the body.
            is_next = place.offset == offset + len(between) and place.part == part and place.before == between
        if is_next:
            groups[-1].append((element, place))
        else:
            groups.append([(element, place)])
        end, previous = element.end, place
        if place is not None:
            part, offset = place.part, place.offset + place.length
    return groups


def _element_places(body: bytes, part: bytes, elements: Sequence[Element]) -> dict[bytes, ElementPlace]:
    first = end = elements[0].start
    places = {}
    for element in elements:
        size = element.end - element.start
        places[element.hash] = ElementPlace(part, element.start - first, size, body[end : element.start])
        end = element.end
    return places


def _compose(body: bytes, slices: Sequence[tuple[int, int, Slice]], primer: Primer | None, encode: Pack) -> bytes:
    """Encode the layout (MessagePack: for each slice the number of bytes before it, part, offset, length) and the bytes between."""
    layout: list[int | bytes] = []
    between = []
    at = 0
    for start, end, one in slices:
        layout += (start - at, one.part, one.offset, one.length)
        between.append(body[at:start])
        at = end
    between.append(body[at:])
    head = _encode(layout)
    return COMPOSED + len(head).to_bytes(4) + head + encode(b"".join(between), primer)


_encode = msgspec.msgpack.Encoder().encode
_layout = msgspec.msgpack.Decoder(list[int | bytes])


def referenced_parts(form: bytes) -> frozenset[bytes]:
    """The parts that are needed to decode a form. A part may itself need a primer."""
    match form[:1]:
        case b"\x02":
            layout, between = _read_layout(form)
            return frozenset(piece.part for _, piece in layout) | referenced_parts(between)
        case b"\x04":
            return frozenset((form[1 : 1 + HASH_SIZE],))
        case _:
            return frozenset()


def _read_layout(form: bytes) -> tuple[list[tuple[int, Slice]], bytes]:
    """The slices of a composed form, and the form of the bytes between them. Raises `CorruptData`."""
    size = int.from_bytes(form[1:5])
    try:
        flat = iter(_layout.decode(form[5 : 5 + size]))
        slices = [(gap, Slice(*rest)) for gap, *rest in zip(flat, flat, flat, flat, strict=True)]  # type: ignore[arg-type]
    except ValueError as error:
        raise CorruptData(f"the layout of a stored body is damaged: {error}") from error
    if any(
        type(gap) is not int or type(piece.part) is not bytes or type(piece.offset) is not int for gap, piece in slices
    ):
        raise CorruptData("the layout of a stored body is damaged")
    return slices, form[5 + size :]  # type: ignore[return-value]


def split_composed(form: bytes) -> tuple[bytes, bytes]:
    """Split a composed form into its layout with all before it, and the form of the bytes between the slices."""
    end = 5 + int.from_bytes(form[1:5])
    return form[:end], form[end:]


def unpacked_size(form: bytes) -> int:
    """The size of the body that `restore_body` returns, without decompressing it."""
    match form[:1]:
        case b"\x00":
            return len(form) - 1
        case b"\x05":
            return int.from_bytes(form[OBJECT_SIZE])
        case b"\x06":
            return 0
        case b"\x02":
            layout, between = _read_layout(form)
            return sum(piece.length for _, piece in layout) + unpacked_size(between)
        case tag:
            start = 1 + (HASH_SIZE if tag == PRIMED else 0)
            try:
                return max(zstandard.frame_content_size(form[start : start + _FRAME_HEADER]), 0)
            except zstandard.ZstdError:
                return 0  # decompressing reports the damage


_FRAME_HEADER: Final = 18
"""Bytes of a zstd frame's header at most (RFC 8878 3.1.1)."""


def restore_body(form: bytes, parts: Mapping[bytes, bytes]) -> bytes:
    """Decode a form. `parts` has the bytes of its `referenced_parts`."""
    if form[:1] != COMPOSED:
        return unpack(form, parts)
    layout, rest = _read_layout(form)
    between = unpack(rest, parts)
    pieces: list[bytes] = []
    at = 0
    for gap, one in layout:
        pieces += (between[at : at + gap], _get_part(parts, one.part)[one.offset : one.offset + one.length])
        at += gap
    return b"".join((*pieces, between[at:]))
