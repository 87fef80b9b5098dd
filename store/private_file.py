"""Read a file that holds a secret only where no other user can have read, changed or planted it.

It has to be a plain file of our own. Its mode may grant nothing to others, and to its group only where that group is ours
alone: Kubernetes gives a volume's files to the group that `fsGroup` names and widens their modes (0600 becomes 0660).
"""

import grp
import os
import pwd
import stat
from pathlib import Path

_OTHERS = 0o007
_GROUP = 0o070
_GROUP_WRITES = 0o020
_OTHERS_WRITE = 0o002


class NotPrivate(Exception):
    """A secret may be known to other users. The message says what is wrong and what to do."""


def read_private(path: Path, what: str, renewal: str) -> bytes:
    """The content of a secret file. Raises NotPrivate.

    `what` names it in the message, and `renewal` says how to get another one: delete …
    """
    try:
        # O_NONBLOCK: a named pipe would wait for a writer. It changes nothing for a plain file.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        problem = "is a symbolic link" if path.is_symlink() else f"cannot be read ({error.strerror})"
        raise NotPrivate(f"{what} {path} {problem}; put the file itself there, or {renewal}") from error
    with os.fdopen(handle, "rb") as file:
        _require_private(path, os.fstat(file.fileno()), what, renewal)
        return file.read()


def _require_private(path: Path, found: os.stat_result, what: str, renewal: str) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivate(f"{what} {path} is not a plain file; remove what is there, or {renewal}")
    if found.st_uid != os.geteuid():
        raise NotPrivate(
            f"{what} {path} belongs to user {found.st_uid} and we run as {os.geteuid()}; change its owner, "
            "or use a data directory of your own"
        )
    if why := _exposure(mode & _OTHERS, mode & _GROUP, found.st_gid):
        raise NotPrivate(
            f"{what} {path} can be read by others (mode {mode:04o}, {why}); run `chmod 600 {path}`, "
            f"and if others may have read it, {renewal}"
        )


def require_unwritable(directory: Path, what: str) -> None:
    """Raise NotPrivate where other users could replace the files of this directory."""
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if why := _exposure(mode & _OTHERS_WRITE, mode & _GROUP_WRITES, found.st_gid):
        raise NotPrivate(f"others can change {what}, {directory} (mode {mode:04o}, {why}); run `chmod 700 {directory}`")


def _exposure(granted_to_others: int, granted_to_group: int, gid: int) -> str:
    """What to say beside the mode about whom these bits let in; nothing where nobody but us."""
    if granted_to_others:
        return "for all users"
    if granted_to_group and gid not in {os.getegid(), *os.getgroups()}:
        return f"for the group {_group_name(gid)}, which is not one of ours"
    if granted_to_group and (members := _other_members(gid)):
        return f"for the group {_group_name(gid)}, which also has {', '.join(members[:3])}"
    return ""


def _other_members(gid: int) -> list[str]:
    """Accounts of this machine, other than ours, that belong to a group. The group of an `fsGroup` is in no file: nobody."""
    us = os.geteuid()
    primary = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid and entry.pw_uid != us}
    return sorted(primary | {name for name in _listed(gid) if _uid(name) != us})


def _listed(gid: int) -> list[str]:
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
