"""Resolve the name of a recording: a run in the store, a file, or `last`.

Agents may give a run any name. A name that is typed on the command line must be one that commands can find again.
"""

from pathlib import Path

from calls.project_runs import RUN_ID
from proxy.errors import Failure


def invalid_name_reason(run: str) -> str | None:
    """Explain why a run cannot have this name; None if it can."""
    if not RUN_ID.fullmatch(run):
        return "use 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
    if run == "last":
        return "commands read it as the newest run"
    if run.startswith("-"):
        return "commands read it as an option"
    if run.endswith(".jsonl"):
        return "commands read it as a file"
    return None


def recording_path(name: str) -> Path | None:
    """Return the recording's file, or None if the name is a run's.

    A file in the current directory that is not a recording does not hide a run of the same name.
    """
    path = Path(name)
    if not path.is_file():
        return None
    may_be_run = "/" not in name and not path.suffix and RUN_ID.fullmatch(name)
    return None if may_be_run and not _is_recording(path) else path


def _is_recording(path: Path) -> bool:
    # The readers of other programs' formats are slow to import, and mostly not needed.
    from store.foreign.contents import Interaction, NotReadable
    from store.foreign.read import open_source

    try:
        source = open_source(path)
        return source.form == "bundle" or any(isinstance(found, Interaction) for found in source.items)
    except (NotReadable, OSError):
        return False


def missing_file_failure(name: str) -> Failure:
    """Describe why there is no recording at this path."""
    path = Path(name)
    if path.is_dir():
        return Failure(f"{name} is a directory: name a bundle in it, or a run")
    if path.exists():
        return Failure(
            f"{name} is a pipe or a device, and a recording is read more than once: write it to a file first"
        )
    return Failure(f"there is no bundle {name}; make one with: playhead export RUN -o {name}")


def unknown_run_failure(run: str) -> Failure:
    """Describe that a run does not exist."""
    if Path(run).is_file():
        return Failure(
            f"there is no run {run} here, and the file {run} is not a recording: name it as ./{run} to see why"
        )
    return missing_run_failure(run)


def missing_run_failure(name: str, what: str = "run") -> Failure:
    """Describe that the store does not have it, for a command that reads the store alone."""
    if Path(name).is_file():
        return Failure(
            f"there is no {what} {name} here, and this command reads the store, not files; see the file:"
            f" playhead view {name}, or import it: playhead import {name}"
        )
    return Failure(f"there is no {what} {name} here; `playhead ls` lists what was recorded")
