"""What of a command's surroundings is pinned to those of its recording: hash seeds, time zone, locale, the clock, unresolved names.

Whatever language a program is written in, it reads these from variables or, for the clock, through libfaketime, which Debian has.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from proxy.capture.faketime import MovedClock, NoFaketime, moved_clock
from replay.pinned import (
    ENVIRONMENT_LABEL,
    HAS_PROXY,
    PINNED_VARIABLES,
    PROXY_LABEL,
    UNRESOLVED_LABEL,
    format_environment,
    format_names,
    parse_environment,
)

SEEDS: Final = {"PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0"}
"""Seeds of hash tables, which each process draws if it has none."""

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


def unresolved_label(names: Iterable[str]) -> dict[str, str]:
    """Return the label with which a run remembers the names that did not resolve."""
    text = format_names(names)
    return {UNRESOLVED_LABEL: text} if text else {}


def proxy_label(*, has_proxy_variables: bool) -> dict[str, str]:
    """Return the label with which the run of a captive command remembers that it had proxy variables."""
    return {PROXY_LABEL: HAS_PROXY} if has_proxy_variables else {}


def pinned_by_label(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a run's label says."""
    return parse_environment(labels.get(ENVIRONMENT_LABEL, ""))


def with_pinned(environment: Mapping[str, str], pinned: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with these variables, and without others that decide about the same."""
    return {name: value for name, value in environment.items() if name not in PINNED_VARIABLES} | dict(pinned)


def recorded_clock(recorded: Mapping[str, Any], environment: Mapping[str, str], copies: Path) -> MovedClock:
    """Return what runs a command with the clock of its recording; where that is not possible, with the present one."""
    try:
        seconds = _seconds_to_move(recorded)
        return moved_clock(seconds, environment, copies) if seconds else MovedClock()
    except NoFaketime as why:
        return MovedClock(why_not=str(why))


def _seconds_to_move(recorded: Mapping[str, Any]) -> int:
    """Return by how much a clock is to be moved, so that it begins when the recording began. Raises NoFaketime."""
    if why := str(recorded.get("real_clock") or ""):
        raise NoFaketime(why)
    started_at = recorded.get("started_at")
    if not isinstance(started_at, int):
        raise NoFaketime("the recording does not say when its command began")
    moved_by = started_at - time.time_ns()
    if moved_by > NEAR:
        raise NoFaketime("the recording says that it began later than now, when certificates may have expired")
    return 0 if moved_by > -NEAR else -(-moved_by // 1_000_000_000)
