"""Load the profiles in force: the user's own, then the built-in ones in the order of the dialects.

To parse the TOML of the built-in ones takes 25 ms, so what it says is stored as JSON where Python stores compiled modules, and under
the same rules: it is made again when a source is younger, and where nothing can or may be written, nothing is.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

import calls.dialects
import calls.keys
import calls.profiles
from calls.dialects.table import DIALECTS
from calls.keys.profile import (
    AnswerRules,
    Answers,
    Default,
    Folds,
    HeaderRules,
    Nonce,
    Profile,
    ProfileMatch,
    Profiles,
    QueryRules,
)

PARSED: Final = Path(calls.profiles.__path__[0], "__pycache__", "profiles.json")
"""The built-in profiles as JSON, and the state of the files that they are made of and by."""

SOURCES: Final = (Path(calls.keys.__path__[0]), Path(calls.dialects.__path__[0]))
"""The folders of the code that reads the profiles, and of the dialects, which give them their order."""

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
    # It is imported with tomllib.
    from calls.keys.profile_toml import parse_profiles

    return Profiles((*parse_profiles(extra_toml, built_in.profiles), *built_in.profiles))


@lru_cache(maxsize=1)
def _built_in_profiles() -> Profiles:
    sources = _source_state()
    with suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode(PARSED.read_bytes())
        if found["sources"] == sources:
            return Profiles(tuple(map(_build_profile, found["profiles"])))
    profiles = parse_built_in()
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _store_parsed(profiles, sources)
    return Profiles(profiles)


def built_in_names() -> tuple[str, ...]:
    """Return the names of the profile files: each dialect has one. The last, `generic`, has the profile that matches everything."""
    return tuple(dialect.name for dialect in DIALECTS)


def parse_built_in() -> tuple[Profile, ...]:
    """Parse the built-in profiles from their TOML."""
    from calls.keys.profile_toml import parse_profiles

    return tuple(
        profile for name in built_in_names() for profile in parse_profiles(profile_text(name), is_trusted=True)
    )


def _source_state() -> list[list[str | int]]:
    """The names, times and sizes of the TOML files, of the code that reads them, and of the dialects, whose order they have."""
    return [
        [entry.name, (state := entry.stat()).st_mtime_ns, state.st_size]
        for folder in (PARSED.parent.parent, *SOURCES)
        for entry in sorted(_list_files(folder), key=os.fspath)
    ]


def _list_files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, without those that Python makes."""
    for entry in os.scandir(folder):
        if entry.is_file():
            yield entry
        elif entry.name != "__pycache__":
            yield from _list_files(entry.path)


def _store_parsed(profiles: Sequence[Profile], sources: Sequence[object]) -> None:
    content = msgspec.json.encode(
        {"sources": sources, "profiles": [_without_defaults(profile) for profile in profiles]}
    )
    # Few processes ever write it.
    from store.private_file import write_private

    PARSED.parent.mkdir(exist_ok=True)
    write_private(PARSED, content)
    # As open to other users as a compiled module.
    PARSED.chmod(0o644)


def _build_profile(table: dict[str, Any]) -> Profile:
    return Profile(**{name: _build_part(_PARTS.get(name), value) for name, value in table.items()})


def _build_part(kind: type | None, value: Any) -> Any:
    if kind is None:
        return tuple(value) if isinstance(value, list) else value
    if kind is Folds:
        value["defaults"] = (Default(**one) for one in value.get("defaults", ()))
        value["nonces"] = (Nonce(**one) for one in value.get("nonces", ()))
        value["answers"] = (Answers(**one) for one in value.get("answers", ()))
    return kind(**{name: tuple(texts) for name, texts in value.items()})


def _without_defaults(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_without_defaults(one) for one in value]
    if isinstance(value, Profile):
        parts = {part.name: part.default for part in fields(value) if part.init}
    elif isinstance(value, msgspec.Struct):
        parts = {part.name: part.default for part in msgspec.structs.fields(value)}
    else:
        return value
    members = {name: getattr(value, name) for name in parts}
    return {name: _without_defaults(member) for name, member in members.items() if member != parts[name]}


def profile_text(name: str) -> str:
    """Return the TOML of a built-in profile. A test checks its paths, so that no process has to at its start."""
    return Path(calls.profiles.__path__[0], f"{name}.toml").read_text("utf-8")
