"""The mode of a run that was given one of its own, and the runs that are forks or replays: the store server writes it, workers look at
each request.

DIR/replays/DIGEST.mode  DIGEST.only
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from store.generations.auto_session_file import digest

type Mode = Literal["record", "replay", "auto", "passthrough"]

MODES: Final[frozenset[str]] = frozenset(get_args(Mode.__value__))


@dataclass(frozen=True, slots=True)
class Modes:
    """Those of one data directory."""

    place: Path

    def of(self, run: str) -> Mode | None:
        """The run's own mode; None where it has that of its worker."""
        try:
            told = self._file(run).read_text()
        except FileNotFoundError:
            return None
        return told if told in MODES else None  # type: ignore[return-value]

    def put(self, run: str, mode: Mode | None) -> None:
        """Give a run a mode, or none of its own. It holds from its next request on."""
        file = self._file(run)
        if mode is None:
            file.unlink(missing_ok=True)
            return
        part = file.with_suffix(".mode-part")
        part.write_text(mode)
        part.replace(file)

    def mark_only(self, run: str) -> None:
        """Have all requests whose credentials name this run belong to it: it is a fork or a replay."""
        self._file(run).with_suffix(".only").touch()

    def is_only(self, run: str) -> bool:
        """Whether requests whose credentials name this run belong to it, whatever run the program binds them to."""
        return self._file(run).with_suffix(".only").exists()

    def _file(self, run: str) -> Path:
        return self.place / f"{digest(run)}.mode"
