"""Where a proxy worker's control socket lies."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

LONGEST: Final = 107 if os.uname().sysname == "Linux" else 103
"""Bytes that the path of a unix socket may have."""


def control_path(root: Path, name: str) -> Path:
    """The path for the worker of this name: in the data directory, or, where that is too long, beside temporary files."""
    path = root / "control" / f"{name}.sock"
    if len(os.fsencode(path)) <= LONGEST:
        return path
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"playhead-{os.geteuid()}-{digest}" / f"{name}.sock"
