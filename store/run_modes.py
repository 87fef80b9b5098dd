"""Files that hold the modes of runs and mark exclusive runs. The store server writes them; workers read them at each request.

DIR/replays/DIGEST.mode    the run's own mode, in place of its worker's
DIR/replays/DIGEST.only    the run is exclusive: a fork or a replay, to which all requests that name it belong
"""

from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from store.generations.auto_session_file import name_digest

type Mode = Literal["record", "replay", "auto", "passthrough"]

MODES: Final[frozenset[str]] = frozenset(get_args(Mode.__value__))


class RunModes(msgspec.Struct, frozen=True):
    """The run modes of one data directory."""

    directory: Path

    def mode_of(self, run: str) -> Mode | None:
        """Return the run's own mode; None where it has that of its worker."""
        try:
            text = self._file(run).read_text()
        except FileNotFoundError:
            return None
        return text if text in MODES else None  # type: ignore[return-value]

    def set_mode(self, run: str, mode: Mode | None) -> None:
        """Set the run's own mode, or remove it. It holds from the next request on."""
        file = self._file(run)
        if mode is None:
            file.unlink(missing_ok=True)
            return
        part = file.with_suffix(".mode-part")
        part.write_text(mode)
        part.replace(file)

    def forget(self, run: str) -> None:
        """Remove the files of a run that is gone: the next one of its name has neither its mode nor its exclusiveness."""
        self.set_mode(run, None)
        self._file(run).with_suffix(".only").unlink(missing_ok=True)

    def mark_exclusive(self, run: str) -> None:
        """Mark the run as exclusive: all requests whose credentials name it belong to it."""
        self._file(run).with_suffix(".only").touch()

    def is_exclusive(self, run: str) -> bool:
        """Whether requests whose credentials name this run belong to it, whatever run the program binds them to."""
        return self._file(run).with_suffix(".only").exists()

    def _file(self, run: str) -> Path:
        return self.directory / f"{name_digest(run)}.mode"
