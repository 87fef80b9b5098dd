"""Replace a file that holds a recording: atomically, and by one command at a time.

The new content is written to `.NAME.part` beside the file, and that part file is locked. A command that reads a
recording, runs for a while and then replaces it holds the lock from the beginning: otherwise the last of two such
commands would undo what the other one recorded.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from proxy.errors import Failure

FileIdentity = tuple[int, int, int] | None


class FileLocked(Failure):
    """Another command is writing the file."""


@dataclass(slots=True)
class FileReplacement:
    """The right to replace one file, from `lock_for_replacement`."""

    path: Path
    part_file: IO[bytes]
    original_identity: FileIdentity = field(default=None)

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace the file by these lines. Raises Failure if it was changed since it was locked."""
        self.part_file.writelines(lines)
        self.finish_replacement()

    def remove(self) -> None:
        """Remove the file before its replacement is written. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.original_identity = None

    def finish_replacement(self) -> None:
        """Move the part file to the file's place. Raises Failure if the file was changed since it was locked."""
        self.part_file.flush()
        os.fsync(self.part_file.fileno())
        if _file_identity(self.path) != self.original_identity:
            raise Failure(f"{self.path} was changed by another program and stays as it is: run the command again")
        _part_path(self.path).replace(self.path)


@contextmanager
def lock_for_replacement(path: Path) -> Iterator[FileReplacement]:
    """Lock a file against other commands that would replace it. Raises FileLocked and OSError."""
    path = path.resolve()
    part = _lock_part_file(path)
    try:
        yield FileReplacement(path, part, _file_identity(path))
    finally:
        # The part file is ours while we hold the lock, unless it has become the file.
        if _is_open_at(part, _part_path(path)):
            _part_path(path).unlink()
        part.close()


def write_whole(path: Path, lines: Iterable[bytes]) -> None:
    """Replace a file by these lines, atomically. Raises Failure and OSError."""
    with lock_for_replacement(path) as claimed:
        claimed.replace(lines)


_TRIES: Final = 100


def _lock_part_file(path: Path) -> IO[bytes]:
    for _ in range(_TRIES):
        part = _part_path(path).open("ab")
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            part.close()
            raise FileLocked(
                f"another command is writing the recording {path}: wait until it ends, or use another file"
            ) from error
        # The file that we opened may have been renamed or removed before we got the lock.
        if _is_open_at(part, _part_path(path)):
            # A killed command leaves its part file behind.
            part.truncate(0)
            return part
        part.close()
    raise Failure(f"{_part_path(path)} is replaced again and again: find the program that writes it")


def _part_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _is_open_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _file_identity(path: Path) -> FileIdentity:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
