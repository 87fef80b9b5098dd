"""Find the format of a file by its content, and read its interactions."""

import gzip
import mmap
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any, Final, cast

import msgspec

from store.bundle.bundle import CONFLICT, CONFLICTED
from store.foreign import har, httprr, jsonl, vcr
from store.foreign.contents import Format, Found, NotReadable

LARGEST: Final = 512 << 20
"""Bytes of a file, and of what a compressed one opens to."""

RATIO: Final = 100
"""How many times larger than itself a compressed file may be when it is opened."""

FREE: Final = 16 << 20
"""Bytes to which a compressed file may open whatever the ratio is."""

STEP: Final = 1 << 20

_SUFFIXES: Final = re.compile(r"(\.(ya?ml|json|har|jsonl|ndjson|cassette|llm|vcr|httprr|gz))+$", re.IGNORECASE)


_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file, opened."""

    form: Format
    size: int
    found: Iterator[Found]
    """Nothing for a bundle: those have a reader of their own."""


def opened(path: Path, form: Format | None = None) -> Source:
    """The file, its interactions read as they are asked for. Raises NotReadable, here or on the way, and OSError."""
    status = path.stat()
    if not S_ISREG(status.st_mode) and not S_ISDIR(status.st_mode):
        raise NotReadable("it is a pipe or a device, and is read more than once; write it to a file first")
    size = status.st_size
    if size == 0:
        raise NotReadable("it is empty; save or export it again")
    if size > LARGEST:
        raise NotReadable(f"it has more than {LARGEST:,} bytes; split it")
    with path.open("rb") as file:
        # Unmapped when nobody refers to it any more: entries that were found do, as long as they wait.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data: Any = _gunzipped(mapped) if mapped[:2] == _GZIP else mapped
    wanted = form or recognized(data)
    return Source(form=wanted, size=size, found=_found(data, wanted))


def plain(path: Path) -> IO[bytes]:
    """The file's own bytes, of a compressed one that `opened` has taken what is in it."""
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if compressed else path.open("rb")


def named(path: Path) -> str:
    """The name that a run from this file gets."""
    stem = _SUFFIXES.sub("", path.name)
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", stem).strip("-.")[:128] or "imported"


_BUNDLE: Final = re.compile(rb'\{\s*"playhead"\s*:\s*"bundle"')
"""As ours begin, and as a later version or a hand might write it: whoever reads it then says what is wrong."""

_SEAL: Final = re.compile(rb',"check":"sha256:[0-9a-f]{64}"\}\s*\Z')
"""As every line of ours ends: where the first one is gone, the next one tells."""

_ENDING: Final = 100
"""Bytes at the end of a line that hold that."""

_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs on Windows write."""

_ABSENT: Final = msgspec.Raw(b"")


class _Marks(msgspec.Struct):
    """The members by which one JSON document is told from another."""

    log: msgspec.Raw = _ABSENT
    request: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    response_json: msgspec.Raw = _ABSENT


_marks = msgspec.json.Decoder(_Marks)


def recognized(data: Any) -> Format:
    """The format of a file by what it holds."""
    first = _first_line(data)
    if _BUNDLE.match(first.removeprefix(_MARK)) or _SEAL.search(first, len(first) - _ENDING):
        return "bundle"
    if first.startswith(CONFLICT[0]):
        if _BUNDLE.search(data):
            return "bundle"
        raise NotReadable(f"its first line is {CONFLICTED}")
    if first.startswith(httprr.MARK):
        return "httprr"
    if not first.startswith((b"{", _MARK)):
        return "vcr"
    line = _marked(first)
    if line is not None and (line.response_json or (line.response and not _is_http(line.request))):
        return "jsonl"
    whole = line if len(data) <= len(first) + 2 else _marked(data)
    if whole is not None:
        return "har" if whole.log else "vcr"
    return "vcr" if line is None else "jsonl"


def _is_http(value: msgspec.Raw) -> bool:
    return bytes(value)[:1] == b"{" and b'"method"' in bytes(value)


def _first_line(data: Any) -> bytes:
    start = 0
    while data[start : start + 1].isspace():
        start += 1
    end = data.find(b"\n", start)
    return bytes(data[start : end if end >= 0 else len(data)])


def _marked(data: Any) -> _Marks | None:
    try:
        return _marks.decode(_without_mark(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _without_mark(data: Any) -> Any:
    """Without the byte order mark."""
    return memoryview(data)[3:] if data[:3] == _MARK else data


def _found(data: Any, form: Format) -> Iterator[Found]:
    match form:
        case "bundle":
            return iter(())
        case "har":
            return har.read(_without_mark(data))
        case "jsonl":
            return jsonl.read(_lines(data))
        case "httprr":
            return httprr.read(bytes(data))
        case "vcr":
            plain = bytes(_without_mark(data))
            return vcr.from_json(plain) if _is_json(plain) else vcr.from_yaml(plain)


def _lines(data: Any) -> Iterator[bytes]:
    """The lines of a file, as they are asked for."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield bytes(data[at:end]).removesuffix(b"\r")
        at = end + 1


def _is_json(data: bytes) -> bool:
    first = data.lstrip()[:1]
    return first == b"[" or (first == b"{" and _marked(data) is not None)


def _gunzipped(data: Any) -> Any:
    """What a gzip file opens to, in a file without a name: memory holds one step of it, and pages of it as they are read."""
    with tempfile.TemporaryFile(buffering=0) as file:
        size = 0
        for opened in _steps(data):
            size += len(opened)
            if size > LARGEST:
                raise NotReadable(f"it opens to more than {LARGEST:,} bytes; split it")
            if size > max(FREE, RATIO * len(data)):
                raise NotReadable(f"it opens to more than {RATIO} times its size; unpack it yourself if you trust it")
            file.write(opened)
        if not size:
            raise NotReadable("it is empty; save or export it again")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _steps(data: Any) -> Iterator[bytes]:
    """What a gzip file opens to, a step at a time. Raises NotReadable."""
    opener = zlib.decompressobj(wbits=31)
    waiting = b""
    try:
        for start in range(0, len(data), STEP):
            waiting += data[start : start + STEP]
            while waiting:
                yield opener.decompress(waiting, STEP)
                waiting = opener.unconsumed_tail
                if opener.eof:
                    return
    except zlib.error as error:
        raise NotReadable(f"it is no gzip file: {error}") from None
    raise NotReadable("its gzip breaks off")
