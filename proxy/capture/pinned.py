"""What of a command's surroundings is pinned to those of its recording: hash seeds, time zone, locale and the clock.

Whatever language a program is written in, it reads these from variables or, for the clock, through libfaketime, which Debian has.
"""

import os
import time
from collections.abc import Mapping
from glob import glob
from typing import Any, Final

from replay.pinned import ENVIRONMENT_LABEL, PINNED_VARIABLES, format_environment, parse_environment

SEEDS: Final = {"PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0"}
"""Seeds of hash tables, which each process draws if it has none."""

FAKETIME: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)

NEAR: Final = 2_000_000_000
"""Nanoseconds between recording and replay that are not worth another clock."""


def variables_to_pin(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to pin: the user's, and those without which each process or machine has its own."""
    pinned = {name: environment[name] for name in PINNED_VARIABLES if name in environment}
    if "TZ" not in pinned and (zone := _local_zone()):
        pinned["TZ"] = zone
    return {**SEEDS, **pinned}


def _local_zone() -> str | None:
    target = os.path.realpath("/etc/localtime")
    _, found, zone = target.partition("/zoneinfo/")
    return zone if found else None


def environment_label(pinned: Mapping[str, str]) -> dict[str, str]:
    """Return the label with which a run remembers what was pinned."""
    text = format_environment(pinned)
    return {ENVIRONMENT_LABEL: text} if text else {}


def pinned_by_label(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a run's label says."""
    return parse_environment(labels.get(ENVIRONMENT_LABEL, ""))


def with_pinned(environment: Mapping[str, str], pinned: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with these variables, and without others that decide about the same."""
    return {name: value for name, value in environment.items() if name not in PINNED_VARIABLES} | dict(pinned)


def clock_variables(recorded: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the variables that give a command the clock of its recording, or why it has the real one."""
    if why := str(recorded.get("real_clock") or ""):
        return {}, why
    started_at = recorded.get("started_at")
    if not isinstance(started_at, int):
        return {}, "the recording does not say when its command began"
    library = next((path for pattern in FAKETIME for path in sorted(glob(pattern))), None)
    if library is None:
        return {}, "libfaketime is not installed: apt install faketime"
    moved_by = started_at - time.time_ns()
    if abs(moved_by) < NEAR:
        return {}, ""
    return {
        "LD_PRELOAD": os.pathsep.join(filter(None, (library, environment.get("LD_PRELOAD")))),
        "FAKETIME": f"{moved_by / 1e9:+.6f}",
        # The times of files stay, by which builds go.
        "NO_FAKE_STAT": "1",
    }, ""
