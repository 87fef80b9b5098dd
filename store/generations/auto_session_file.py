"""The file in which a worker describes an auto session to the store server.

NAME.take     it lasts
NAME.over     the store server wants it to end (the run's wrapper says that the run has)
NAME.done     it has ended, with its report: here, by idleness, or with its worker
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """What a worker says of a take."""

    id: str
    """What its clients name: the run itself, or a replay of it that has an id of its own."""

    run: str
    recording: str | None
    """The run that answered: it, or its newest generation then. None: there was none."""

    candidate: str
    """The run in which what went live was recorded; the run itself where that had no recording."""

    report: Mapping[str, Any] | None = None
    """How the replay stood when it was over."""

    succeeded: bool | None = None
    """Whether the agent came to its good end, as its wrapper says; None where nobody knows."""

    up: str = ""
    """Which `up` its worker was of."""

    becomes: str | None = None
    """The generation that is being made of it."""

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        # A worker and the store server may both write of one take.
        part = path.with_suffix(f"{path.suffix}.{os.getpid()}")
        part.write_bytes(msgspec.json.encode(self))
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The take in a file; None where there is none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, ValueError):
            return None


def file(place: Path, take: Take, state: Literal["take", "over", "done"]) -> Path:
    """Where a take is kept. Its id may have had another one, which is not settled yet."""
    return place / f"{digest(take.id)}-{digest(take.candidate)[:8]}.{state}"


def digest(name: str) -> str:
    """How an id stands in the name of a file."""
    return hashlib.sha256(name.encode()).hexdigest()[:24]
