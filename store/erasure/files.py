"""Erase from the files of a data directory: what spools have drained, recordings being replayed, damaged records."""

import asyncio
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from store.erasure.mentions import is_file_about, is_file_of, is_quoting
from store.spool.cursor import load_cursor
from store.spool.place import spool_directories
from store.spool.segment import read_head, segment_numbers, segment_path

COMMIT_TRIES: Final = 15
COMMIT_PAUSE: Final = 0.2
"""How often, and after how many seconds, to look whether the position of a spool is committed, which happens every second."""

_HEAD: Final = 512
_BLOCK: Final = 1 << 20


class ErasedFiles(NamedTuple):
    """How much was erased from files, and what may still have something."""

    spool_bytes: int
    replay_files: int
    damaged_files: int
    remains: list[str]


NO_FILES: Final = ErasedFiles(0, 0, 0, [])


async def erase_files(root: Path, project: str, names: Collection[str]) -> ErasedFiles:
    """Erase from the files of a data directory what names these runs or exchanges. All spools must be drained."""
    open_spools: list[str] = []
    for _ in range(COMMIT_TRIES):
        open_spools = [spool.name for spool in spool_directories(root / "spool") if not is_drained(spool)]
        if not open_spools:
            break
        await asyncio.sleep(COMMIT_PAUSE)
    spool_bytes = sum(
        [await asyncio.to_thread(overwrite_drained, spool) for spool in spool_directories(root / "spool")]
    )
    replays = await asyncio.to_thread(
        _delete_matching, list(_files(root / "replays")), lambda content: is_file_about(content, project, names)
    )
    damaged = [root / "damaged", *(spool / "damaged" for spool in spool_directories(root / "spool"))]
    damaged_files = [file for directory in damaged for file in _files(directory)]
    # Nothing says where a name begins or ends in bytes that cannot be read.
    needles = [name.encode() for name in names]
    deleted_count = await asyncio.to_thread(
        _delete_matching, damaged_files, lambda content: any(needle in content for needle in needles)
    )
    remains = [
        f"the spool {name} has exchanges that have not ended: what they have sent is stored when they end"
        for name in open_spools
    ]
    if len(damaged_files) > deleted_count:
        remains.append(
            f"{len(damaged_files) - deleted_count} damaged records cannot be read: delete {root}/damaged and spool/*/damaged"
        )
    return ErasedFiles(spool_bytes, replays, deleted_count, remains)


def quoting_files(root: Path, project: str, text: str) -> list[Path]:
    """Return the reports of a project's replays in a data directory that quote a text."""
    found = []
    for file in (root / "replays").glob("*.json"):
        with suppress(FileNotFoundError):
            content = file.read_bytes()
            if is_file_of(content, project) and is_quoting(content, text):
                found.append(file)
    return found


def is_drained(spool: Path) -> bool:
    """Whether everything that is in a spool now is committed."""
    numbers = segment_numbers(spool)
    if not numbers:
        return True
    last = segment_path(spool, numbers[-1])
    with last.open("rb") as file:
        head, size = read_head(file.read(_HEAD)), os.fstat(file.fileno()).st_size
    is_empty = size <= (head.size if head else 0)
    cursor = load_cursor(spool)
    return is_empty if cursor is None else is_empty or (cursor.segment, cursor.offset) >= (numbers[-1], size)


def overwrite_drained(spool: Path) -> int:
    """Overwrite with zeros what the cursor of a spool has passed; return how many bytes. Its reader and writer never go back."""
    cursor = load_cursor(spool)
    if cursor is None or cursor.segment not in segment_numbers(spool):
        return 0
    with segment_path(spool, cursor.segment).open("r+b") as file:
        head = read_head(file.read(_HEAD))
        start = end = head.size if head else 0
        end = min(max(cursor.offset, start), os.fstat(file.fileno()).st_size)
        for at in range(start, end, _BLOCK):
            os.pwrite(file.fileno(), bytes(min(_BLOCK, end - at)), at)
        os.fsync(file.fileno())
    return end - start


def _files(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        yield from (path for path in directory.rglob("*") if path.is_file())


def _delete_matching(files: Collection[Path], is_meant: Callable[[bytes], bool]) -> int:
    """Delete the files with such content; return how many."""
    deleted_count = 0
    for file in files:
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            continue
        if is_meant(content):
            file.unlink(missing_ok=True)
            deleted_count += 1
    return deleted_count
