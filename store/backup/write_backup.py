"""Write a backup of a data directory and its database, and check what was written."""

import datetime as dt
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from store.backup.archive import ArchiveWriter, check_archive
from store.backup.files import write_files
from store.backup.tables import Report, copy_tables_out


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSummary:
    """What a backup holds."""

    files: int
    rows: dict[str, int]
    """The number of rows by table."""

    size: int
    """Bytes of the archive."""


async def write_backup(
    target: Path, root: Path, database_url: str, *, version: str, now: dt.datetime, report: Report
) -> BackupSummary:
    """Write a backup of a data directory to a new file, mode 0600, and read it again to check every digest.

    The file has its name only when it is whole. Raises DatabaseError, OSError and BadArchive.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            archive = ArchiveWriter(out, {"playhead": version, "created_at": now.isoformat(timespec="seconds")})
            report("files")
            files = write_files(archive, root)
            rows = await copy_tables_out(database_url, archive, report)
            archive.finish()
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        report("checking what was written")
        check_archive(part)
        _name_file(part, target)
    finally:
        part.unlink(missing_ok=True)
    return BackupSummary(files=files, rows=rows, size=size)


def _name_file(part: Path, target: Path) -> None:
    """Rename the finished file. Raises FileExistsError if there is one of its name by now."""
    # Not every file system has hard links, which alone would make this one step.
    if target.exists(follow_symlinks=False):
        raise FileExistsError(errno.EEXIST, "a file of this name was created meanwhile", str(target))
    part.rename(target)
