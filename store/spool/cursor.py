"""Remember how far the reader of a spool has come, in a file that is always whole."""

import json
import os
from pathlib import Path

from store.spool.disk import sync_directory
from store.spool.segment import Position

_NAME = "cursor"


def load(directory: Path) -> Position | None:
    """Where the reader was; None when it was nowhere, or nobody can tell. Then it begins again: nothing is lost by it."""
    try:
        told = json.loads((directory / _NAME).read_bytes())
        return Position(int(told["segment"]), int(told["offset"]), int(told.get("records", 0)))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store(directory: Path, position: Position) -> None:
    """Have it on disk, before anything behind it is deleted. Raises OSError."""
    aside = directory / f"{_NAME}.new"
    with aside.open("wb") as file:
        file.write(json.dumps(position._asdict()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / _NAME)
    sync_directory(directory)
