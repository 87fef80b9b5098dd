"""The paths of a data directory: keys, spools, the embedded database, logs.

The layout has a version; a directory of another version is refused and not changed.
"""

import errno
import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from store.access.api_tokens import ApiTokens
from store.lock import Lock
from store.private_file import NotPrivate, create_once, read_private, require_unwritable
from store.run_tokens import RunTokens

if TYPE_CHECKING:
    from store.proof.signing_keys import SigningKeys

LAYOUT = 1

_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")


def default_data_directory() -> Path:
    """Return this user's data directory. Root's is outside /root, because Postgres runs as another user. Raises ValueError."""
    if os.geteuid() == 0:
        return Path("/var/lib/playhead")
    if data_home := os.environ.get("XDG_DATA_HOME"):
        return Path(data_home) / "playhead"
    try:
        return Path.home() / ".local/share" / "playhead"
    except RuntimeError as error:
        raise ValueError(
            f"user {os.geteuid()} has no home directory for recordings: HOME is not set, and the system has no such user;"
            " choose a directory with --data DIR or PLAYHEAD_DATA"
        ) from error


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DataDir(msgspec.Struct, frozen=True):
    """The paths below a data directory. Created by `open_data_dir`."""

    root: Path

    @property
    def spools(self) -> Path:
        """The directory with one spool for each worker."""
        return self.root / "spool"

    @property
    def postgres(self) -> Path:
        """The directory of the embedded Postgres."""
        return self.root / "pg"

    @property
    def keys(self) -> Path:
        """The directory of the secrets: the CA, tokens, the redaction key. Other users must not read it."""
        return self.root / "keys"

    @property
    def claims(self) -> Path:
        """The directory of the claims: runs that accept requests only with their own tokens."""
        return self.root / "claims"

    @property
    def logs(self) -> Path:
        """The directory of the logs, one file for each process."""
        return self.root / "log"

    @property
    def replays(self) -> Path:
        """The directory of bundles that are being replayed, and of their reports."""
        return self.root / "replays"

    @property
    def run_versions(self) -> Path:
        """The file in which workers in mode replay see which runs have changed (`store.database.run_versions`)."""
        return self.root / "run-versions"

    @property
    def versions_socket(self) -> Path:
        """The socket on which they ask for it, where others may write to the database (`store.feed.stored_versions`)."""
        return self.root / "control" / "run-versions"

    @property
    def checkpoints(self) -> Path:
        """The directory with the newest checkpoint of each project, a file each."""
        return self.root / "checkpoints"

    @property
    def up_lock(self) -> Lock:
        """The lock of the running `up`, or of the one that runs the workers."""
        return Lock(self.root / "up.lock")

    @property
    def store_lock(self) -> Lock:
        """The lock of the store server: a data directory has one."""
        return Lock(self.root / "store.lock")

    @property
    def users_lock(self) -> Lock:
        """The lock that commands share which use a store server started by one of them: it stops after the last one."""
        return Lock(self.root / "store.users")

    @property
    def successor_lock(self) -> Lock:
        """The lock that whoever needs a store server of its own holds until one that is only kept ready has ended."""
        return Lock(self.root / "store.next")

    def read_notice(self, name: str) -> dict[str, Any] | None:
        """Return what a running process has announced about itself, or None."""
        try:
            found: dict[str, Any] = json.loads((self.root / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found

    def announce(self, name: str, facts: dict[str, Any]) -> None:
        """Write, atomically, where a process listens, for other commands to read."""
        path = self.root / f"{name}.json"
        part = path.with_suffix(f".{os.getpid()}")
        part.touch(0o600)
        part.write_text(json.dumps(facts))
        part.replace(path)

    def withdraw(self, name: str) -> None:
        """Remove an announcement."""
        (self.root / f"{name}.json").unlink(missing_ok=True)

    def redaction_key(self) -> bytes:
        """Return the key of the placeholders: 32 random bytes, created once. If lost, new placeholders differ from old ones."""
        return self._secret(self.keys / "redaction.key", "the redaction key", secrets.token_bytes(32))

    @property
    def api_token_file(self) -> Path:
        """The file with the token of the REST API."""
        return self.keys / "api.token"

    @property
    def recording_token_file(self) -> Path:
        """The file with the token that permits recording only."""
        return self.keys / "recording.token"

    def api_tokens(self) -> ApiTokens:
        """Return the tokens that `playhead token create` has created."""
        return ApiTokens(self.keys / "tokens.json")

    def api_token(self) -> str:
        """Return the token of the REST API, created once. It permits reading and deleting everything that was recorded."""
        return self._token(self.api_token_file, "the API token")

    def recording_token(self) -> str:
        """Return the token for proxy workers that other machines reach, created once. It permits recording, not the REST API."""
        return self._token(self.recording_token_file, "the recording token")

    def run_tokens(self) -> RunTokens:
        """Return the run tokens and claims of this data directory."""
        path = self.keys / "run-tokens.key"
        return RunTokens(self._secret(path, "the key of the run tokens", secrets.token_bytes(32)), self.claims)

    def signing_keys(self) -> "SigningKeys":
        """Return the keys that sign the checkpoints of this data directory's store server; the first one is created once."""
        # Most commands that open a data directory sign nothing, and `cryptography` takes long to import.
        from store.proof.signing_keys import load_signing_keys

        try:
            return load_signing_keys(self.signing_key_directory())
        except NotPrivate as error:
            raise DataDirError(str(error)) from error

    def signing_key_directory(self) -> Path:
        """Return the directory of the signing keys, created once."""
        directory = self.keys / "proof"
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    def _token(self, path: Path, what: str) -> str:
        content = self._secret(path, what, f"{secrets.token_urlsafe(32)}\n".encode())
        token = content.decode("ascii", "replace").strip()
        if not _TOKEN.fullmatch(token):
            raise DataDirError(
                f"{what} {path} is invalid: it must consist of letters, digits and -._~; delete the file to get a new one"
            )
        return token

    def _secret(self, path: Path, what: str, new: bytes) -> bytes:
        """Read a secret file, after creating it where there is none. Raises DataDirError where others may know it."""
        if not path.exists(follow_symlinks=False):
            create_once(path, new)
        try:
            require_unwritable(self.keys, f"the directory of {what}")
            return read_private(path, what, "delete it to get a new one")
        except NotPrivate as error:
            raise DataDirError(str(error)) from error


def open_data_dir(root: Path) -> DataDir:
    """Open the data directory, creating it where it is missing. Raises DataDirError."""
    directory = DataDir(root.absolute())
    try:
        _make_root(directory.root)
        _check_version(directory.root / "version")
        for private in (directory.spools, directory.keys, directory.claims, directory.logs, directory.replays):
            private.mkdir(exist_ok=True, mode=0o700)
            if not os.access(private, os.W_OK | os.X_OK):
                why = errno.EROFS if os.statvfs(private).f_flag & os.ST_RDONLY else errno.EACCES
                raise OSError(why, os.strerror(why), str(private))
    except OSError as error:
        raise DataDirError(
            f"cannot use the data directory {root}: {error.strerror}{f' ({error.filename})' if error.filename else ''}; "
            "choose another with --data DIR or PLAYHEAD_DATA"
        ) from error
    return directory


def _make_root(root: Path) -> None:
    missing = [one for one in (root, *root.parents) if not one.exists()]
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.geteuid() == 0:
        # Started by root, Postgres runs as another user, who needs access to its directory, whatever the umask.
        for one in missing:
            one.chmod(one.stat().st_mode | 0o011)


def _check_version(path: Path) -> None:
    try:
        found = path.read_text().strip()
    except FileNotFoundError:
        create_once(path, f"{LAYOUT}\n".encode())
        return
    if found != str(LAYOUT):
        raise DataDirError(
            f"{path.parent} has layout version {found or '(empty)'}, and this Playhead reads version {LAYOUT}; "
            "export its runs with the Playhead that created it, or choose another directory with --data DIR"
        )
