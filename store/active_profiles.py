"""Load the profiles in force: the user's own, then the built-in ones in the order of the dialects.

The built-in ones are read from one JSON file, which takes a tenth of the time that their TOML takes. After a change of the TOML,
`python -m store.active_profiles` writes that file anew; a test compares the two.
"""

from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

import calls.profiles
from calls.dialects.table import DIALECTS
from calls.keys.profile import (
    AnswerRules,
    Default,
    Folds,
    HeaderRules,
    Nonce,
    Profile,
    ProfileMatch,
    Profiles,
    QueryRules,
)

BUILT_IN = tuple(dialect.name for dialect in DIALECTS)
"""The names of the profile files: each dialect has one. The last, `generic`, has the profile that matches everything."""

BUILT_IN_FILE: Final = Path(calls.profiles.__path__[0], "built_in.json")
"""All of them, with their digest."""

_PARTS: Final[dict[str, type]] = {
    "match": ProfileMatch,
    "query": QueryRules,
    "headers": HeaderRules,
    "folds": Folds,
    "answer": AnswerRules,
}
"""The members of a profile that are objects."""


def load_profiles(extra_toml: str | None = None) -> Profiles:
    """Load all profiles, the `[[profile]]` tables of the user's TOML first. Raises `BadProfile` with the line of a mistake."""
    built_in = _built_in_profiles()
    if not extra_toml:
        return built_in
    from calls.keys.profile_toml import parse_profiles

    return Profiles((*parse_profiles(extra_toml, built_in.profiles), *built_in.profiles))


@lru_cache(maxsize=1)
def _built_in_profiles() -> Profiles:
    found = msgspec.json.decode(BUILT_IN_FILE.read_bytes())
    return Profiles(tuple(map(_build_profile, found["profiles"])), found["digest"])


def _build_profile(table: dict[str, Any]) -> Profile:
    return Profile(**{name: _build_part(_PARTS.get(name), value) for name, value in table.items()})


def _build_part(kind: type | None, value: Any) -> Any:
    if kind is None:
        return tuple(value) if isinstance(value, list) else value
    if kind is Folds:
        value["defaults"] = (Default(**one) for one in value.get("defaults", ()))
        value["nonces"] = (Nonce(**one) for one in value.get("nonces", ()))
    return kind(**{name: tuple(texts) for name, texts in value.items()})


def built_in_json() -> bytes:
    """Return what the JSON file has to contain: the profiles of the TOML files, with what they do not leave at its default."""
    from calls.keys.profile_toml import parse_profiles

    profiles = [profile for name in BUILT_IN for profile in parse_profiles(profile_text(name), is_trusted=True)]
    lines = b",\n".join(msgspec.json.encode(_without_defaults(profile)) for profile in profiles)
    return b'{"digest":"%s","profiles":[\n%s\n]}\n' % (Profiles(tuple(profiles)).digest.encode(), lines)


def _without_defaults(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_without_defaults(one) for one in value]
    if not is_dataclass(value):
        return value
    members = ((part, getattr(value, part.name)) for part in fields(value) if part.init)
    return {part.name: _without_defaults(member) for part, member in members if member != part.default}


def profile_text(name: str) -> str:
    """Return the TOML of a built-in profile. A test checks its paths, so that no process has to at its start."""
    return Path(calls.profiles.__path__[0], f"{name}.toml").read_text("utf-8")


if __name__ == "__main__":
    BUILT_IN_FILE.write_bytes(built_in_json())
