"""The path of a proxy worker's control socket, and how long its answer may take."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_PATH_BYTES: Final = 107 if os.uname().sysname == "Linux" else 103
"""The maximum length of a unix socket's path in bytes."""


def effects_path(control: str | Path) -> Path:
    """Return the path on which the worker with this control socket is told the effects of commands."""
    return Path(control).with_suffix(".effects")


LOAD_TIMEOUT: Final = 30.0
"""Seconds that a worker may load a recording before it answers a launcher, which asks which ports the recording has."""


def control_path(root: Path, name: str) -> Path:
    """Return the path for the worker of this name: in the data directory or, if that is too long, in the temporary one."""
    path = root / "control" / f"{name}.sock"
    if len(os.fsencode(effects_path(path))) <= MAX_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"playhead-{os.geteuid()}-{digest}" / f"{name}.sock"


def remove_directory_elsewhere(path: Path) -> None:
    """Remove the directory of a socket that was closed, if it is not in the data directory and has no other socket."""
    if path.parent.parent == Path(tempfile.gettempdir()):
        with suppress(OSError):
            path.parent.rmdir()
