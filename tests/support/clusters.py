"""Copies of one new Postgres cluster, where `initdb` would make each: that takes eight times the CPU, half a second.

All have the same system identifier, so two that one bucket serves need another `initdb`. Interpreters that are started in
earnest run it, as does whoever enters `real_initdb`.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

COPIES: Final = Path(__file__).parents[2] / ".pytest_cache" / "clusters"
"""The directory in which the first cluster of each kind is kept from one test run to the next."""

MOST_COPIES: Final = 8


def use_copies() -> None:
    """Create all clusters of this process and its forks by copying."""
    cluster = _cluster()
    if "run_in_earnest" not in vars(cluster):
        cluster.run_in_earnest = cluster._run_program
    cluster._run_program = _run_or_copy


@contextmanager
def real_initdb() -> Iterator[None]:
    """Create the clusters of this process by `initdb` inside the block."""
    cluster = _cluster()
    found = cluster._run_program
    cluster._run_program = getattr(cluster, "run_in_earnest", found)
    try:
        yield
    finally:
        cluster._run_program = found


def _cluster() -> Any:
    return import_module("store.embedded.postgres").Cluster


def _run_or_copy(cluster: Any, program: str, *arguments: str) -> str:
    run: Callable[..., str] = cluster.run_in_earnest
    if program != "initdb":
        return run(program, *arguments)
    place = Path(arguments[arguments.index("-D") + 1])
    copy = COPIES / _kind(cluster, arguments)
    if copy.exists():
        # Where the disk is full, or another process removes the copy, initdb says what is wrong.
        if _copy(copy, place):
            return ""
        shutil.rmtree(place, ignore_errors=True)
    said = run(program, *arguments)
    _keep(place, copy)
    return said


def _kind(cluster: Any, arguments: tuple[str, ...]) -> str:
    """Return the name of the copy, by its owner and the options that affect its content."""
    made_by = Path(cluster.job.bindir, "initdb").stat()
    options = [one for one in arguments[2:] if "sync" not in one]
    owner = cluster.identity.get("user", os.geteuid())
    facts = [cluster.job.bindir, made_by.st_size, made_by.st_mtime_ns, options, owner, os.environ.get("TZ")]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _keep(place: Path, copy: Path) -> None:
    """Store a complete copy, even if another process stores one now."""
    with suppress(OSError):
        copy.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{copy.name}.new.", dir=copy.parent))
        if _copy(place, fresh / "data", "--sparse=always"):
            with suppress(OSError):
                (fresh / "data").rename(copy)
        shutil.rmtree(fresh, ignore_errors=True)
        for old in sorted(copy.parent.iterdir(), key=lambda one: one.stat().st_mtime)[:-MOST_COPIES]:
            shutil.rmtree(old, ignore_errors=True)


def _copy(source: Path, place: Path, *options: str) -> bool:
    return subprocess.run(["cp", "-a", *options, source, place], check=False, capture_output=True).returncode == 0
