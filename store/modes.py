"""The mode of a run that was given one of its own: the keeper writes it, doors look at each request.

DIR/replays/DIGEST.mode
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from store.take import digest

type Mode = Literal["record", "replay", "auto", "passthrough"]

MODES: Final[frozenset[str]] = frozenset(get_args(Mode.__value__))


@dataclass(frozen=True, slots=True)
class Modes:
    """Those of one data directory."""

    place: Path

    def of(self, run: str) -> Mode | None:
        """The run's own mode; None where it has that of its door."""
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

    def _file(self, run: str) -> Path:
        return self.place / f"{digest(run)}.mode"
