"""Find the version of the code that a command runs: the commit of the Git repository that it is started in."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VERSION_LABELS: Final = ("git", "git-dirty")
TIMEOUT: Final = 2.0
"""Seconds that Git may take; without an answer there are no labels."""

# Without the file system monitor that the repository may name, and without writing its index.
_STATUS: Final = ("-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch", "--untracked-files=no")


def code_labels(directory: Path) -> dict[str, str]:
    """Return the labels `git` (the commit) and `git-dirty` (whether tracked files differ from it); none outside a repository."""
    if not any((parent / ".git").exists() for parent in (directory, *directory.parents)):
        return {}
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *_STATUS],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            # A hook of Git, for instance, has variables that name another repository.
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
            | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.splitlines()
    commit = next((line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")), "")
    if done.returncode or not commit or commit.startswith("("):  # a repository without a commit says "(initial)"
        return {}
    is_dirty = any(not line.startswith("#") for line in lines)
    return {"git": commit, "git-dirty": str(is_dirty).lower()}


MOST_VERSIONS: Final = 10
"""Commits that a run's label names at most; the newest stay."""


def add_version(run_labels: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a recording that is added to a run, with the versions that the run's labels name already before its own."""
    if not all(name in labels and name in run_labels for name in VERSION_LABELS):
        return dict(labels)
    pairs = list(zip(*(run_labels[name].split(", ") for name in VERSION_LABELS), strict=False))
    own = (labels["git"], labels["git-dirty"])
    versions = [*(pair for pair in pairs if pair != own), own][-MOST_VERSIONS:]
    return dict(labels) | {
        name: ", ".join(pair[place] for pair in versions) for place, name in enumerate(VERSION_LABELS)
    }
