"""Write a file that holds a recording: whole or not at all, and by one command at a time.

The new content goes into `.NAME.part` beside the file, which is locked while it exists. A command that reads a recording,
runs for a while and then replaces it holds that lock from the beginning: else the last of two such commands would undo what
the other one recorded.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from proxy.errors import Failure

Identity = tuple[int, int, int] | None


class FileTaken(Failure):
    """Another command holds the file."""


@dataclass(slots=True)
class Claim:
    """The right to replace one file. Made by `claim`."""

    path: Path
    part: IO[bytes]
    before: Identity = field(default=None)

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put these lines in the file's place. Raises Failure where something else changed it since the claim."""
        self.part.writelines(lines)
        self.finish()

    def remove(self) -> None:
        """Remove the file that is to be replaced, before there is another one. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.before = None

    def finish(self) -> None:
        """Put what was written to the part in the file's place."""
        self.part.flush()
        os.fsync(self.part.fileno())
        if _identity(self.path) != self.before:
            raise Failure(f"{self.path} was changed meanwhile and is left as it is; run the command again")
        _part(self.path).replace(self.path)


@contextmanager
def claim(path: Path) -> Iterator[Claim]:
    """Hold a file against other commands that would write it. Raises Failure where one of them does; and OSError."""
    path = path.resolve()
    part = _locked(path)
    try:
        yield Claim(path, part, _identity(path))
    finally:
        # While we hold the lock the part is ours, if it has not become the file.
        if _is_open_at(part, _part(path)):
            _part(path).unlink()
        part.close()


def write_whole(path: Path, lines: Iterable[bytes]) -> None:
    """Put these lines in the file's place: it is the old one or the new one, whenever we are killed."""
    with claim(path) as claimed:
        claimed.replace(lines)


_TRIES: Final = 100


def _locked(path: Path) -> IO[bytes]:
    for _ in range(_TRIES):
        part = _part(path).open("ab")
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            part.close()
            raise FileTaken(
                f"another command is writing the recording {path}: wait until it has ended, or give each a file of its own"
            ) from error
        # What we have opened may have become the file meanwhile, or be gone.
        if _is_open_at(part, _part(path)):
            # A command that was killed leaves its part behind.
            part.truncate(0)
            return part
        part.close()
    raise Failure(f"{_part(path)} is replaced again and again; see which program writes it")


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _is_open_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _identity(path: Path) -> Identity:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
