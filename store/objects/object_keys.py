"""The keys of projects: 32 random bytes each, in a file of the data directory that only its owner can read.

From a key come three: one encrypts objects, one makes their addresses, one names the key. Deleting the file of a project erases all of
its objects, wherever copies of them are; only a backup that has the file can bring them back.
"""

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.database.object_forms import KEY_ID_SIZE
from store.private_file import NotPrivate, create_once, read_private

KEY_SIZE: Final = 32


class KeyUnusable(Exception):
    """The file of a key is missing, damaged, or others can read it. The message says what to do."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The key of a project."""

    encryption: bytes
    address: bytes
    id: bytes

    @classmethod
    def derive(cls, secret: bytes) -> "ObjectKey":
        """Derive the key from the content of its file."""
        digests = (
            hmac.digest(secret, b"playhead objects/1 " + use, "sha256") for use in (b"encryption", b"address", b"id")
        )
        encryption, address, name = digests
        return cls(encryption, address, name[:KEY_ID_SIZE])

    def address_of(self, data: bytes) -> bytes:
        """Return the address of a body: a digest that only who has the key can compute."""
        return hmac.digest(self.address, data, "sha256")

    def path_of(self, address: bytes) -> str:
        """Return the path of the object with this address in its bucket or directory."""
        return object_path(self.id, address)


def object_path(key_id: bytes, address: bytes) -> str:
    """Return where an object is, below the URL."""
    name = address.hex()
    return f"{key_id.hex()}/{name[:2]}/{name}"


class ObjectKeys:
    """The keys below a directory. They are read once; a file that is deleted is missed when it is asked for again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[int, ObjectKey]] = {}

    def key_for_writing(self, project: str) -> ObjectKey:
        """Return the key of a project, created once. Raises `KeyUnusable`."""
        try:
            if not self._path(project).exists():
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                create_once(self._path(project), secrets.token_bytes(KEY_SIZE))
        except OSError as error:
            raise KeyUnusable(f"the key {self._path(project)} cannot be created: {error.strerror}") from error
        return self.key(project)

    def key(self, project: str) -> ObjectKey:
        """Return the key of a project. Raises `KeyUnusable`."""
        path = self._path(project)
        try:
            changed = os.stat(path).st_mtime_ns
        except OSError as error:
            raise KeyUnusable(
                f"the key of project {project} ({path}) is gone, and with it every object of the project"
            ) from error
        known = self._known.get(project)
        if known is None or known[0] != changed:
            known = self._known[project] = (changed, self._read(path))
        return known[1]

    def id_of(self, project: str) -> bytes | None:
        """Return the id of the key of a project; None without a usable one."""
        try:
            return self.key(project).id
        except KeyUnusable:
            return None

    def _path(self, project: str) -> Path:
        return self._directory / f"{project}.key"

    def _read(self, path: Path) -> ObjectKey:
        try:
            secret = read_private(path, "the key of objects", "delete it, which erases all objects of its project")
        except NotPrivate as error:
            raise KeyUnusable(str(error)) from error
        if len(secret) != KEY_SIZE:
            raise KeyUnusable(f"the key of objects {path} has {len(secret)} bytes instead of {KEY_SIZE}: restore it")
        return ObjectKey.derive(secret)
