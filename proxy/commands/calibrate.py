"""`playhead calibrate RUN RUN`: find what differs between two recordings of the same work, and rules for it.

Nothing is written but `playhead.toml`, and that only on consent: whole or not at all, and only when it can be read again
and the two recordings were keyed under it.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from calls.comparison.calibrate import Calibration, KeyAgreement, calibrate
from calls.comparison.proposal import added, proposals
from calls.keys.profile import BadProfile, Profiles
from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, meant, segment
from proxy.run_names import file_of, no_file, unknown
from proxy.worker.recordings import from_file
from store.active_profiles import shipped
from store.bundle.bundle import read


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found, and what the rules would be."""

    found: Calibration
    text: str | None
    """All of `playhead.toml` as it would be; None where there is no rule to propose."""
    fresh: str
    """What is new in it."""
    after: KeyAgreement
    """How the recordings agree under it."""


def exchanges(api: Api | None, recording: str) -> list[Exchange]:
    """A recording's exchanges in the order of their steps: of a file, or of a run."""
    if is_file(recording):
        # What another program recorded is redacted as it is read, and kept nowhere: any key will do.
        found = from_file(Path(recording), Redactor(key=bytes(32)), shipped())
    else:
        assert api is not None, "runs are asked for where one is named"
        run = meant(api, recording)
        try:
            lines = b"".join(api.raw(f"/runs/{segment(run)}/bundle"))
        except NotFound as error:
            raise unknown(run) from error
        found = read(lines.splitlines(keepends=True))
    return sorted(found.exchanges, key=lambda each: (each.started_at, each.id))


def is_file(recording: str) -> bool:
    """Whether a file is meant, and not a run. Raises Failure where there is no such file."""
    if file_of(recording):
        return True
    if "/" in recording or recording.endswith((".jsonl", ".yaml", ".har")):
        raise no_file(recording)
    return False


def calibrated(one: Sequence[Exchange], other: Sequence[Exchange], toml: str, about: str) -> Outcome:
    """Compare two recordings under the rules of this `playhead.toml` (its text), and try the rules that would help."""
    found = calibrate(one, other, _profiles(toml))
    wanted = proposals(found.findings)
    text = toml
    for proposal in wanted:
        text = added(text, proposal, about)
    if not wanted:
        return Outcome(found=found, text=None, fresh="", after=found.agreement)
    after = calibrate(one, other, _profiles(text, "with the proposed rules added, ")).agreement
    return Outcome(found=found, text=text, fresh="".join(_new(toml, text)), after=after)


def _profiles(toml: str, when: str = "") -> Profiles:
    try:
        return shipped(toml)
    except BadProfile as error:
        raise Failure(f"{when}playhead.toml cannot be read ({error}); correct that line") from error


def _new(before: str, after: str) -> list[str]:
    """The lines that were added or changed."""
    known, lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changes = SequenceMatcher(None, known, lines, autojunk=False).get_opcodes()
    return [line for kind, _, _, start, end in changes if kind != "equal" for line in lines[start:end]]


def write(path: Path, text: str, before: str) -> None:
    """Put the text in the file's place, whole, unless it was changed meanwhile. Raises Failure."""
    place = path.resolve()
    try:
        if (place.read_bytes().decode() if place.exists() else "") != before:
            raise Failure(f"{path} was changed meanwhile; run the command again")
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o644
        with tempfile.NamedTemporaryFile("wb", dir=place.parent, prefix=".playhead-", delete=False) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), mode)
        Path(file.name).replace(place)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}; add the rules by hand") from error
