"""`playhead calibrate RUN RUN`: find what differs between two recordings of the same work, and propose rules for it.

`playhead.toml` is the only file that is written. It is replaced atomically, only with the user's consent, and only after both
recordings were keyed under the new rules.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from calls.comparison.calibrate import Calibration, KeyAgreement, calibrate
from calls.comparison.proposal import add_proposal, propose_profiles
from calls.keys.profile import BadProfile, Profiles
from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, path_segment, resolve_run_name
from proxy.run_names import missing_file_failure, recording_path, unknown_run_failure
from proxy.worker.recordings import load_file
from store.active_profiles import load_profiles
from store.bundle.bundle import read_bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOutcome:
    """The differences, and the proposed rules."""

    found: Calibration
    text: str | None
    """The whole of `playhead.toml` with the proposed rules; None if there are none."""
    added_text: str
    """The lines of `text` that are new."""
    after: KeyAgreement
    """How many keys of the recordings agree under the proposed rules."""


def load_exchanges(api: Api | None, recording: str, redactor: Redactor) -> list[Exchange]:
    """Load the exchanges of a file or a run, in the order of their steps. Two that are compared have the same redactor."""
    if is_recording_file(recording):
        found = load_file(Path(recording), redactor, load_profiles())
    else:
        assert api is not None, "the caller connects unless both recordings are files"
        run = resolve_run_name(api, recording)
        try:
            lines = b"".join(api.stream_bytes(f"/runs/{path_segment(run)}/bundle", proof="false"))
        except NotFound as error:
            raise unknown_run_failure(run) from error
        found = read_bundle(lines.splitlines(keepends=True))
    return sorted(found.exchanges, key=lambda each: (each.started_at, each.id))


def is_recording_file(recording: str) -> bool:
    """Whether the name is that of a file and not of a run. Raise Failure if the file does not exist."""
    if recording_path(recording):
        return True
    if "/" in recording or recording.endswith((".jsonl", ".yaml", ".har")):
        raise missing_file_failure(recording)
    return False


def calibrate_recordings(
    one: Sequence[Exchange], other: Sequence[Exchange], toml: str, about: str
) -> CalibrationOutcome:
    """Compare two recordings under the rules in the text of a `playhead.toml`, and with the proposed rules added."""
    found = calibrate(one, other, _parse_profiles(toml))
    proposals = propose_profiles(found.findings)
    text = toml
    for proposal in proposals:
        text = add_proposal(text, proposal, about)
    if not proposals:
        return CalibrationOutcome(found=found, text=None, added_text="", after=found.agreement)
    after = calibrate(one, other, _parse_profiles(text, "with the proposed rules added, ")).agreement
    return CalibrationOutcome(found=found, text=text, added_text="".join(_changed_lines(toml, text)), after=after)


def _parse_profiles(toml: str, when: str = "") -> Profiles:
    try:
        return load_profiles(toml)
    except BadProfile as error:
        raise Failure(f"{when}playhead.toml cannot be read ({error}); correct that line") from error


def _changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that were added or changed."""
    known, lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changes = SequenceMatcher(None, known, lines, autojunk=False).get_opcodes()
    return [line for kind, _, _, start, end in changes if kind != "equal" for line in lines[start:end]]


def write_rules(path: Path, text: str, before: str) -> None:
    """Replace the file atomically. Raise Failure if it is no longer what it was `before`."""
    target = path.resolve()
    try:
        if (target.read_bytes().decode() if target.exists() else "") != before:
            raise Failure(f"{path} was changed meanwhile; run the command again")
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=".playhead-", delete=False) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), mode)
        Path(file.name).replace(target)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}; add the rules by hand") from error
