"""Which files of a data directory belong into a backup: keys, spools, claims, replays and checkpoints, not what runs."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Final

from store.backup.archive import ArchiveWriter, BadArchive, Member, PieceWriter

LEFT_OUT: Final = frozenset(("pg", "log", "control", "answers"))
"""Directories that are left out: the embedded database, whose tables are copied; logs, sockets, and what a running replay serves."""

_RUNNING: Final = (".lock", ".users", ".json", ".sock")
"""Endings of files in the data directory itself that say what runs at present."""

_ROOTS: Final = ("system", "ca-certificates", "roots-", "ca-bundle.pem", "truststore.p12")
"""Beginnings of names below `keys` that are made from the machine's own certificates."""

_SPOOLS: Final = "spool"
_CURSOR: Final = "cursor"

READ_SIZE: Final = 1 << 20

OPEN_TRIES, OPEN_PAUSE = 100, 0.05
"""How often, and with how many seconds between, a spool is opened anew whose cursor moved meanwhile."""


class SpoolTooBusy(OSError):
    """A spool's cursor moved each time that its files were opened."""


def list_files(root: Path) -> Iterator[Path]:
    """Yield the regular files outside the spools, relative to the data directory, in the order of their names."""
    for directory, names, files in os.walk(root):
        here = Path(directory).relative_to(root)
        names[:] = sorted(name for name in names if not _is_left_out(here, name))
        for name in sorted(files):
            path = here / name
            is_running = here == Path() and name.endswith(_RUNNING)
            if not is_running and not _is_left_out(here, name) and not (root / path).is_symlink():
                yield path


def _is_left_out(here: Path, name: str) -> bool:
    if here == Path():
        return name in LEFT_OUT or name == _SPOOLS
    return here == Path("keys") and name.startswith(_ROOTS)


def write_files(archive: ArchiveWriter, root: Path) -> int:
    """Append the files of a data directory, and return their number. Raises OSError.

    Read before the database: what a spool loses meanwhile is in the database by then.
    """
    count = 0
    for path in list_files(root):
        try:
            file = (root / path).open("rb")
        except FileNotFoundError:
            continue  # a replay or a claim that has just ended
        with file:
            _write_file(archive, path, file)
        count += 1
    spools = root / _SPOOLS
    for name in sorted(path.name for path in spools.iterdir() if path.is_dir()) if spools.is_dir() else ():
        count += _write_spool(archive, root, Path(_SPOOLS, name))
    return count


def _write_spool(archive: ArchiveWriter, root: Path, spool: Path) -> int:
    """Append a spool, and return the number of its files.

    Its files are opened while its cursor stands still, so none is missing that the cursor still needs, and what is deleted
    after that can be read. What the cursor has not passed may be in the database as well.
    """
    for _ in range(OPEN_TRIES):
        with ExitStack() as stack:
            try:
                cursor = _read(root / spool / _CURSOR)
                names = sorted(path.name for path in (root / spool).iterdir() if path.is_file())
                # The number of written records before the records: a copy may have more, not fewer.
                small = {name: _read(root / spool / name) for name in names if "." not in name}
                files = {
                    name: stack.enter_context((root / spool / name).open("rb")) for name in names if name not in small
                }
                if _read(root / spool / _CURSOR) == cursor:
                    for name, data in small.items():
                        archive.add(f"files/{(spool / name).as_posix()}/0000000", data)
                    for name, file in files.items():
                        _write_file(archive, spool / name, file)
                    return len(names)
            except FileNotFoundError:
                if not (root / spool).exists():
                    return 0  # everything in it is in the database
        time.sleep(OPEN_PAUSE)
    raise SpoolTooBusy(f"{root / spool} changed {OPEN_TRIES} times while its files were opened: try again")


def _read(path: Path) -> bytes:
    """Read a small file; empty if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _write_file(archive: ArchiveWriter, path: Path, file: IO[bytes]) -> None:
    pieces = PieceWriter(archive, f"files/{path.as_posix()}")
    while data := file.read(READ_SIZE):
        pieces.write(data)
    pieces.finish()


def restore_piece(root: Path, member: Member) -> None:
    """Append a piece to its file below this directory. Raises BadArchive if it belongs elsewhere."""
    path = PurePosixPath(member.piece_of)
    if path.parts[0] != "files" or len(path.parts) < 2 or ".." in path.parts or path.parts[1] in LEFT_OUT:
        raise BadArchive(f"its member {member.name} belongs to no data directory")
    target = root / path.relative_to("files")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write(member.data)
