"""Store the position that the reader of a spool has committed, in a file that is replaced atomically."""

import json
import os
from pathlib import Path

from msgspec.structs import asdict

from store.spool.disk import sync_directory
from store.spool.segment import Position

_NAME = "cursor"


def load_cursor(directory: Path) -> Position | None:
    """Load the committed position. None if the file is missing or unreadable: reading starts again, and nothing is lost."""
    try:
        fields = json.loads((directory / _NAME).read_bytes())
        return Position(int(fields["segment"]), int(fields["offset"]), int(fields.get("records", 0)))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store_cursor(directory: Path, position: Position) -> None:
    """Write the position and sync it. Call this before deleting any segment before it. Raises OSError."""
    new_file = directory / f"{_NAME}.new"
    with new_file.open("wb") as file:
        file.write(json.dumps(asdict(position)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new_file.rename(directory / _NAME)
    sync_directory(directory)
