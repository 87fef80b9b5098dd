"""Find what the name of a recording means: a file, a run, or `last`.

A name is that of a run in the store, that of a file, or `last`. Agents name their runs as they like, and are recorded all the
same; whoever types a name is told at once that nothing could be done with it later.
"""

from pathlib import Path

from calls.request_identifiers import RUN
from proxy.errors import Failure


def unfit(run: str) -> str | None:
    """Why nobody should give a run this name; None where they may."""
    if not RUN.fullmatch(run):
        return "use 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
    if run == "last":
        return "every command takes it for the newest run"
    if run.startswith("-"):
        return "every command takes it for an option"
    if run.endswith(".jsonl"):
        return "every command takes it for a file"
    return None


def file_of(name: str) -> Path | None:
    """The file that is meant; None where it is a run. What only happens to lie here under a run's name, and is no recording,
    is not meant."""
    path = Path(name)
    if not path.is_file():
        return None
    by_chance = "/" not in name and not path.suffix and RUN.fullmatch(name)
    return None if by_chance and not _is_recording(path) else path


def _is_recording(path: Path) -> bool:
    # Readers of other programs' files take long to import, and mostly none is needed.
    from store.foreign.contents import Interaction, NotReadable
    from store.foreign.read import opened

    try:
        source = opened(path)
        return source.form == "bundle" or any(isinstance(found, Interaction) for found in source.found)
    except (NotReadable, OSError):
        return False


def no_file(name: str) -> Failure:
    """There is no recording of this path."""
    path = Path(name)
    if path.is_dir():
        return Failure(f"{name} is a directory; name a bundle in it, or a run")
    if path.exists():
        return Failure(
            f"{name} is a pipe or a device, and a recording is read more than once; write it to a file first"
        )
    return Failure(f"there is no bundle {name}; make one with: playhead export RUN -o {name}")


def unknown(run: str) -> Failure:
    """There is no such run."""
    if Path(run).is_file():
        return Failure(
            f"there is no run {run} here, and the file {run} is no recording: ./{run} names it, to see why not"
        )
    return Failure(f"there is no run {run} here; `playhead ls` lists what was recorded")
