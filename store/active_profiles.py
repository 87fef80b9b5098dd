"""Load the profiles in force: the user's own, then the built-in ones in the order of the dialects."""

from functools import lru_cache
from pathlib import Path

import calls.profiles
from calls.dialects.table import DIALECTS
from calls.keys.profile import Profile, Profiles
from calls.keys.profile_toml import parse_profiles

BUILT_IN = tuple(dialect.name for dialect in DIALECTS)
"""The names of the profile files: each dialect has one. The last, `generic`, has the profile that matches everything."""


def load_profiles(extra_toml: str | None = None) -> Profiles:
    """Load all profiles, the `[[profile]]` tables of the user's TOML first. Raises `BadProfile` with the line of a mistake."""
    if not extra_toml:
        return _profiles_without_additions()
    return Profiles((*parse_profiles(extra_toml, _built_in_profiles()), *_built_in_profiles()))


@lru_cache(maxsize=1)
def _profiles_without_additions() -> Profiles:
    return Profiles(_built_in_profiles())


@lru_cache(maxsize=1)
def _built_in_profiles() -> tuple[Profile, ...]:
    return tuple(profile for name in BUILT_IN for profile in parse_profiles(profile_text(name), is_trusted=True))


def profile_text(name: str) -> str:
    """Return the TOML of a built-in profile. A test checks its paths, so that no process has to at its start."""
    return Path(calls.profiles.__path__[0], f"{name}.toml").read_text("utf-8")
