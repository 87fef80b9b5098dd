"""The keys that sign checkpoints: Ed25519 keys in files of a private directory, numbered from 1.

Each checkpoint is signed by the newest key and by the one before it, so that whoever knows the earlier key sees that its owner vouches
for the newer one. A key never leaves its file; who loses the directory can no longer append to its chains, and begins new ones.
"""

import secrets
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from calls.proof.checkpoint import VerifierKey, sign_text
from store.private_file import NotPrivate, create_once, read_private, require_unwritable

SIGNING: Final = 2
"""How many of the newest keys sign each checkpoint."""

_SEED: Final = 32


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The keys of a store server."""

    server: uuid.UUID
    """The store server that they belong to."""

    keys: tuple[Ed25519PrivateKey, ...]
    """The newest first."""

    def origin(self, project: str) -> str:
        """Return the name of the log of a project's checkpoints."""
        return log_origin(self.server, project)

    @property
    def signing(self) -> tuple[Ed25519PrivateKey, ...]:
        """The keys that sign now."""
        return self.keys[:SIGNING]

    def verifier_keys(self, project: str) -> list[VerifierKey]:
        """Return the public keys for the checkpoints of a project, the newest first."""
        return self.public.verifier_keys(project)

    @property
    def public(self) -> "LogKeys":
        """The public halves."""
        return LogKeys(self.server, tuple(key.public_key().public_bytes_raw() for key in self.keys))

    def sign(self, text: str, project: str) -> str:
        """Return a signed note of a text, by the newest key."""
        return sign_text(text, self.origin(project), self.keys[:1])


class LogKeys(NamedTuple):
    """The public keys of a store server."""

    server: uuid.UUID
    public_keys: tuple[bytes, ...]
    """32 bytes each, the newest first."""

    def verifier_keys(self, project: str) -> list[VerifierKey]:
        """Return the keys for the checkpoints of a project, the newest first."""
        return [VerifierKey(log_origin(self.server, project), key) for key in self.public_keys]


def log_origin(server: uuid.UUID, project: str) -> str:
    """Return the name of the log of a project in a store server."""
    return f"playhead/{server}/{project}"


def load_signing_keys(directory: Path) -> SigningKeys:
    """Load the keys of a directory; create the first one. Raises `NotPrivate` where others may know or replace them."""
    require_unwritable(directory, "the directory of the signing keys")
    name = directory / "server"
    if not name.exists():
        create_once(name, f"{uuid.uuid4()}\n".encode())
    if not _files(directory):
        create_once(directory / "1.key", secrets.token_bytes(_SEED))
    keys = [_read_key(path) for path in reversed(_files(directory))]
    try:
        server = uuid.UUID(name.read_text().strip())
    except ValueError:
        raise NotPrivate(f"{name} does not contain the id of a store server; restore it from a backup") from None
    return SigningKeys(server, tuple(keys))


def find_log_keys(directory: Path) -> LogKeys | None:
    """Return the public keys of a directory; None if there are none yet. Raises `NotPrivate`."""
    return load_signing_keys(directory).public if (directory / "server").exists() else None


def rotate_signing_key(directory: Path) -> SigningKeys:
    """Create a newer key, which signs from the next start of the store server on."""
    load_signing_keys(directory)
    number = int(_files(directory)[-1].stem) + 1
    create_once(directory / f"{number}.key", secrets.token_bytes(_SEED))
    return load_signing_keys(directory)


def _files(directory: Path) -> list[Path]:
    return sorted((path for path in directory.glob("*.key") if path.stem.isdecimal()), key=lambda path: int(path.stem))


def _read_key(path: Path) -> Ed25519PrivateKey:
    seed = read_private(path, "the signing key", "restore it from a backup")
    if len(seed) != _SEED:
        raise NotPrivate(f"the signing key {path} has {len(seed)} bytes instead of {_SEED}; restore it from a backup")
    return Ed25519PrivateKey.from_private_bytes(seed)
