"""Check a run against a spec with the `playhead` command, which does the checking (docs/check.md)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playhead.rest import fetch_bundle

if TYPE_CHECKING:
    from collections.abc import Mapping

_DECIDED = (0, 1, 3)
"""Exit codes of `playhead check` with which it has printed its results."""


class CheckFailed(AssertionError):
    """Rules of a spec are broken, or cannot be decided. The message has a line for each finding."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.result = result
        """What `playhead check --json` prints."""

        super().__init__("\n".join(_finding_lines(result)))

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckFailed, (self.result,)


def require_passed(result: Mapping[str, Any]) -> None:
    """Raise CheckFailed unless every rule holds."""
    if result["verdict"] != "pass":
        raise CheckFailed(result)


def check_file(file: str | os.PathLike[str], spec: str | os.PathLike[str]) -> dict[str, Any]:
    """Check the run in a file. Raises RuntimeError if the spec or the file is invalid, or `playhead` cannot be started."""
    command = [*shlex.split(os.environ.get("PLAYHEAD_COMMAND", "playhead")), "check", "--json"]
    try:
        done = subprocess.run(
            [*command, "--spec", os.fspath(spec), "--", os.fspath(file)], capture_output=True, check=False
        )
    except OSError as error:
        raise RuntimeError(
            f"cannot start `{command[0]}` ({error}): put it on the PATH, or set its command with PLAYHEAD_COMMAND"
        ) from None
    if done.returncode not in _DECIDED:
        raise RuntimeError(done.stderr.decode("utf-8", "replace").strip())
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_stored_run(run: str, spec: str | os.PathLike[str]) -> dict[str, Any]:
    """Check a run of a running Playhead. Raises what `check_file` raises, and Unreachable."""
    with tempfile.TemporaryDirectory(prefix="playhead-check-") as directory:
        file = Path(directory) / "run.jsonl"
        file.write_bytes(fetch_bundle(run))
        result = check_file(file, spec)
    result["runs"][0]["run"] = run
    return result


def _finding_lines(result: Mapping[str, Any]) -> list[str]:
    return [
        "".join(
            (
                result["spec"] if rule["line"] is None else f"{result['spec']}:{rule['line']}",
                f" {rule['rule']}: ",
                "" if found["step"] is None else f"step {found['step']}: ",
                "cannot be decided: " if found["undecided"] else "",
                found["message"],
            )
        )
        for run in result["runs"]
        for rule in run["rules"]
        for found in rule["findings"]
    ]
