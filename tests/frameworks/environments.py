"""An environment of its own for each framework: made once with uv, or else pip, and kept where temporary files are kept."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest


def python(*requirements: str, limit: float = 100) -> Path:
    """The interpreter of an environment that holds them; where it cannot be made, the test is skipped and says why."""
    found = _make_environment(requirements, limit)
    return (
        found
        if isinstance(found, Path)
        else pytest.skip(f"{', '.join(requirements)} cannot be installed here: {found}")
    )


@cache
def _make_environment(requirements: tuple[str, ...], limit: float) -> Path | str:
    """The interpreter, or why there is none."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / f"playhead-framework-{os.getuid()}-{digest}"
    interpreter = place / "bin" / "python"
    if (place / "done").exists():
        return interpreter
    # Others may be making the same one: each makes its own, and the first to be done is kept.
    making = Path(tempfile.mkdtemp(prefix=f"{place.name}-"))
    if said := _install(making, requirements, limit):
        shutil.rmtree(making, ignore_errors=True)
        return said
    (making / "done").touch()
    try:
        making.rename(place)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
    return interpreter


def _install(place: Path, requirements: tuple[str, ...], limit: float) -> str | None:
    """Why it failed; None where it did not."""
    interpreter = str(place / "bin" / "python")
    if uv := _uv():
        lines = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(place)],
            [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", interpreter, *requirements],
        ]
    else:
        lines = [
            [sys.executable, "-m", "venv", str(place)],
            [interpreter, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *requirements],
        ]
    for line in lines:
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            return f"it took more than {limit:.0f} s"
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    return None


def _uv() -> str | None:
    own = Path(__file__).parents[2] / ".uv" / "bin" / "uv"
    return os.environ.get("PLAYHEAD_UV") or shutil.which("uv") or (str(own) if own.exists() else None)
