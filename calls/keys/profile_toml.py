"""Read profiles from `[[profile]]` tables in TOML: `playhead.toml`, and those in `calls/profiles/`.

A profile may extend another one: then it takes over all that it does not speak of itself, and is a profile like any
other, with the digest of the whole.
"""

import re
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from calls.keys.places import BadPath
from calls.keys.profile import (
    NEVER_KEYS,
    PLAIN_FOLDS,
    AnswerRules,
    BadProfile,
    Default,
    Folds,
    HeaderRules,
    Nonce,
    Profile,
    ProfileMatch,
    Query,
    Unknown,
)
from calls.keys.rules import FieldClass, spelled


def parse(text: str, known: Iterable[Profile] = (), *, trusted: bool = False) -> tuple[Profile, ...]:
    """The `[[profile]]` tables of a TOML text, in their order, each of which may extend another or one that is known.

    `trusted`: its paths were checked when it was written. Raises `BadProfile`.
    """
    try:
        tables = tomllib.loads(text).get("profile", [])
    except tomllib.TOMLDecodeError as error:
        raise BadProfile(f"this is not TOML: {error}") from error
    if not isinstance(tables, list):
        raise BadProfile("write profiles as [[profile]], with two brackets, so that there can be several")
    family = _Family([_Table(text, number, table, trusted=trusted) for number, table in enumerate(tables)], known)
    return tuple(map(family.profile, family.tables))


class _Family:
    """All profiles of a text, and those that they may extend."""

    def __init__(self, tables: Sequence["_Table"], known: Iterable[Profile]) -> None:
        self.tables = tables
        self._known = {profile.name: profile for profile in known}
        self._by_name = {table.profile.name: table for table in reversed(tables)}

    def profile(self, table: "_Table", below: tuple["_Table", ...] = ()) -> Profile:
        """The profile of a table, with all that it takes over."""
        if table.extends is None:
            return table.profile
        below = (*below, table)
        if (base := self._by_name.get(table.extends)) in below:
            raise table.bad(f"{table.extends!r} is extended by itself: extend another profile", "extends")
        if base is not None:
            return extended(self.profile(base, below), table.profile, table.says, table.dropped)
        if table.extends not in self._known:
            raise table.bad(f"there is no profile {table.extends!r} to extend: docs/keys.md lists ours", "extends")
        return extended(self._known[table.extends], table.profile, table.says, table.dropped)


def extended(base: Profile, own: Profile, says: Container[str], dropped: Container[str] = ()) -> Profile:
    """The base with what a profile of one's own says in its place. `says`: of what it speaks at all; `dropped`: headers."""
    ruled = {spelled(path) for kind in get_args(FieldClass.__value__) for path in getattr(own, kind)}
    classes = {
        kind: (*getattr(own, kind), *(path for path in getattr(base, kind) if spelled(path) not in ruled))
        for kind in get_args(FieldClass.__value__)
    }
    return Profile(
        name=own.name,
        **classes,
        match=ProfileMatch(
            **{
                part.name: getattr(own.match, part.name) or getattr(base.match, part.name)
                for part in fields(ProfileMatch)
            }
        ),
        query=_laid(Query, base.query, own.query),
        headers=_laid(HeaderRules, base.headers, own.headers, dropped),
        folds=_joined(base.folds, own.folds),
        answer=AnswerRules(ignore=tuple(dict.fromkeys((*own.answer.ignore, *base.answer.ignore)))),
        unknown=own.unknown if "unknown" in says else base.unknown,
        told=own.told if "told" in says else base.told,
    )


def _laid[T: Query | HeaderRules](kind: type[T], base: T, own: T, dropped: Container[str] = ()) -> T:
    """The lists of both; a name stands where one's own lists have it."""
    names = [part.name for part in fields(kind)]
    ruled = {header for name in names for header in getattr(own, name)}
    kept = {name: (one for one in getattr(base, name) if one not in ruled and one not in dropped) for name in names}
    return kind(**{name: (*getattr(own, name), *kept[name]) for name in names})


def _joined(base: Folds, own: Folds) -> Folds:
    plain = {name: tuple(dict.fromkeys((*getattr(own, name), *getattr(base, name)))) for name in PLAIN_FOLDS}
    return Folds(
        **plain,
        defaults=_once(own.defaults, base.defaults),
        nonces=_once(own.nonces, base.nonces),
    )


def _once[T: Default | Nonce](own: tuple[T, ...], base: tuple[T, ...]) -> tuple[T, ...]:
    mine = {one.path for one in own}
    return (*own, *(one for one in base if one.path not in mine))


class _Table:
    """One `[[profile]]`, with where it stands, so that a complaint can name the line."""

    def __init__(self, text: str, number: int, table: Mapping[str, Any], *, trusted: bool) -> None:
        self._trusted = trusted
        self._lines = text.splitlines()
        heads = [line for line, words in enumerate(self._lines) if re.match(r"\s*\[\[\s*profile\s*\]\]", words)]
        self._first = heads[number] if number < len(heads) else 0
        self._last = heads[number + 1] if number + 1 < len(heads) else len(self._lines)
        self.says = frozenset(table)
        self.extends: str | None = self._extended(table)
        self.dropped: tuple[str, ...] = ()
        """Headers that are not to count, whatever the profile says that is extended."""
        self.profile = self._profile(table)

    def _profile(self, table: Mapping[str, Any]) -> Profile:
        """What the table itself says."""
        own = {part.name for part in fields(Profile) if part.init} - {"folds"}
        self._known(table, own | {"fold", "extends"}, "a profile")
        name = self._name(table.get("name"))
        parts = {kind: self._texts(table.get(kind, []), kind) for kind in get_args(FieldClass.__value__)}
        self._check_paths([path for paths in parts.values() for path in paths])
        return Profile(
            name=name,
            **parts,
            match=self._match(table.get("match", {})),
            query=Query(**self._lists(table.get("query", {}), Query, "query")),
            headers=self._headers(table.get("headers", {})),
            folds=self._folds(table.get("fold", {})),
            answer=self._answer(table.get("answer", {})),
            unknown=self._unknown(table.get("unknown", "key")),
            told=self._told(table.get("told", False)),
        )

    def _extended(self, table: Mapping[str, Any]) -> str | None:
        name = table.get("extends")
        if name is None or isinstance(name, str):
            return name
        raise self.bad(f'extends is the name of one profile, as in extends = "rest/1", not {name!r}', "extends")

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or re.fullmatch(r"[\w.-]+/\d+", name) is None:
            raise self.bad(f'a profile needs a name with a version, as in name = "tickets/1", not {name!r}', "name")
        return name

    def _unknown(self, value: object) -> Unknown:
        match value:
            case "key" | "transient":
                return value
            case _:
                raise self.bad(f'unknown is "key" or "transient", not {value!r}', "unknown")

    def _told(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise self.bad(f"told is true or false, not {value!r}", "told")

    def _match(self, table: Any) -> ProfileMatch:
        lists = self._lists(table, ProfileMatch, "match")
        lists["host"] = tuple(host.lower() for host in lists.get("host", ()))
        lists["method"] = tuple(method.upper() for method in lists.get("method", ()))
        return ProfileMatch(**lists)

    def _headers(self, table: Any) -> HeaderRules:
        if self.extends and isinstance(table, dict) and "transient" in table:
            self.dropped = tuple(map(str.lower, self._texts(table["transient"], "transient")))
            table = {name: names for name, names in table.items() if name != "transient"}
        lists = {
            kind: tuple(map(str.lower, names)) for kind, names in self._lists(table, HeaderRules, "headers").items()
        }
        for name in (name for names in lists.values() for name in names if NEVER_KEYS.fullmatch(name)):
            raise self.bad(f"the header {name} changes with every sending and cannot be in a key: take it out", name)
        return HeaderRules(**lists)

    def _answer(self, table: Any) -> AnswerRules:
        rules = AnswerRules(**self._lists(table, AnswerRules, "answer"))
        self._check_paths(rules.ignore)
        return rules

    def _folds(self, table: Any) -> Folds:
        if not isinstance(table, dict):
            raise self.bad("fold is a table of lists", "fold")
        self._known(table, {part.name for part in fields(Folds)}, "fold")
        lists = {name: self._texts(table.get(name, []), name) for name in PLAIN_FOLDS}
        for paths in lists.values():
            self._check_paths(paths)
        defaults = self._tables(table.get("defaults", []), Default, '{ path = "$.type", value = "message" }')
        nonces = self._tables(table.get("nonces", []), Nonce, '{ path = "$.system", starts = "x-" }')
        return Folds(**lists, defaults=defaults, nonces=nonces)

    def _tables[T: (Default, Nonce)](self, entries: Any, kind: type[T], example: str) -> tuple[T, ...]:
        name = kind.__name__.lower()
        try:
            made = tuple(kind(**entry) for entry in entries)
        except TypeError as error:
            raise self.bad(f"write a {name} as {example}", f"{name}s") from error
        self._check_paths([one.path for one in made])
        return made

    def _lists(self, table: Any, kind: type, name: str) -> dict[str, tuple[str, ...]]:
        if not isinstance(table, dict):
            raise self.bad(f"{name} is a table of lists", name)
        self._known(table, {part.name for part in fields(kind)}, name)
        return {key: self._texts(value, key) for key, value in table.items()}

    def _texts(self, value: object, name: str) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.bad(f"{name} is a list of texts, not {value!r}", name)
        return tuple(values)

    def _known(self, table: Mapping[str, Any], known: set[str], where: str) -> None:
        for name in table.keys() - known:
            raise self.bad(f"{where} has no {name!r}: it has {', '.join(sorted(known))}", name)

    def _check_paths(self, paths: Any) -> None:
        seen: set[str] = set()
        for text in () if self._trusted else paths:
            try:
                path = spelled(text)
            except BadPath as error:
                message = f"{text!r} is not an RFC 9535 path ({error}): write one like $.query or $.items[*].id"
                raise self.bad(message, text) from error
            if path in seen:
                raise self.bad(f"{text} is listed twice: a field has one class", text)
            seen.add(path)

    def bad(self, message: str, near: str) -> BadProfile:
        """A complaint at the last line of this table on which `near` stands."""
        block, near = range(self._first, self._last), near.lower()
        line = next((line for line in reversed(block) if near in self._lines[line].lower()), self._first)
        return BadProfile(f"line {line + 1}: {message}")
