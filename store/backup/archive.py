"""The format of a backup: a tar file (POSIX.1-2001, pax) whose last member has the SHA-256 of every other one.

Members, in this order: `manifest.json`, pieces of files (`files/PATH/0000000`), `tables.json`, pieces of tables
(`tables/NAME/0000000`, binary COPY of PostgreSQL), and `digests.json`. A piece has 4 MiB at most, so that neither side holds more.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple

FORMAT: Final = "playhead-backup/1"

MANIFEST: Final = "manifest.json"
TABLES: Final = "tables.json"
DIGESTS: Final = "digests.json"

PIECE: Final = 4 << 20
"""Bytes of a file or table in one member."""

MAX_MEMBER: Final = 64 << 20
"""Bytes of the longest member that is read."""


class BadArchive(Exception):
    """A backup cannot be read. The message says why; it names no file."""


class Member(NamedTuple):
    """One member of a backup."""

    name: str
    data: bytes

    @property
    def piece_of(self) -> str:
        """The name without the number of the piece."""
        return str(PurePosixPath(self.name).parent)


class ArchiveWriter:
    """Writes the members of a backup to a stream. `finish` ends it."""

    def __init__(self, out: IO[bytes], manifest: dict[str, Any]) -> None:
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by `finish`
        self._digests: dict[str, str] = {}
        self.written = 0
        """Bytes of all members so far."""

        self.add_json(MANIFEST, {"format": FORMAT} | manifest)

    def add(self, name: str, data: bytes) -> None:
        """Append a member."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), 0o600
        self._tar.addfile(member, io.BytesIO(data))
        self._digests[name] = hashlib.sha256(data).hexdigest()
        self.written += len(data)

    def add_json(self, name: str, value: Any) -> None:
        """Append a member with a JSON value."""
        self.add(name, json.dumps(value, indent=1, ensure_ascii=False).encode())

    def finish(self) -> None:
        """Append the digests of all members, and the end of the tar file."""
        self.add_json(DIGESTS, self._digests)
        self._tar.close()


class PieceWriter:
    """Cuts a stream of bytes into members of a backup."""

    def __init__(self, archive: ArchiveWriter, name: str) -> None:
        self._archive = archive
        self._name = name
        self._count = 0
        self._pending = bytearray()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._pending += data
        while len(self._pending) >= PIECE:
            self._add(bytes(self._pending[:PIECE]))
            del self._pending[:PIECE]

    def finish(self) -> None:
        """Write the rest. Something empty has one empty piece."""
        if self._pending or not self._count:
            self._add(bytes(self._pending))

    def _add(self, data: bytes) -> None:
        self._archive.add(f"{self._name}/{self._count:07}", data)
        self._count += 1


def read_members(path: Path) -> Iterator[Member]:
    """Yield the members of a backup without its digests. Raises BadArchive, and OSError if the file cannot be read."""
    with path.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r|") as tar:
                for info in tar:
                    if info.name != DIGESTS:
                        yield Member(info.name, _read_member(tar, info))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise BadArchive(f"it is not a whole backup of Playhead ({error})") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a backup. Raises BadArchive and OSError."""
    first = next(read_members(path), None)
    if first is None or first.name != MANIFEST:
        raise BadArchive("it is not a backup of Playhead: its first member is not manifest.json")
    manifest: dict[str, Any] = _parse_object(first)
    if manifest.get("format") != FORMAT:
        raise BadArchive(f"its format is {manifest.get('format')!r}, and this Playhead reads {FORMAT}")
    return manifest


def check_archive(path: Path) -> int:
    """Read a whole backup, compare every member with its digest, and return the number of members.

    Raises BadArchive, which names the first member that does not fit, and OSError.
    """
    read_manifest(path)
    digests: dict[str, str] = {}
    expected: dict[str, Any] | None = None
    with path.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r|") as tar:
                for info in tar:
                    member = Member(info.name, _read_member(tar, info))
                    if expected is not None or info.name in digests:
                        raise BadArchive(f"it has another member {info.name} after its end")
                    if info.name == DIGESTS:
                        expected = _parse_object(member)
                    else:
                        digests[info.name] = hashlib.sha256(member.data).hexdigest()
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise BadArchive(f"it is damaged or ends early ({error})") from error
    if expected is None:
        raise BadArchive("it ends early: its last member, digests.json, is missing")
    for name in (*expected, *digests):
        if expected.get(name) != digests.get(name):
            what = "is missing" if name not in digests else "was added" if name not in expected else "was altered"
            raise BadArchive(f"its member {name} {what}")
    return len(digests)


def _read_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    if not info.isreg() or info.size > MAX_MEMBER:
        raise BadArchive(f"its member {info.name} is not a file of a backup, or has more than {MAX_MEMBER >> 20} MiB")
    file = tar.extractfile(info)
    data = file.read() if file else b""
    if len(data) != info.size:
        raise BadArchive(f"it ends early, within its member {info.name}")
    return data


def _parse_object(member: Member) -> dict[str, Any]:
    try:
        value = json.loads(member.data)
    except ValueError as error:
        raise BadArchive(f"its member {member.name} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadArchive(f"its member {member.name} is not a JSON object")
    return value
