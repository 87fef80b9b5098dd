"""The file in which a worker describes an auto session to the store server.

NAME.take     the session is active
NAME.over     the store server asks the worker to end it, because the run has ended
NAME.done     the session has ended, and the file has its report
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from calls.project_runs import DEFAULT_PROJECT, full_run_name


class AutoSession(msgspec.Struct, frozen=True, kw_only=True):
    """An auto session, as its worker describes it. Its runs have their ids within its project."""

    id: str
    """The id in its clients' credentials: the run itself, or a replay of it with an id of its own."""

    run: str
    recording: str | None
    """The run that answered: the run itself, or its newest generation at that time. None without a recording."""

    candidate: str
    """The run into which live exchanges were recorded; the run itself where it had no recording."""

    report: Mapping[str, Any] | None = None
    """The replay's report at the end of the session."""

    succeeded: bool | None = None
    """Whether the agent succeeded, as its wrapper reports; None where it is not known."""

    up: str = ""
    """The `up` that started its worker."""

    becomes: str | None = None
    """The generation that is being written from it."""

    project: str = DEFAULT_PROJECT

    @property
    def full_name(self) -> str:
        """The full name by which workers know its id (`calls.project_runs`)."""
        return full_run_name(self.project, self.id)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        # The worker and the store server may both write the file of one session.
        part = path.with_suffix(f"{path.suffix}.{os.getpid()}")
        part.write_bytes(msgspec.json.encode(self))
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the session in a file; None where there is none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, ValueError):
            return None


def session_file(directory: Path, session: AutoSession, state: Literal["take", "over", "done"]) -> Path:
    """Return the file of a session. The candidate is part of its name, as an earlier session of the id may not be settled yet."""
    return directory / f"{name_digest(session.full_name)}-{name_digest(session.candidate)[:8]}.{state}"


def name_digest(name: str) -> str:
    """Return the digest of an id that is used in file names."""
    return hashlib.sha256(name.encode()).hexdigest()[:24]
