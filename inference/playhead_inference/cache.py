"""Cache a check that held, so that the next start of the same server on the same machine need not repeat it.

The cache key covers everything that a verdict depends on: the fingerprint (the checkpoint's files, the effective
configuration, the code, the number of threads), the machine, and the checked settings. Only `holds` is cached.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from playhead_inference.identity import digest_value

VARIABLE: Final = "PLAYHEAD_VERDICTS"
"""The environment variable with the directory for verdicts, or `off`."""

FORMAT: Final = 1


def verdict_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The directory for verdicts; None if they are not cached."""
    named = environment.get(VARIABLE)
    if named == "off":
        return None
    if named:
        return Path(named)
    base = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := environment.get("HOME")) else "")
    return Path(base) / "playhead" / "inference" if base else None


def machine_identity() -> dict[str, Any]:
    """The properties of this machine that may affect the order of addition."""
    cpu = _cpu_info()
    return {
        "node": platform.node(),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": {name: cpu.get(name) for name in ("model name", "stepping", "microcode", "flags", "cache size")},
    }


def cpu_digest() -> str:
    """A digest of what kernels use to choose instructions and block sizes. CPUs of the same name may differ in it."""
    found = _cpu_info()
    names = ("cpu family", "model", "stepping", "flags", "cache size")
    return digest_value(
        [[found.get(name) for name in names], [file.read_text("utf-8") for file in sorted(CACHES.glob("*/size"))]]
    )


CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def _cpu_info() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def verdict_key(fingerprint: str, settings: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The cache key of a verdict. `found` is the machine."""
    return digest_value({"format": FORMAT, "fingerprint": fingerprint, "settings": settings, "machine": found})


def load_verdict(directory: Path | None, key: str) -> dict[str, Any] | None:
    """Load the report of a check that held; None if there is none, or none that can be read."""
    if directory is None:
        return None
    try:
        saved = json.loads(_verdict_file(directory, key).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(saved, dict) or saved.get("key") != key or not isinstance(report := saved.get("report"), dict):
        return None
    return {**report, "checked_at": saved.get("checked_at")} if report.get("verdict") == "holds" else None


def save_verdict(directory: Path | None, key: str, report: Mapping[str, Any]) -> str | None:
    """Save the report of a check that held. Return the reason if that failed, and None otherwise."""
    if directory is None or report.get("verdict") != "holds":
        return None
    saved = {"key": key, "checked_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "report": report}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=directory, delete=False, encoding="utf-8") as file:
            json.dump(saved, file)
        Path(file.name).replace(_verdict_file(directory, key))
    except OSError as error:
        return str(error)
    return None


def _verdict_file(directory: Path, key: str) -> Path:
    return directory / f"{key.removeprefix('sha256:')}.json"
