"""Profiles: the declared, versioned rules that say which part of a request makes its key.

A profile is TOML, in the form of `playhead.toml` (docs: contract, "Configuration"); the ones that come with Playhead are
written in the same form, in `calls/profiles/`. A fold is listed at the places where the API itself reads two
spellings as one.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from jsonpath import JSONPathError

from calls.canonical import canonical, digest
from calls.model import Json, Request
from calls.route import Route, route_of
from calls.rules import FieldClass, Plan, Ruling, compiled, path_of

type Unknown = Literal["key", "transient"]

NEVER_KEYS: Final = re.compile(
    r"accept-encoding|authorization|baggage|connection|content-length|cookie|date|host|idempotency-key|proxy-.*"
    r"|trace(parent|state)|transfer-encoding|user-agent|x-stainless-.*|last-event-id|mcp-session-id"
    # AWS signs every sending anew.
    r"|amz-sdk-(invocation-id|request)|x-amz-(date|security-token|content-sha256)|x-amzn-trace-id"
)
"""Headers that change from one sending to the next of the same request: refused as keys, skipped by raw digests."""


class BadProfile(ValueError):
    """A profile cannot be used as it is written. The message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests a profile is for: every list that is not empty must have a pattern that fits (`*` is any text)."""

    host: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    dialect: tuple[str, ...] = ()
    operation: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The classes of query parameters, by name or pattern."""

    key: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()

    def field_class(self, name: str) -> FieldClass | None:
        """The class of a parameter: a pattern without `*` counts before one with, and `key` last."""
        listed: tuple[tuple[FieldClass, tuple[str, ...]], ...] = (
            ("secret", self.secret),
            ("identity", self.identity),
            ("transient", self.transient),
            ("key", self.key),
        )
        exact = (kind for kind, names in listed if name in names)
        fitting = (kind for kind, names in listed if names and fits(names, name))
        return next(exact, None) or next(fitting, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """Which headers are in the key; all others are not."""

    key: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    """Comma-separated, without order."""
    media: tuple[str, ...] = ()
    """Media types that a client asks for; left out when it takes anything, or JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonce:
    """A line that a client puts first in a text and that differs every time; it is left out of the key."""

    path: str
    starts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A value that is the same as none."""

    path: str
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """Paths at which the API reads several spellings as one."""

    null: tuple[str, ...] = ()
    """null is the same as not there."""
    text: tuple[str, ...] = ()
    """A list of one text part is the same as its text."""
    json: tuple[str, ...] = ()
    """The string holds JSON, and counts by its value."""
    id: tuple[str, ...] = ()
    """The id only ties parts of the request together: it counts by where it occurs first."""
    message: tuple[str, ...] = ()
    """A list of one message of the user that is a text is the same as the text."""
    single: tuple[str, ...] = ()
    """A list of one text, or of one list, is the same as that."""
    bare: tuple[str, ...] = ()
    """An object that is only an id is the same as the id."""
    bytes: tuple[str, ...] = ()
    """The string holds bytes in base64, of either alphabet, or is a data URL, and counts by them."""
    schema: tuple[str, ...] = ()
    """An OpenAPI schema as Google reads it: keywords in either spelling, types in either case."""
    names: tuple[str, ...] = ()
    """Here and below, a name in snake_case is the same as in camelCase,"""
    own: tuple[str, ...] = ()
    """but not here and below, where names are the user's own."""
    graphql: tuple[str, ...] = ()
    """The string is a GraphQL document: blanks, commas and comments in it mean nothing."""
    defaults: tuple[Default, ...] = ()
    nonces: tuple[Nonce, ...] = ()


_PLAIN_FOLDS: Final = (
    "null",
    "text",
    "json",
    "id",
    "message",
    "single",
    "bare",
    "bytes",
    "schema",
    "names",
    "own",
    "graphql",
)
"""Those that need to know nothing but their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How the requests to one API become keys."""

    name: str
    """With its version: `openai_chat/1`."""
    match: Match = Match()
    key: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    query: Query = Query()
    headers: HeaderRules = HeaderRules()
    folds: Folds = Folds()
    unknown: Unknown = "key"
    plan: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", compiled(self.rulings()))

    def rulings(self) -> Iterator[Ruling]:
        """Every rule on the body, with its path."""
        for kind in get_args(FieldClass.__value__):
            yield from (Ruling(path=path, rule=kind) for path in getattr(self, kind))
        for fold in _PLAIN_FOLDS:
            yield from (Ruling(path=path, rule=fold) for path in getattr(self.folds, fold))
        yield from (Ruling(path=one.path, rule="default", value=one.value) for one in self.folds.defaults)
        yield from (Ruling(path=nonce.path, rule="nonce", starts=nonce.starts) for nonce in self.folds.nonces)


EVERYTHING: Final = Profile(name="everything/1", key=("$",), query=Query(key=("*",)))
"""What counts where no profile matches: all of it."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles in the order in which they are asked; the first that matches rules."""

    profiles: tuple[Profile, ...]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        value = [_plain(profile) for profile in self.profiles]
        object.__setattr__(self, "digest", digest("profiles/1", canonical(value)))

    @property
    def headers(self) -> frozenset[str]:
        """Every header that some profile makes a key of, in lower case: redaction must leave them."""
        rules = [profile.headers for profile in self.profiles]
        return frozenset(name for rule in rules for name in (*rule.key, *rule.sets, *rule.media))

    def match(self, request: Request) -> Profile:
        """The profile that rules on this request."""
        return self.find(route_of(request))

    def find(self, route: Route) -> Profile:
        """The profile that rules on requests that go this way."""
        return next((profile for profile in self.profiles if _matches(profile.match, route)), EVERYTHING)


def _plain(value: Any) -> Any:
    """A dataclass as JSON."""
    if not hasattr(value, "__dataclass_fields__"):
        return [_plain(item) for item in value] if isinstance(value, tuple) else value
    return {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.name != "plan"}


def _matches(match: Match, route: Route) -> bool:
    return (
        (not match.dialect or route.dialect in match.dialect)
        and (not match.operation or route.operation in match.operation)
        and (not match.host or fits(match.host, route.host))
        and (not match.method or route.method in match.method)
        and (not match.path or fits(match.path, route.path))
    )


def fits(patterns: tuple[str, ...], text: str) -> bool:
    """Whether one of the patterns fits the whole text."""
    return _pattern(patterns).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns), re.DOTALL)


def parse(text: str) -> tuple[Profile, ...]:
    """The `[[profile]]` tables of a TOML text, in their order. Raises `BadProfile`."""
    try:
        tables = tomllib.loads(text).get("profile", [])
    except tomllib.TOMLDecodeError as error:
        raise BadProfile(f"this is not TOML: {error}") from error
    if not isinstance(tables, list):
        raise BadProfile("write profiles as [[profile]], with two brackets, so that there can be several")
    return tuple(_Table(text, number).profile(table) for number, table in enumerate(tables))


class _Table:
    """One `[[profile]]`, with where it stands, so that a complaint can name the line."""

    def __init__(self, text: str, number: int) -> None:
        self._lines = text.splitlines()
        heads = [line for line, words in enumerate(self._lines) if re.match(r"\s*\[\[\s*profile\s*\]\]", words)]
        self._first = heads[number] if number < len(heads) else 0
        self._last = heads[number + 1] if number + 1 < len(heads) else len(self._lines)

    def profile(self, table: Mapping[str, Any]) -> Profile:
        """The profile that this table describes."""
        self._known(table, {part.name for part in fields(Profile)} - {"plan", "folds"} | {"fold"}, "a profile")
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
            unknown=self._unknown(table.get("unknown", "key")),
        )

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or re.fullmatch(r"[\w.-]+/\d+", name) is None:
            raise self._bad(f'a profile needs a name with a version, as in name = "tickets/1", not {name!r}', "name")
        return name

    def _unknown(self, value: object) -> Unknown:
        match value:
            case "key" | "transient":
                return value
            case _:
                raise self._bad(f'unknown is "key" or "transient", not {value!r}', "unknown")

    def _match(self, table: Any) -> Match:
        lists = self._lists(table, Match, "match")
        lists["host"] = tuple(host.lower() for host in lists.get("host", ()))
        lists["method"] = tuple(method.upper() for method in lists.get("method", ()))
        return Match(**lists)

    def _headers(self, table: Any) -> HeaderRules:
        lists = {
            kind: tuple(map(str.lower, names)) for kind, names in self._lists(table, HeaderRules, "headers").items()
        }
        for name in (name for names in lists.values() for name in names if NEVER_KEYS.fullmatch(name)):
            raise self._bad(f"the header {name} changes with every sending and cannot be in a key: take it out", name)
        return HeaderRules(**lists)

    def _folds(self, table: Any) -> Folds:
        if not isinstance(table, dict):
            raise self._bad("fold is a table of lists", "fold")
        self._known(table, {part.name for part in fields(Folds)}, "fold")
        lists = {name: self._texts(table.get(name, []), name) for name in _PLAIN_FOLDS}
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
            raise self._bad(f"write a {name} as {example}", f"{name}s") from error
        self._check_paths([one.path for one in made])
        return made

    def _lists(self, table: Any, kind: type, name: str) -> dict[str, tuple[str, ...]]:
        if not isinstance(table, dict):
            raise self._bad(f"{name} is a table of lists", name)
        self._known(table, {part.name for part in fields(kind)}, name)
        return {key: self._texts(value, key) for key, value in table.items()}

    def _texts(self, value: object, name: str) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self._bad(f"{name} is a list of texts, not {value!r}", name)
        return tuple(values)

    def _known(self, table: Mapping[str, Any], known: set[str], where: str) -> None:
        for name in table.keys() - known:
            raise self._bad(f"{where} has no {name!r}: it has {', '.join(sorted(known))}", name)

    def _check_paths(self, paths: Any) -> None:
        seen: set[str] = set()
        for text in paths:
            try:
                path = str(path_of(text))
            except JSONPathError as error:
                message = f"{text!r} is not an RFC 9535 path ({error.message}): write one like $.query or $.items[*].id"
                raise self._bad(message, text) from error
            if path in seen:
                raise self._bad(f"{text} is listed twice: a field has one class", text)
            seen.add(path)

    def _bad(self, message: str, near: str) -> BadProfile:
        """A complaint at the last line of this table on which `near` stands."""
        block, near = range(self._first, self._last), near.lower()
        line = next((line for line in reversed(block) if near in self._lines[line].lower()), self._first)
        return BadProfile(f"line {line + 1}: {message}")
