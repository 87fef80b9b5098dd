"""Store bytes in Postgres: compressed, and what a conversation repeats only once.

A stored body is a *form*: one tag byte and its content.

    0  the bytes    1  the bytes in zstd    2  composed: slices of parts, and the bytes between
    3  the bytes in zstd with the first dictionary    4  the hash of a part, and the bytes in zstd with that and the first dictionary

An agent sends its whole history with every request. So the large values and the array elements of a JSON body are
looked up by their hash among what its run has stored already; neighbours that are new become one *part* together, and
the body keeps slices of parts. Nothing is parsed and written again: the cuts are byte positions in the body as it came,
so that every form gives back exactly its bytes, whatever the dialect.

What a run says it says in the same words, under the same headers. So from its second exchange on a run has a *primer*: a part
with a head and the beginning of a body, for all that is short to be compressed with. A primer leans on nothing else.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import zstandard

from store.database.dictionary import FIRST

RAW, ZSTD, COMPOSED, SHORT, PRIMED = b"\x00", b"\x01", b"\x02", b"\x03", b"\x04"
LEVEL = 3
COMPRESS_FROM = 32
SHORT_TO = 8192
"""Longer bytes find more in themselves than in a dictionary."""

PRIMER_SIZE = 4096
"""Bytes of a primer at most."""

PRIMERS = 64
"""How many are kept ready for use."""

SPLIT_FROM = 2048
"""Smaller bodies are stored whole: a part of their own would cost more than they weigh."""

LARGE = 256
"""Smaller members of the body stay in the text between the slices."""

SMALLEST_PART = 128
HASH_SIZE = 16
"""128 bits of SHA-256 find a part; the digest of the whole body, in full, proves it when it is read."""

SEPARATORS = b", \t\r\n"

_NONE: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class Corrupt(Exception):
    """A stored body is not what was stored."""


class Element(NamedTuple):
    """A stretch of a body that may have been sent before."""

    start: int
    end: int
    hash: bytes


class ElementPlace(NamedTuple):
    """Where the bytes of an element are kept."""

    part: bytes
    offset: int
    length: int
    before: bytes
    """What stands between it and the element before, in the same part."""


class Slice(NamedTuple):
    """Some bytes of a part."""

    part: bytes
    offset: int
    length: int


class Plan(NamedTuple):
    """A body's form, and what has to be stored with it."""

    form: bytes
    parts: dict[bytes, bytes]
    places: dict[bytes, ElementPlace]


class _Tools(threading.local):
    """zstd's contexts are costly to make and must not be shared between threads."""

    def __init__(self) -> None:
        words = _words(b"")
        self.compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress
        self.compress_short = zstandard.ZstdCompressor(level=LEVEL, dict_data=words).compress
        self.decompress_short = zstandard.ZstdDecompressor(dict_data=words).decompress
        self.compress_primed = lru_cache(PRIMERS)(_primed_compressor)
        self.decompress_primed = lru_cache(PRIMERS)(_primed_decompressor)


def _words(primer: bytes) -> zstandard.ZstdCompressionDict:
    words = zstandard.ZstdCompressionDict(FIRST + primer, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    words.precompute_compress(level=LEVEL)
    return words


def _primed_compressor(primer: bytes) -> Callable[[bytes], bytes]:
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=_words(primer)).compress


def _primed_decompressor(primer: bytes) -> Callable[[bytes], bytes]:
    words = zstandard.ZstdCompressionDict(FIRST + primer, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdDecompressor(dict_data=words).decompress


_tools = _Tools()
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Primer(NamedTuple):
    """A part to compress with."""

    part: bytes
    data: bytes

    @classmethod
    def of(cls, head: bytes, body: bytes) -> "Primer":
        """One for the run of this exchange."""
        data = (head + body)[:PRIMER_SIZE]
        return cls(hash_of(data), data)


def pack(data: bytes, primer: Primer | None = None) -> bytes:
    """The form of bytes that stand alone, or lean on a primer only."""
    if len(data) < COMPRESS_FROM:
        return RAW + data
    if len(data) > SHORT_TO:
        form = ZSTD + _tools.compress(data)
    elif primer is None:
        form = SHORT + _tools.compress_short(data)
    else:
        form = PRIMED + primer.part + _tools.compress_primed(primer.data)(data)
    return form if len(form) <= len(data) else RAW + data


def unpack(form: bytes, parts: Mapping[bytes, bytes] = _NONE) -> bytes:
    """The bytes of a form that is not composed. `parts` holds the bytes of all that `parts_of` names."""
    match form[:1]:
        case b"\x00":
            return form[1:]
        case b"\x01":
            return _tools.decompress(form[1:])
        case b"\x03":
            return _tools.decompress_short(form[1:])
        case b"\x04":
            primer = form[1 : 1 + HASH_SIZE]
            return _tools.decompress_primed(_present(parts, primer))(form[1 + HASH_SIZE :])
        case tag:
            raise Corrupt(f"a stored body has the unknown form {tag!r}")


def _present(parts: Mapping[bytes, bytes], part: bytes) -> bytes:
    if part not in parts:
        raise Corrupt(f"the part {part.hex()} of a stored body is gone")
    return parts[part]


def hash_of(data: bytes | msgspec.Raw) -> bytes:
    return hashlib.sha256(data).digest()[:HASH_SIZE]


def elements(body: bytes) -> tuple[Element, ...]:
    """What of a body is worth looking up, in order: large members of a JSON object, element by element where it is an array."""
    if len(body) < SPLIT_FROM or body[:1] != b"{":
        return ()
    found: list[Element] = []
    at = 0
    try:
        for value in _members.decode(body).values():
            # The decoder tells values and no positions. They come in order; where a name comes twice they may not,
            # and then a value is not found, or found where the same bytes stand: both are harmless.
            if len(raw := bytes(value)) >= LARGE and (start := body.find(raw, at)) >= 0:
                at = start + len(raw)
                found += _of_value(body, start, raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(found)


def _of_value(body: bytes, start: int, raw: bytes) -> list[Element]:
    if raw[:1] != b"[":
        return [Element(start, start + len(raw), hash_of(raw))]
    found = []
    at = start + 1
    for item in _items.decode(raw):
        # Between two elements there is a comma and white space, and an element begins with neither.
        while body[at] in SEPARATORS:
            at += 1
        end = at + len(memoryview(item))
        found.append(Element(at, end, hash_of(item)))
        at = end
    return found


def plan(
    body: bytes, cut: Sequence[Element], find: Callable[[bytes], ElementPlace | None], primer: Primer | None = None
) -> Plan:
    """The form of a body, given where elements of earlier bodies are kept (`find` by their hash)."""
    slices: list[tuple[int, int, Slice]] = []
    parts: dict[bytes, bytes] = {}
    places: dict[bytes, ElementPlace] = {}
    for stretch in _stretches(body, cut, find):
        start, end = stretch[0][0].start, stretch[-1][0].end
        if place := stretch[0][1]:
            slices.append((start, end, Slice(place.part, place.offset, end - start)))
        elif end - start >= SMALLEST_PART:
            part = hash_of(data := body[start:end])
            parts[part] = pack(data, primer)
            slices.append((start, end, Slice(part, 0, end - start)))
            places |= _places(body, part, [element for element, _ in stretch])
    return Plan(_compose(body, slices, primer) if slices else pack(body, primer), parts, places)


type _Stretch = list[tuple[Element, ElementPlace | None]]


def _stretches(body: bytes, cut: Sequence[Element], find: Callable[[bytes], ElementPlace | None]) -> list[_Stretch]:
    """Neighbours taken together: such as are new, and such as lie side by side in one part."""
    found: list[_Stretch] = []
    end = 0
    there = None
    for element in cut:
        place = find(element.hash)
        between = body[end : element.start]
        if found and (_beside(there, place, between) if there and place else there is place and _neighbours(between)):
            found[-1].append((element, place))
        else:
            found.append([(element, place)])
        end, there = element.end, place
    return found


def _neighbours(between: bytes) -> bool:
    return not between.strip(SEPARATORS)


def _beside(there: ElementPlace, place: ElementPlace, between: bytes) -> bool:
    """Whether the part holds the one right after the other, with the same bytes between them as here."""
    offset = there.offset + there.length + len(between)
    return place.offset == offset and place.part == there.part and place.before == between


def _places(body: bytes, part: bytes, stretch: Sequence[Element]) -> dict[bytes, ElementPlace]:
    first = end = stretch[0].start
    places = {}
    for element in stretch:
        size = element.end - element.start
        places[element.hash] = ElementPlace(part, element.start - first, size, body[end : element.start])
        end = element.end
    return places


def _compose(body: bytes, slices: Sequence[tuple[int, int, Slice]], primer: Primer | None) -> bytes:
    """The layout (MessagePack: for each slice the length of the text before it, part, offset, length), then the texts' form."""
    layout: list[int | bytes] = []
    between = []
    at = 0
    for start, end, (part, offset, length) in slices:
        layout += (start - at, part, offset, length)
        between.append(body[at:start])
        at = end
    between.append(body[at:])
    head = _encode(layout)
    return COMPOSED + len(head).to_bytes(4) + head + pack(b"".join(between), primer)


_encode = msgspec.msgpack.Encoder().encode
_layout = msgspec.msgpack.Decoder(list[int | bytes])


def parts_of(form: bytes) -> frozenset[bytes]:
    """The parts that a form is composed of or leans on. One of them may lean on another one in its turn."""
    match form[:1]:
        case b"\x02":
            layout, between = _open(form)
            return frozenset(piece.part for _, piece in layout) | parts_of(between)
        case b"\x04":
            return frozenset((form[1 : 1 + HASH_SIZE],))
        case _:
            return frozenset()


def _open(form: bytes) -> tuple[list[tuple[int, Slice]], bytes]:
    """The slices of a composed form, and the form of what lies between them."""
    size = int.from_bytes(form[1:5])
    flat = iter(_layout.decode(form[5 : 5 + size]))
    return [(gap, Slice(*rest)) for gap, *rest in zip(flat, flat, flat, flat, strict=True)], form[5 + size :]  # type: ignore[misc, arg-type]


def unpacked_size(form: bytes) -> int:
    """How many bytes `restore` makes of a form, told without unpacking it."""
    match form[:1]:
        case b"\x00":
            return len(form) - 1
        case b"\x02":
            layout, between = _open(form)
            return sum(piece.length for _, piece in layout) + unpacked_size(between)
        case tag:
            start = 1 + (HASH_SIZE if tag == PRIMED else 0)
            try:
                return max(zstandard.frame_content_size(form[start : start + _FRAME_HEADER]), 0)
            except zstandard.ZstdError:
                return 0  # whoever unpacks it is told that it is damaged


_FRAME_HEADER: Final = 18
"""Bytes of a zstd frame's header at most (RFC 8878 3.1.1)."""


def restore(form: bytes, parts: Mapping[bytes, bytes]) -> bytes:
    """The bytes of a form. `parts` holds the bytes of all that `parts_of` names."""
    if form[:1] != COMPOSED:
        return unpack(form, parts)
    layout, rest = _open(form)
    between = unpack(rest, parts)
    pieces: list[bytes] = []
    at = 0
    for gap, (part, offset, length) in layout:
        pieces += (between[at : at + gap], _present(parts, part)[offset : offset + length])
        at += gap
    return b"".join((*pieces, between[at:]))
