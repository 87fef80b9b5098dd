"""Detect the format of a file by its content, and read its interactions."""

import gzip
import mmap
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any, Final, cast

import msgspec

from store.bundle.sealed_lines import CONFLICT, CONFLICTED
from store.foreign.contents import Format, Found, NotReadable

LARGEST: Final = 512 << 20
"""Bytes of a file, and of the contents of a compressed one."""

RATIO: Final = 100
"""How many times larger than a compressed file its contents may be."""

FREE: Final = 16 << 20
"""Bytes of contents up to which the ratio does not matter."""

STEP: Final = 1 << 20

_SUFFIXES: Final = re.compile(r"(\.(ya?ml|json|har|jsonl|ndjson|cassette|llm|vcr|httprr|gz))+$", re.IGNORECASE)


_GZIP: Final = b"\x1f\x8b"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """An open file."""

    form: Format
    size: int
    items: Iterator[Found]
    """The contents of the file; none for a bundle, which has a reader of its own."""


def open_source(path: Path, form: Format | None = None) -> Source:
    """Open a file, whose items are read lazily. Raises OSError and, also while items are read, NotReadable."""
    status = path.stat()
    if not S_ISREG(status.st_mode) and not S_ISDIR(status.st_mode):
        raise NotReadable("it is a pipe or a device, which cannot be read twice; write it to a file first")
    size = status.st_size
    if size == 0:
        raise NotReadable("it is empty; save or export it again")
    if size > LARGEST:
        raise NotReadable(f"it is larger than {LARGEST:,} bytes; split it")
    with path.open("rb") as file:
        # Unmapped with the last reference; entries that are not parsed yet refer to it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data: Any = _gunzip(mapped) if mapped[:2] == _GZIP else mapped
    detected = form or detect_format(data)
    return Source(form=detected, size=size, items=_read_items(data, detected))


def open_plain(path: Path) -> IO[bytes]:
    """Open the bytes of a file that `open_source` has accepted, decompressed."""
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if compressed else path.open("rb")


def default_run_name(path: Path) -> str:
    """Derive the id of a run from a file name."""
    stem = _SUFFIXES.sub("", path.name)
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", stem).strip("-.")[:128] or "imported"


_BUNDLE: Final = re.compile(rb'\{\s*"playhead"\s*:\s*"bundle"')
"""The beginning of a bundle, also of one that a later version or a person has written: its reader reports what is wrong."""

_SEAL: Final = re.compile(rb',"check":"sha256:[0-9a-f]{64}"\}\s*\Z')
"""The end of every line of a bundle, which identifies one whose first line is missing."""

_ENDING: Final = 100
"""Bytes at the end of a line that contain the seal."""

_LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""The beginning of what Git has in place of a file that is kept in LFS and was not fetched."""

_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs on Windows write."""

_ABSENT: Final = msgspec.Raw(b"")


class _Marks(msgspec.Struct):
    """The members that distinguish the JSON formats."""

    log: msgspec.Raw = _ABSENT
    request: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    response_json: msgspec.Raw = _ABSENT


_marks = msgspec.json.Decoder(_Marks)


def detect_format(data: Any) -> Format:
    """Detect the format of a file by its content. Raises NotReadable."""
    first = _first_line(data)
    if _BUNDLE.match(first.removeprefix(_MARK)) or _SEAL.search(first, len(first) - _ENDING):
        return "bundle"
    if first.startswith(CONFLICT[0]):
        if _BUNDLE.search(data):
            return "bundle"
        raise NotReadable(f"its first line is {CONFLICTED}")
    if first.startswith(_LFS_POINTER):
        raise NotReadable("it is a Git LFS pointer in place of the file: fetch the file with `git lfs pull`")
    # Most files are bundles: its imports would take as long as reading one.
    from store.foreign import httprr

    if first.startswith(httprr.MARK):
        return "httprr"
    if not first.startswith((b"{", _MARK)):
        return "vcr"
    line = _decode_marks(first)
    if line is not None and (line.response_json or (line.response and not _is_http(line.request))):
        return "jsonl"
    whole = line if len(data) <= len(first) + 2 else _decode_marks(data)
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


def _decode_marks(data: Any) -> _Marks | None:
    try:
        return _marks.decode(_without_mark(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _without_mark(data: Any) -> Any:
    """Remove the byte order mark."""
    return memoryview(data)[3:] if data[:3] == _MARK else data


def _read_items(data: Any, form: Format) -> Iterator[Found]:
    if form == "bundle":
        return iter(())
    # Imported here, because most recordings are bundles.
    from store.foreign import har, jsonl, vcr

    match form:
        case "har":
            return har.read_har(_without_mark(data))
        case "jsonl":
            return jsonl.read_jsonl(_lines(data))
        case "httprr":
            from store.foreign import httprr

            return httprr.read_httprr(bytes(data))
        case "vcr":
            plain = bytes(_without_mark(data))
            return vcr.from_json(plain) if _is_json(plain) else vcr.from_yaml(plain)


def _lines(data: Any) -> Iterator[bytes]:
    """Yield the lines of a file."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield bytes(data[at:end]).removesuffix(b"\r")
        at = end + 1


def _is_json(data: bytes) -> bool:
    first = data.lstrip()[:1]
    return first == b"[" or (first == b"{" and _decode_marks(data) is not None)


def _gunzip(data: Any) -> Any:
    """Decompress a gzip file into an unnamed file, and map that. Raises NotReadable."""
    with tempfile.TemporaryFile(buffering=0) as file:
        size = 0
        for opened in _gunzip_steps(data):
            size += len(opened)
            if size > LARGEST:
                raise NotReadable(f"its contents are larger than {LARGEST:,} bytes; split it")
            if size > max(FREE, RATIO * len(data)):
                raise NotReadable(
                    f"its contents are more than {RATIO} times its size; decompress it first if you trust it"
                )
            file.write(opened)
        if not size:
            raise NotReadable("it is empty; save or export it again")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _gunzip_steps(data: Any) -> Iterator[bytes]:
    """Decompress a gzip file step by step. Raises NotReadable."""
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
        raise NotReadable(f"it is not a valid gzip file: {error}; save or export it again") from None
    raise NotReadable("its gzip data is incomplete; save or export it again")
