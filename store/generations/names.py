"""Name generations: which one is replayed for a run, and the name of the next one."""

import re
from collections.abc import Mapping
from typing import Any, Final

GENERATION_LABEL: Final = "playhead.generation"
"""Label of a run: the run that is replayed in its place."""

GENERATION_OF: Final = "playhead.generation-of"
"""Label of a run: the run of which it is, or was to become, a generation."""

_ROOM: Final = 128
"""The number of characters that a run's id may have."""

_NUMBERED: Final = re.compile(r"(?P<run>.*):g(?P<number>\d+)")


def newest_generation(run: str, shape: Mapping[str, Any]) -> str:
    """Return the run that is replayed for this one: its newest generation, or itself."""
    return str((shape["labels"] or {}).get(GENERATION_LABEL, run))


def is_failed_candidate(shape: Mapping[str, Any]) -> bool:
    """Whether a run was recorded to become a generation of another one, and did not."""
    return GENERATION_OF in (shape["labels"] or {}) and parse_generation(str(shape["id"]))[1] == 1


def parse_generation(name: str) -> tuple[str, int]:
    """Return the run of which `name` is a generation, and the number of the generation."""
    found = _NUMBERED.fullmatch(name)
    return (found["run"], int(found["number"])) if found else (name, 1)


def next_generation(run: str, current: str) -> str | None:
    """Return the name of the generation after `current`; None where it is too long."""
    name = f"{run}:g{parse_generation(current)[1] + 1}"
    return name if len(name) <= _ROOM else None
