"""Load the recordings that a worker replays from a file of any format. `stored_recordings` loads those of the store server."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from calls.keys.profile import Profiles
from calls.model import UnknownFormat
from calls.project_runs import RUN_ID
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from replay.recording import Recording, ReportProgress, count_calls, pause_gc
from replay.requested_options import RequestedOptions
from store.bundle import rows_bundle
from store.bundle.bundle import BadBundle, Bundle, read_bundle
from store.database.blobs import CorruptData
from store.foreign.adopt import Adoption, adopt_bundle
from store.foreign.contents import NotReadable
from store.foreign.read import default_run_name, open_plain, open_source


class FoundRecording(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has under the name of a run or a replay."""

    run: str
    """The run's id."""

    bundle: Bundle | None = None
    """The recording; None if there is none."""

    recording: Recording | None = None
    """The recording as it answers requests, if it was made before."""

    replay_options: RequestedOptions = msgspec.field(default_factory=dict)
    is_replay: bool = False
    """Whether the name is that of a replay or fork which was created over REST."""

    is_flawed: bool = False
    """Whether it was recorded in mode `auto` and is incomplete, so that mode `auto` does not answer from it."""

    @property
    def is_edited(self) -> bool:
        """Whether the replay answers from something else than the recording as it is: a fork, or one with overrides."""
        return bool(self.replay_options.get("overrides")) or self.replay_options.get("fork") is not None

    @property
    def records_misses(self) -> bool:
        """Whether the replay records its misses."""
        return (self.replay_options.get("options") or {}).get("on_miss") == "record"


type Fetch = Callable[[str], Awaitable[FoundRecording]]

type FetchMany = Callable[[Sequence[str]], Awaitable[Mapping[str, FoundRecording | None]]]
"""Fetches runs of one project by their full names, or as many of the first ones as an answer holds. None: it has to be fetched alone."""


@pause_gc()
def load_file(
    path: Path, redactor: Redactor, profiles: Profiles, report_progress: ReportProgress | None = None
) -> Bundle:
    """Load a recording from a file: a bundle, or another program's format. Raises Failure that says what is wrong."""
    try:
        if rows_bundle.is_rows_bundle(path):
            return rows_bundle.load_recording(path)
        source = open_source(path)
        if source.form != "bundle":
            adoption = Adoption(
                run=default_run_name(path), redactor=redactor, default_started_at=path.stat().st_mtime_ns
            )
            return read_bundle(adopt_bundle(adoption, source.items, profiles.digest, path.name))
        with open_plain(path) as lines:
            # Nearly all lines are calls.
            counted_lines = count_calls(lines, f"reading {path.name}", report_progress)
            return _require_run_id(path, read_bundle(counted_lines))
    except OSError as error:
        raise Failure(f"cannot read the bundle {path}: {error.strerror}") from error
    except (BadBundle, CorruptData, UnknownFormat, NotReadable) as error:
        raise Failure(f"{path}: {error}") from error


def _require_run_id(path: Path, bundle: Bundle) -> Bundle:
    """Return the bundle. Raises Failure if its run has an id that no run can have, such as one that names another project."""
    run = str(bundle.run["id"])
    if not RUN_ID.fullmatch(run):
        raise Failure(
            f"{path}: its run has the id {run[:200]!r}, which no run can have;"
            f" import it under another one: playhead import {path} --run ID"
        )
    return bundle
