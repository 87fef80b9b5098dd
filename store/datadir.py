"""The paths of a data directory: keys, spools, the embedded database, logs.

The layout has a version of its own; a directory of another version is refused and left as it is.
"""

import errno
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.lock import Lock
from store.private_file import NotPrivate, read_private, require_unwritable
from store.run_tokens import RunTokens

LAYOUT = 1

_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths below the data directory. Made by `opened`."""

    root: Path

    @property
    def spools(self) -> Path:
        """One directory below it for each worker."""
        return self.root / "spool"

    @property
    def postgres(self) -> Path:
        """The embedded server's own directory."""
        return self.root / "pg"

    @property
    def keys(self) -> Path:
        """The CA, the redaction key; nobody else may look."""
        return self.root / "keys"

    @property
    def claims(self) -> Path:
        """The runs that take requests only with their own tokens."""
        return self.root / "claims"

    @property
    def logs(self) -> Path:
        """What our processes say, one file each."""
        return self.root / "log"

    @property
    def replays(self) -> Path:
        """Bundles that are being replayed, and their reports."""
        return self.root / "replays"

    @property
    def up_lock(self) -> Lock:
        """Held by the running `up`, or by the one that runs the workers."""
        return Lock(self.root / "up.lock")

    @property
    def store_lock(self) -> Lock:
        """Held by the store server: there is one for a data directory."""
        return Lock(self.root / "store.lock")

    @property
    def users_lock(self) -> Lock:
        """Shared by the commands that use a store server which another command started: it ends after the last of them."""
        return Lock(self.root / "store.users")

    def notice(self, name: str) -> dict[str, Any] | None:
        """What a running process wrote down about itself (`announce`), or None."""
        try:
            found: dict[str, Any] = json.loads((self.root / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found

    def announce(self, name: str, facts: dict[str, Any]) -> None:
        """Write down for other commands where a process listens; whole or not at all."""
        path = self.root / f"{name}.json"
        part = path.with_suffix(f".{os.getpid()}")
        part.touch(0o600)
        part.write_text(json.dumps(facts))
        part.replace(path)

    def withdraw(self, name: str) -> None:
        """Take back what was announced."""
        (self.root / f"{name}.json").unlink(missing_ok=True)

    def redaction_key(self) -> bytes:
        """The key of the placeholders: 32 random bytes, made once. Lost, old placeholders match no new ones; no more."""
        return self._secret(self.keys / "redaction.key", "the redaction key", secrets.token_bytes(32))

    @property
    def api_token_file(self) -> Path:
        """Where the token of the REST API lies."""
        return self.keys / "api.token"

    @property
    def recording_token_file(self) -> Path:
        """Where the token lies that only records."""
        return self.keys / "recording.token"

    def api_token(self) -> str:
        """What the REST API asks for: made once. Whoever has it may read and delete all that was recorded."""
        return self._token(self.api_token_file, "the API token")

    def recording_token(self) -> str:
        """What proxy workers ask for that other machines reach: made once. It records, and opens no route of the API."""
        return self._token(self.recording_token_file, "the recording token")

    def run_tokens(self) -> RunTokens:
        """Who may write into claimed runs."""
        path = self.keys / "run-tokens.key"
        return RunTokens(self._secret(path, "the key of the run tokens", secrets.token_bytes(32)), self.claims)

    def _token(self, path: Path, what: str) -> str:
        content = self._secret(path, what, f"{secrets.token_urlsafe(32)}\n".encode())
        token = content.decode("ascii", "replace").strip()
        if not _TOKEN.fullmatch(token):
            raise DataDirError(
                f"{what} {path} is not a word of letters, digits and -._~; delete the file to get a new one"
            )
        return token

    def _secret(self, path: Path, what: str, new: bytes) -> bytes:
        """What a secret file holds, which is made where there is none. Raises DataDirError where others may know it."""
        if not path.exists(follow_symlinks=False):
            _make_once(path, new)
        try:
            require_unwritable(self.keys, f"the directory of {what}")
            return read_private(path, what, "delete it to get a new one")
        except NotPrivate as error:
            raise DataDirError(str(error)) from error


def opened(root: Path) -> DataDir:
    """The data directory, made where it is missing. Raises DataDirError with a sentence for the person."""
    directory = DataDir(root.absolute())
    try:
        # As root Postgres runs as another user, who must be able to pass through.
        directory.root.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
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


def _check_version(path: Path) -> None:
    try:
        found = path.read_text().strip()
    except FileNotFoundError:
        _make_once(path, f"{LAYOUT}\n".encode())
        return
    if found != str(LAYOUT):
        raise DataDirError(
            f"{path.parent} is laid out in version {found or '(empty)'}, this Playhead reads version {LAYOUT}; "
            "use the Playhead that made it to export its runs, or choose another directory with --data DIR"
        )


def _make_once(path: Path, content: bytes) -> None:
    """Make a file, unless another process was first: whole or not at all, whoever looks and whenever we are killed."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)
    except FileExistsError:
        pass
    finally:
        part.unlink(missing_ok=True)
