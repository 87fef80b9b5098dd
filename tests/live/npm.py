"""Node's packages for the live tests: fetched once from the npm registry, kept where temporary files are kept."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

PACKAGES = {
    "openai": "6.49.0",
    "openai4": "npm:openai@4.104.0",
    "undici": "7.30.2",
    "axios": "1.21.1",
    "ws": "8.23.0",
}

NODE_24 = {"node": "24.21.0"}


def node() -> str:
    """The Node on PATH; without one the test is skipped."""
    return shutil.which("node") or pytest.skip("node is not installed here")


def packages() -> Path:
    """A directory whose `node_modules` has PACKAGES."""
    return install_packages(tuple(PACKAGES.items()))


def node_24() -> str:
    """A Node that knows NODE_USE_ENV_PROXY."""
    return str(install_packages(tuple(NODE_24.items())) / "node_modules" / "node" / "bin" / "node")


def install_packages(wanted: tuple[tuple[str, str], ...]) -> Path:
    found = _install(wanted)
    if isinstance(found, Path):
        return found
    return pytest.skip(f"npm cannot install {', '.join(name for name, _ in wanted)} here: {found}")


@cache
def _install(wanted: tuple[tuple[str, str], ...]) -> Path | str:
    """The directory, or why there is none."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    manifest = json.dumps({"private": True, "dependencies": dict(wanted)})
    name = f"playhead-npm-{os.getuid()}-{hashlib.sha256(manifest.encode()).hexdigest()[:12]}"
    place = Path(tempfile.gettempdir()) / name
    if (place / "done").exists():
        return place
    place.mkdir(mode=0o700, exist_ok=True)
    (place / "package.json").write_text(manifest)
    line = [npm, "install", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, check=False, timeout=110)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    (place / "done").touch()
    return place
