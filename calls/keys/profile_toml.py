"""Read profiles from `[[profile]]` tables in TOML: `playhead.toml`, and those in `calls/profiles/`.

A profile may extend another one: it inherits every rule that it does not define itself. The digest covers the result.
"""

import re
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import msgspec

from calls.keys.places import BadPath
from calls.keys.profile import (
    NEVER_KEYS,
    PLAIN_FOLDS,
    AnswerRules,
    Answers,
    BadProfile,
    Default,
    Folds,
    HeaderRules,
    Nonce,
    Profile,
    ProfileMatch,
    QueryRules,
    Unknown,
)
from calls.keys.rules import FieldClass, normalize_path


def parse_profiles(
    text: str, base_profiles: Iterable[Profile] = (), *, is_trusted: bool = False
) -> tuple[Profile, ...]:
    """Parse the `[[profile]]` tables of a TOML text in their order. Each may extend another one or one of `base_profiles`.

    `is_trusted`: the paths are known to be valid. Raises `BadProfile`.
    """
    try:
        tables = tomllib.loads(text).get("profile", [])
    except tomllib.TOMLDecodeError as error:
        raise BadProfile(f"invalid TOML: {error}") from error
    if not isinstance(tables, list):
        raise BadProfile("profile must be an array of tables: write [[profile]] with two brackets")
    family = _ProfileResolver(
        [_ProfileTable(text, number, table, is_trusted=is_trusted) for number, table in enumerate(tables)],
        base_profiles,
    )
    return tuple(map(family.resolve, family.tables))


class _ProfileResolver:
    """Resolves `extends` among the profiles of a text and the base profiles."""

    def __init__(self, tables: Sequence["_ProfileTable"], base_profiles: Iterable[Profile]) -> None:
        self.tables = tables
        self._base_profiles = {profile.name: profile for profile in base_profiles}
        self._by_name = {table.profile.name: table for table in reversed(tables)}

    def resolve(self, table: "_ProfileTable", below: tuple["_ProfileTable", ...] = ()) -> Profile:
        """Return the profile of a table with the rules that it inherits."""
        if table.extends is None:
            return table.profile
        below = (*below, table)
        if (base := self._by_name.get(table.extends)) in below:
            raise table.error_near(f"profile {table.extends!r} extends itself: extend another profile", "extends")
        if base is not None:
            return extend_profile(self.resolve(base, below), table.profile, table.given, table.dropped_headers)
        if table.extends not in self._base_profiles:
            raise table.error_near(
                f"unknown profile {table.extends!r} in extends: docs/keys.md lists the built-in profiles", "extends"
            )
        return extend_profile(self._base_profiles[table.extends], table.profile, table.given, table.dropped_headers)


def extend_profile(
    base: Profile, own: Profile, settings: Container[str], dropped_headers: Container[str] = ()
) -> Profile:
    """Merge a profile into the one that it extends. `settings`: those that `own` has; `dropped_headers`: headers to remove."""
    own_paths = {normalize_path(path) for kind in get_args(FieldClass.__value__) for path in getattr(own, kind)}
    classes = {
        kind: (*getattr(own, kind), *(path for path in getattr(base, kind) if normalize_path(path) not in own_paths))
        for kind in get_args(FieldClass.__value__)
    }
    return Profile(
        name=own.name,
        **classes,
        match=ProfileMatch(
            **{name: getattr(own.match, name) or getattr(base.match, name) for name in ProfileMatch.__struct_fields__}
        ),
        query=_merge_lists(QueryRules, base.query, own.query),
        headers=_merge_lists(HeaderRules, base.headers, own.headers, dropped_headers),
        folds=_merge_folds(base.folds, own.folds),
        answer=AnswerRules(ignore=tuple(dict.fromkeys((*own.answer.ignore, *base.answer.ignore)))),
        unknown=own.unknown if "unknown" in settings else base.unknown,
        is_telemetry=own.is_telemetry if "telemetry" in settings else base.is_telemetry,
    )


def _merge_lists[T: QueryRules | HeaderRules](kind: type[T], base: T, own: T, dropped: Container[str] = ()) -> T:
    """Merge the lists of both; a name in a list of `own` is removed from the lists of `base`."""
    names = kind.__struct_fields__
    own_names = {header for name in names for header in getattr(own, name)}
    inherited = {
        name: (one for one in getattr(base, name) if one not in own_names and one not in dropped) for name in names
    }
    return kind(**{name: (*getattr(own, name), *inherited[name]) for name in names})


def _merge_folds(base: Folds, own: Folds) -> Folds:
    plain = {name: tuple(dict.fromkeys((*getattr(own, name), *getattr(base, name)))) for name in PLAIN_FOLDS}
    return Folds(
        **plain,
        defaults=_merge_by_path(own.defaults, base.defaults),
        nonces=_merge_by_path(own.nonces, base.nonces),
        answers=_merge_by_path(own.answers, base.answers),
    )


def _merge_by_path[T: Default | Nonce | Answers](own: tuple[T, ...], base: tuple[T, ...]) -> tuple[T, ...]:
    own_paths = {one.path for one in own}
    return (*own, *(one for one in base if one.path not in own_paths))


class _ProfileTable:
    """One `[[profile]]` table with its lines, so that an error can name the line."""

    def __init__(self, text: str, number: int, table: Mapping[str, Any], *, is_trusted: bool) -> None:
        self._is_trusted = is_trusted
        self._lines = text.splitlines()
        heads = [line for line, words in enumerate(self._lines) if re.match(r"\s*\[\[\s*profile\s*\]\]", words)]
        self._first = heads[number] if number < len(heads) else 0
        self._last = heads[number + 1] if number + 1 < len(heads) else len(self._lines)
        self.given = frozenset(table)
        self.extends: str | None = self._parse_extends(table)
        self.dropped_headers: tuple[str, ...] = ()
        """Headers of the extended profile that do not count."""
        self.profile = self._parse_profile(table)

    def _parse_profile(self, table: Mapping[str, Any]) -> Profile:
        """Parse the table itself, without the profile that it extends."""
        if "told" in table:
            raise self.error_near("the setting told is called telemetry now: write telemetry instead of told", "told")
        own = {part.name for part in fields(Profile) if part.init} - {"folds", "is_telemetry"}
        self._check_names(table, own | {"fold", "telemetry", "extends"}, "a profile")
        name = self._parse_name(table.get("name"))
        parts = {kind: self._parse_texts(table.get(kind, []), kind) for kind in get_args(FieldClass.__value__)}
        self._check_paths([path for paths in parts.values() for path in paths])
        return Profile(
            name=name,
            **parts,
            match=self._parse_match(table.get("match", {})),
            query=QueryRules(**self._parse_lists(table.get("query", {}), QueryRules, "query")),
            headers=self._parse_headers(table.get("headers", {})),
            folds=self._parse_folds(table.get("fold", {})),
            answer=self._parse_answer(table.get("answer", {})),
            unknown=self._parse_unknown(table.get("unknown", "key")),
            is_telemetry=self._parse_telemetry(table.get("telemetry", False)),
        )

    def _parse_extends(self, table: Mapping[str, Any]) -> str | None:
        name = table.get("extends")
        if name is None or isinstance(name, str):
            return name
        raise self.error_near(
            f'invalid extends {name!r}: write the name of one profile, as in extends = "rest/1"', "extends"
        )

    def _parse_name(self, name: object) -> str:
        if not isinstance(name, str) or re.fullmatch(r"[\w.-]+/\d+", name) is None:
            raise self.error_near(
                f'invalid name {name!r}: write a name with a version, as in name = "tickets/1"', "name"
            )
        return name

    def _parse_unknown(self, value: object) -> Unknown:
        match value:
            case "key" | "transient":
                return value
            case _:
                raise self.error_near(f'unknown = {value!r} is invalid: write "key" or "transient"', "unknown")

    def _parse_telemetry(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise self.error_near(f"telemetry = {value!r} is invalid: write true or false", "telemetry")

    def _parse_match(self, table: Any) -> ProfileMatch:
        lists = self._parse_lists(table, ProfileMatch, "match")
        lists["host"] = tuple(host.lower() for host in lists.get("host", ()))
        lists["method"] = tuple(method.upper() for method in lists.get("method", ()))
        return ProfileMatch(**lists)

    def _parse_headers(self, table: Any) -> HeaderRules:
        if self.extends and isinstance(table, dict) and "transient" in table:
            self.dropped_headers = tuple(map(str.lower, self._parse_texts(table["transient"], "transient")))
            table = {name: names for name, names in table.items() if name != "transient"}
        lists = {
            kind: tuple(map(str.lower, names))
            for kind, names in self._parse_lists(table, HeaderRules, "headers").items()
        }
        for name in (name for names in lists.values() for name in names if NEVER_KEYS.fullmatch(name)):
            raise self.error_near(
                f"the header {name} changes each time a request is sent and cannot be in a key: remove it", name
            )
        return HeaderRules(**lists)

    def _parse_answer(self, table: Any) -> AnswerRules:
        rules = AnswerRules(**self._parse_lists(table, AnswerRules, "answer"))
        self._check_paths(rules.ignore)
        return rules

    def _parse_folds(self, table: Any) -> Folds:
        if not isinstance(table, dict):
            raise self.error_near("fold must be a table of lists", "fold")
        self._check_names(table, set(Folds.__struct_fields__), "fold")
        lists = {name: self._parse_texts(table.get(name, []), name) for name in PLAIN_FOLDS}
        for paths in lists.values():
            self._check_paths(paths)
        defaults = self._parse_tables(table.get("defaults", []), Default, '{ path = "$.type", value = "message" }')
        nonces = self._parse_tables(table.get("nonces", []), Nonce, '{ path = "$.system", starts = "x-" }')
        answers = self._parse_tables(
            table.get("answers", []), Answers, '{ path = "$.messages[*].content[*]", id = "tool_use_id" }'
        )
        return Folds(**lists, defaults=defaults, nonces=nonces, answers=answers)

    def _parse_tables[T: (Default, Nonce, Answers)](self, entries: Any, kind: type[T], example: str) -> tuple[T, ...]:
        name = kind.__name__.lower()
        try:
            rules = tuple(kind(**entry) for entry in entries)
        except TypeError as error:
            raise self.error_near(f"invalid {name}: write {example}", f"{name}s") from error
        paths = [one.path for one in rules]
        # One text may have several kinds of lines that are new each time.
        self._check_paths(list(dict.fromkeys(paths)) if name == "nonce" else paths)
        return rules

    def _parse_lists(self, table: Any, kind: type[msgspec.Struct], name: str) -> dict[str, tuple[str, ...]]:
        if not isinstance(table, dict):
            raise self.error_near(f"{name} must be a table of lists", name)
        self._check_names(table, set(kind.__struct_fields__), name)
        return {key: self._parse_texts(value, key) for key, value in table.items()}

    def _parse_texts(self, value: object, name: str) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.error_near(f"{name} must be a list of strings, not {value!r}", name)
        return tuple(values)

    def _check_names(self, table: Mapping[str, Any], names: set[str], where: str) -> None:
        for name in table.keys() - names:
            raise self.error_near(f"unknown setting {name!r} in {where}: use {', '.join(sorted(names))}", name)

    def _check_paths(self, paths: Any) -> None:
        seen_paths: set[str] = set()
        for text in () if self._is_trusted else paths:
            try:
                path = normalize_path(text)
            except BadPath as error:
                message = f"{text!r} is not an RFC 9535 path ({error}): write one like $.query or $.items[*].id"
                raise self.error_near(message, text) from error
            if path in seen_paths:
                raise self.error_near(f"{text} is listed twice: a field has only one class", text)
            seen_paths.add(path)

    def error_near(self, message: str, near: str) -> BadProfile:
        """Create an error for the last line of this table that contains `near`."""
        block, near = range(self._first, self._last), near.lower()
        line = next((line for line in reversed(block) if near in self._lines[line].lower()), self._first)
        return BadProfile(f"line {line + 1}: {message}")
