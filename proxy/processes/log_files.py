"""Open the log of a process, and bound how many logs there are and how long they become.

Whoever has a log open holds a shared lock of it, also a process that has only inherited it: so the logs of dead processes are known.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

MAX_SIZE: Final = 16 << 20
"""Bytes of a log from which the next process begins a new one. One older log is kept, as `NAME.log.old`."""

WORKERS_KEPT: Final = 50
"""Logs of workers that are kept. Each worker has one with a name of its own."""


def open_log(path: Path) -> int:
    """Open a log to append to it, and return the descriptor, which the log is locked with."""
    if path.exists() and path.stat().st_size > MAX_SIZE:
        path.replace(path.with_suffix(".log.old"))
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # somebody looks at this moment whether it is in use
    return log


def remove_old_worker_logs(directory: Path) -> None:
    """Remove the oldest logs of dead workers, but for `WORKERS_KEPT`."""
    names = [name for name in os.listdir(directory) if name.startswith("worker-") and name.endswith(".log")]
    if len(names) > WORKERS_KEPT:
        for log in sorted((directory / name for name in names), key=_last_written)[:-WORKERS_KEPT]:
            _remove_unless_open(log)


def _last_written(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another command has just removed it


def _remove_unless_open(log: Path) -> None:
    try:
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError):
        pass
