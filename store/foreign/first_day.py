"""Find the day on which the recording in a file began, before the file is imported."""

import datetime as dt
from pathlib import Path
from typing import Final

from store.bundle.bundle import Entry, read_parts
from store.foreign.contents import Format, Interaction, NotReadable
from store.foreign.read import open_plain, open_source

LARGEST: Final = 4 << 20
"""Bytes of a file up to which it is read for its day: reading a large one twice takes longer than knowing its day saves."""


def first_day(path: Path, form: Format | None = None) -> dt.date | None:
    """Return the UTC day of the first exchange; None where it cannot be read, which the import reports."""
    try:
        status = path.stat()
        if status.st_size > LARGEST:
            return None
        started_at = _first_time(path, form, status.st_mtime_ns)
        return None if started_at is None else dt.datetime.fromtimestamp(started_at // 1_000_000_000, dt.UTC).date()
    except (OSError, NotReadable, ValueError, OverflowError):
        return None


def _first_time(path: Path, form: Format | None, default: int) -> int | None:
    source = open_source(path, form)
    if source.form != "bundle":
        return next((one.started_at or default for one in source.items if isinstance(one, Interaction)), None)
    with open_plain(path) as lines:
        return next((one.exchange.started_at for one in read_parts(lines) if isinstance(one, Entry)), None)
