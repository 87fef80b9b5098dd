"""Find the recordings that trials replay: runs of the store, files, and all bundles in a directory."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calls.keys.profile import Profiles
from calls.redaction.redactor import Redactor
from proxy.commands.replay import fetch_recording
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, resolve_run_name
from proxy.run_names import recording_path
from proxy.worker.recordings import load_file
from store.bundle.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRecording:
    """A recording that is replayed."""

    name: str
    """As the user knows it: a run, or the path of a file."""

    file: Path


type ListRuns = Callable[[Api], Sequence[dict[str, Any]]]
"""Lists the runs that the user's filters select."""


async def find_recordings(
    processes: CommandProcesses, names: Sequence[str], list_runs: ListRuns | None, directory: Path
) -> list[NamedRecording]:
    """Return the recordings of these names and filters, each as a file; those of runs are written into the directory.

    Raises Failure if there is none, or one cannot be read.
    """
    recording_names = [name for name_or_directory in names for name in _files_of_directory(name_or_directory)]
    if list_runs is not None:
        api = await processes.connect_store_server(stays_ready=True)
        found = await asyncio.to_thread(list_runs, api)
        # The newest runs are listed first; the oldest are replayed first.
        recording_names += [str(run["id"]) for run in reversed(found)]
    if "last" in recording_names:
        api = await processes.connect_store_server(stays_ready=True)
        recording_names = [resolve_run_name(api, name) if name == "last" else name for name in recording_names]
    recording_names = list(dict.fromkeys(recording_names))
    if not recording_names:
        raise Failure(
            "there are no recordings to replay: no run fits the filters; `playhead ls` with them shows the same list"
        )
    await asyncio.to_thread(directory.mkdir, parents=True)
    return [
        NamedRecording(name=name, file=await fetch_recording(processes, name, directory / f"{number}.rows"))
        for number, name in enumerate(recording_names, 1)
    ]


def _files_of_directory(name: str) -> list[str]:
    """Return the bundles in a directory and below, in the order of their names; for anything else the name itself."""
    path = Path(name)
    if not path.is_dir():
        return [name]
    found = sorted(str(file) for file in path.rglob("*.jsonl") if file.is_file())
    if not found:
        raise Failure(
            f"the directory {name} has no bundles (*.jsonl): make one with playhead export RUN -o {name}/RUN.jsonl"
        )
    return found


async def load_recording(recording: NamedRecording, redactor: Redactor, profiles: Profiles) -> Bundle:
    """Load a recording. Raises Failure."""
    return await asyncio.to_thread(load_file, recording.file, redactor, profiles)


def is_file(name: str) -> bool:
    """Whether a name is that of a file, which needs no store."""
    return Path(name).is_dir() or recording_path(name) is not None
