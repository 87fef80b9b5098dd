"""Write what a trial did as a bundle, which every other command reads."""

import re
from collections.abc import Sequence
from pathlib import Path

from calls.derive import deriver
from calls.model import Exchange
from proxy.errors import Failure
from proxy.fixtures.write_recording import new_run, run_id
from proxy.recording_file import write_whole
from replay.forks.generation import generation_bundle
from store.bundle.bundle import bundle_lines
from store.diff.steps import StepReader


def write_new_run(directory: Path, name: str, exchanges: Sequence[Exchange], reading: StepReader) -> Path | None:
    """Write the bundle of a new run; None if it has no exchange. Raises Failure."""
    if not exchanges:
        return None
    stem = file_stem(name)
    run = new_run(run_id(f"{stem}-new"), exchanges[0].started_at)
    bundle = generation_bundle(run, reading.profiles.digest, exchanges, deriver(reading.profiles, reading.clean))
    path = free_path(directory, stem)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, bundle_lines(bundle))
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}; name another directory with --keep") from error
    return path


def file_stem(name: str) -> str:
    """Return the file name for a recording: that of a run, or the path of a file with dashes."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".jsonl")).strip("-.")
    return plain[-100:] or "run"


def free_path(directory: Path, stem: str) -> Path:
    """Return a path that no file has."""
    numbers = iter(range(2, 100_000))
    path = directory / f"{stem}.jsonl"
    while path.exists():
        path = directory / f"{stem}-{next(numbers)}.jsonl"
    return path
