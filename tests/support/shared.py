"""Processes that all workers of a test run share: the first worker that needs one starts it, and it ends with the last that does.

To import what such a process holds takes seconds, which each of the workers would take again. Only the standard library is
imported here: the processes load this file by its path.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def shared_process(name: str, command: list[str]) -> Iterator[Path]:
    """The socket at which the process of this name listens inside of the block.

    It is started as `command SOCKET`, and says `ready` on its standard output. On its standard input is a pipe that every user
    holds open at the other end: when nobody does any more, however they ended, `has_no_users` is true.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    # The path of a socket may have a hundred letters, and pytest's directories have more.
    path = Path(tempfile.gettempdir()) / f"playhead-shared-{run}" / name
    while (held := _become_user(path, command)) is None:
        continue
    try:
        yield path
    finally:
        os.close(held)


def _become_user(path: Path, command: list[str]) -> int | None:
    """The end of the pipe to hold open; None where the directory went with the last process just now."""
    path.parent.mkdir(mode=0o711, exist_ok=True)
    users = _pipe_of(path)
    try:
        with _holding_lock(path.parent):
            with suppress(FileExistsError):
                os.mkfifo(users)
            # To open it for reading as well does not wait for a reader.
            held = os.open(users, os.O_RDWR)
            if not path.exists():
                _start([*command, str(path)], users)
            return held
    except FileNotFoundError:
        return None


def has_no_users(socket: str) -> bool:
    """Whether the process that listens there is to end. Its files are gone then, and the next user starts another one."""
    path = Path(socket)
    with _holding_lock(path.parent):
        try:
            is_over = os.read(sys.stdin.fileno(), 1) == b""
        except BlockingIOError:
            return False
        if is_over:
            path.unlink(missing_ok=True)
            _pipe_of(path).unlink(missing_ok=True)
            if os.listdir(path.parent) == ["lock"]:
                shutil.rmtree(path.parent, ignore_errors=True)
        return is_over


def _pipe_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.users")


@contextmanager
def _holding_lock(place: Path) -> Iterator[None]:
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(command: list[str], users: Path) -> None:
    """Start it, and return when it listens. It is nobody's to wait for: whoever started it may be the first to end."""
    pipe = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
    said, saying = os.pipe()
    files = [(os.POSIX_SPAWN_DUP2, pipe, 0), (os.POSIX_SPAWN_DUP2, saying, 1)]
    try:
        os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True)
    finally:
        os.close(pipe)
        os.close(saying)
    with open(said, "rb") as lines:
        if lines.readline() != b"ready\n":
            raise ChildProcessError(f"{' '.join(command)} did not start; its error is on stderr")
