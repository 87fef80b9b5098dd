"""Where everything of one installation lives on disk: keys, spools, the embedded database, logs.

The layout has a version of its own; a directory of another version is refused and left as it is.
"""

import errno
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.lock import Lock

LAYOUT = 1


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths below the data directory. Made by `opened`."""

    root: Path

    @property
    def spools(self) -> Path:
        """One directory below it for each door."""
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
    def logs(self) -> Path:
        """What our processes say, one file each."""
        return self.root / "log"

    @property
    def replays(self) -> Path:
        """Bundles that are being replayed, and their reports."""
        return self.root / "replays"

    @property
    def up_lock(self) -> Lock:
        """Held by the running `up`, or by the one that runs the doors."""
        return Lock(self.root / "up.lock")

    @property
    def keeper_lock(self) -> Lock:
        """Held by the keeper: there is one for a data directory."""
        return Lock(self.root / "keeper.lock")

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
        path = self.keys / "redaction.key"
        if not path.exists():
            _make_once(path, secrets.token_bytes(32))
        return self._private(path)

    def _private(self, path: Path) -> bytes:
        if path.stat().st_mode & 0o077:
            raise DataDirError(f"{path} can be read by others; run: chmod 600 {path}")
        return path.read_bytes()


def opened(root: Path) -> DataDir:
    """The data directory, made where it is missing. Raises DataDirError with a sentence for the person."""
    directory = DataDir(root.absolute())
    try:
        # As root Postgres runs as another user, who must be able to pass through.
        directory.root.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        _check_version(directory.root / "version")
        for private in (directory.spools, directory.keys, directory.logs, directory.replays):
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
