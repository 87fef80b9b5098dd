"""Name generations: which one is replayed for a run, and what the next one is called."""

import re
from collections.abc import Mapping
from typing import Any, Final

LABEL: Final = "playhead.generation"
"""On a run: the run that is replayed in its place."""

OF: Final = "playhead.generation-of"
"""On a run: what it was recorded for."""

_ROOM: Final = 128
"""Characters that a run's id may have."""

_NUMBERED: Final = re.compile(r"(?P<run>.*):g(?P<number>\d+)")


def newest(run: str, shape: Mapping[str, Any]) -> str:
    """The run that is replayed where this one is named: its newest generation, or itself."""
    return str((shape["labels"] or {}).get(LABEL, run))


def remains(shape: Mapping[str, Any]) -> bool:
    """Whether a run was recorded for a generation of another one that did not come about."""
    return OF in (shape["labels"] or {}) and numbered(str(shape["id"]))[1] == 1


def numbered(name: str) -> tuple[str, int]:
    """Of which run a name is a generation, and the how manyth."""
    found = _NUMBERED.fullmatch(name)
    return (found["run"], int(found["number"])) if found else (name, 1)


def following(run: str, newest: str) -> str | None:
    """The name of the next generation. None where there is no room for it."""
    name = f"{run}:g{numbered(newest)[1] + 1}"
    return name if len(name) <= _ROOM else None
