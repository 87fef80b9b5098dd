"""Read files that hold secrets, and listen on sockets, only where no other user can have read, changed or planted them.

A file must be a regular file that we own. Its mode may grant nothing to others, and something to its group only if we are the
only member: Kubernetes gives a volume's files to the group that `fsGroup` names and widens their modes (0600 becomes 0660).
"""

import contextlib
import grp
import os
import pwd
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_OTHERS = 0o007
_GROUP = 0o070
_GROUP_WRITES = 0o020
_OTHERS_WRITE = 0o002

BACKLOG: Final = 128
"""Connections that the system holds until they are accepted."""

_ATTEMPTS: Final = 5
"""How often the directory of a socket is made again, because a process that ended has removed it while it was empty."""


class NotPrivate(Exception):
    """Other users may know a secret. The message says what is wrong and what to do."""


def read_private(path: Path, what: str, renewal: str) -> bytes:
    """Read a secret file. Raises NotPrivate, with a message that names the file as `what`.

    `renewal` is the part of the message that says how to get a new one: "delete it …".
    """
    try:
        # O_NONBLOCK: opening a named pipe would wait for a writer. It has no effect on a regular file.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        problem = "is a symbolic link" if path.is_symlink() else f"cannot be read ({error.strerror})"
        raise NotPrivate(f"{what} {path} {problem}; put the file itself there, or {renewal}") from error
    with os.fdopen(handle, "rb") as file:
        _require_private(path, os.fstat(file.fileno()), what, renewal)
        return file.read()


def _require_private(path: Path, status: os.stat_result, what: str, renewal: str) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivate(f"{what} {path} is not a regular file; remove it, or {renewal}")
    if status.st_uid != os.geteuid():
        raise NotPrivate(
            f"{what} {path} belongs to user {status.st_uid}, and Playhead runs as {os.geteuid()}; change its owner, "
            "or use a data directory of your own"
        )
    if why := _exposure(mode & _OTHERS, mode & _GROUP, status.st_gid):
        raise NotPrivate(
            f"{what} {path} can be read by others (mode {mode:04o}, {why}); run `chmod 600 {path}`, "
            f"and if others may have read it, {renewal}"
        )


def require_unwritable(directory: Path, what: str) -> None:
    """Raise NotPrivate if other users could replace the files in this directory."""
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if why := _exposure(mode & _OTHERS_WRITE, mode & _GROUP_WRITES, found.st_gid):
        raise NotPrivate(
            f"{what} {directory} can be changed by others (mode {mode:04o}, {why}); run `chmod 700 {directory}`"
        )


def _exposure(granted_to_others: int, granted_to_group: int, gid: int) -> str:
    """Describe the users whom these mode bits admit; empty where that is only us."""
    if granted_to_others:
        return "for all users"
    if granted_to_group and gid not in {os.getegid(), *os.getgroups()}:
        return f"for the group {_group_name(gid)}, which is not one of ours"
    if granted_to_group and (members := _other_members(gid)):
        return f"for the group {_group_name(gid)}, which also has {', '.join(members[:3])}"
    return ""


def _other_members(gid: int) -> list[str]:
    """Return the other accounts of this machine that belong to a group. That of an `fsGroup` is in no file and has none."""
    us = os.geteuid()
    primary = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid and entry.pw_uid != us}
    return sorted(primary | {name for name in _group_members(gid) if _uid(name) != us})


def _group_members(gid: int) -> list[str]:
    try:
        return grp.getgrgid(gid).gr_mem
    except KeyError:
        return []


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def create_once(path: Path, content: bytes) -> None:
    """Create a file atomically, unless another process was first."""
    with _written_part(path, content) as part, contextlib.suppress(FileExistsError):
        os.link(part, path)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only we may read, atomically: after a crash it has the old content or the new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _written_part(path, content) as part:
        part.replace(path)


@contextlib.contextmanager
def _written_part(path: Path, content: bytes) -> Iterator[Path]:
    """A new private file beside `path` with the content on disk. It goes with the block, unless it was renamed."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


def listen_privately(path: Path, kind: socket.SocketKind) -> socket.socket:
    """Return a socket that does not block and listens on this path. Raises OSError."""
    for _ in range(_ATTEMPTS):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return _listen(path, kind)
    return _listen(path, kind)


def _listen(path: Path, kind: socket.SocketKind) -> socket.socket:
    # A process that starts at the same time removes a socket that refuses it, as this one does before listen(). Only then is it given
    # the name by which others find it, and before that its mode.
    unfinished = path.with_suffix(f".n{path.suffix[1:2]}")  # not longer: the length of such a path is limited
    unfinished.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(unfinished))
        unfinished.chmod(0o600)
        listener.listen(BACKLOG)
        unfinished.rename(path)
    except OSError:
        listener.close()
        raise
    return listener


def remove_abandoned_sockets(directory: Path, pattern: str, kind: socket.SocketKind) -> None:
    """Remove the sockets of this pattern on which nobody listens. Raises OSError."""
    for path in directory.glob(pattern):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
