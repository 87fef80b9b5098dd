"""Restore a backup into a data directory and a database that are empty.

The whole archive is checked before anything is written. The data directory is built beside its place and gets its name at the
end, and the database is filled in one transaction: what fails leaves nothing half restored. What a killed restore has left, the next one
of the same name removes.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from store.backup.archive import MANIFEST, TABLES, Member, check_archive, read_manifest, read_members
from store.backup.files import restore_piece
from store.backup.tables import Report, copy_tables_in
from store.datadir import open_data_dir
from store.embedded.postgres import ensure_server


class NotEmpty(Exception):
    """There is something where a backup was to be restored. The message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSummary:
    """What was restored."""

    created_at: str
    """When the backup was made (RFC 3339)."""

    files: int
    rows: dict[str, int]
    """The number of rows by table."""


async def restore_backup(source: Path, root: Path, database_url: str | None, *, report: Report) -> RestoreSummary:
    """Restore a backup. Without a database URL, the data directory gets a database of its own.

    Raises NotEmpty, BadArchive, DatabaseError, EmbeddedPostgresError, DataDirError and OSError.
    """
    _require_empty(root)
    for leftover in _remove_leftovers(root):
        report(f"removed {leftover}, which a restore that was killed had left")
    _require_space(source, root)
    report("checking the backup")
    check_archive(source)
    manifest = read_manifest(source)
    new = _make_directory_beside(root)
    handle = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # until this process ends: then it is a leftover
        members = read_members(source)
        rest, files = _restore_files(new, members)
        data = open_data_dir(new)
        async with _database(database_url, data.postgres) as url:
            rows = await copy_tables_in(url, rest, report)
        os.rename(new, root)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    finally:
        os.close(handle)
    return RestoreSummary(created_at=str(manifest["created_at"]), files=files, rows=rows)


def _make_directory_beside(root: Path) -> Path:
    root.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=_prefix(root), dir=root.parent))
    new.chmod(0o711 if os.geteuid() == 0 else 0o700)  # as `open_data_dir` makes it
    return new


def _prefix(root: Path) -> str:
    return f".{root.name}.restore-"


def _remove_leftovers(root: Path) -> Iterator[Path]:
    """Remove and yield the directories that restores of this name have left which were killed."""
    for path in sorted(root.parent.glob(f"{glob.escape(_prefix(root))}*")):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # not ours
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
            yield path
        except OSError:
            continue  # another restore fills it, or it belongs to somebody else
        finally:
            os.close(handle)


def _restore_files(root: Path, members: Iterator[Member]) -> tuple[Iterator[Member], int]:
    """Restore the files, and return the members from `tables.json` on, and the number of files."""
    names: set[str] = set()
    for member in members:
        if member.name == TABLES:
            return chain((member,), members), len(names)
        if member.name != MANIFEST:
            restore_piece(root, member)
            names.add(member.piece_of)
    return members, len(names)


@contextlib.asynccontextmanager
async def _database(url: str | None, directory: Path) -> AsyncIterator[str]:
    if url is not None:
        yield url
        return
    with ensure_server(directory) as embedded:
        yield embedded.dsn


def _require_empty(root: Path) -> None:
    if root.is_dir() and any(root.iterdir()):
        raise NotEmpty(f"{root} is not empty")
    if root.exists(follow_symlinks=False) and not root.is_dir():
        raise NotEmpty(f"{root} is not a directory")


def _require_space(source: Path, root: Path) -> None:
    existing = next(path for path in (root, *root.parents) if path.exists())
    size, free = source.stat().st_size, shutil.disk_usage(existing).free
    if free < size:
        raise OSError(f"the disk of {existing} has {free >> 20:,} MiB free, and the backup alone has {size >> 20:,}")
