"""Profiles: declared, versioned rules for which parts of a request make its key.

A fold is listed for the places where the API itself treats two forms of a value as equal. `profile_toml` reads profiles.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import msgspec

from calls.codec.canonical import canonical_json, digest
from calls.keys.rules import AnswerPlaces, FieldClass, PlainFold, Plan, RuleAtPath, compile_rules
from calls.model import Json, Request
from calls.route import Route, route_request

type Unknown = Literal["key", "transient"]

NEVER_KEYS: Final = re.compile(
    r"accept-encoding|authorization|baggage|connection|content-length|cookie|date|host|idempotency-key|proxy-.*"
    r"|sec-websocket-(key|extensions)|trace(parent|state)|transfer-encoding|user-agent|x-stainless-.*|last-event-id"
    r"|mcp-session-id"
    # What is left of a deadline.
    r"|grpc-timeout"
    # AWS signs each request anew.
    r"|sec-websocket-(extensions|key|version)|amz-sdk-(invocation-id|request)|x-amz-(date|security-token|content-sha256)|x-amzn-trace-id"
)
"""Headers that change when the same request is sent again: rejected as keys, skipped by raw digests."""


class BadProfile(ValueError):
    """A profile is invalid. The message names the line."""


class ProfileMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The requests a profile applies to: each non-empty list must have a matching pattern (`*` matches any text)."""

    host: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    dialect: tuple[str, ...] = ()
    operation: tuple[str, ...] = ()


class QueryRules(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of query parameters, by name or pattern."""

    key: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()

    def field_class(self, name: str) -> FieldClass | None:
        """Return the class of a parameter. An exact name takes precedence over a pattern with `*`, and `key` comes last."""
        listed: tuple[tuple[FieldClass, tuple[str, ...]], ...] = (
            ("secret", self.secret),
            ("identity", self.identity),
            ("transient", self.transient),
            ("key", self.key),
        )
        for kind, names in listed:
            if name in names:
                return kind
        for kind, names in listed:
            if names and has_match(names, name):
                return kind
        return None


class HeaderRules(msgspec.Struct, frozen=True, kw_only=True):
    """The headers that are in the key; no others are."""

    key: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    """Headers with comma-separated lists whose order does not matter."""
    media: tuple[str, ...] = ()
    """Headers with accepted media types; left out if the client accepts anything or JSON."""


class Nonce(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a text with this beginning, which are new each time; they are left out of the key."""

    path: str
    starts: str
    within: str = ""
    """The beginning of the texts in which such lines are left out."""
    until: str = ""
    """Where the line begins to count again; without it, the whole line is left out."""


class Default(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is the same as a missing member."""

    path: str
    value: Json


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Elements of an array that answer calls; neighbours count in the order of the calls, however they came."""

    path: str
    id: str
    """The member of an element with the id of its call; a name within another one has a dot before it."""
    otherwise: str = ""
    """The member in whose order elements count whose call is not in the request, or that have no id."""


class Folds(msgspec.Struct, frozen=True, kw_only=True):
    """Paths at which the API treats several forms of a value as equal."""

    null: tuple[str, ...] = ()
    """null is the same as a missing member."""
    text: tuple[str, ...] = ()
    """A list of one text part is the same as its text."""
    json: tuple[str, ...] = ()
    """The string contains JSON and counts by its value."""
    id: tuple[str, ...] = ()
    """The id only links parts of the request and counts by its first occurrence."""
    number: tuple[str, ...] = ()
    """An integer by which a client numbers its requests counts as an `id`. Elsewhere, it may be the number of a record."""
    message: tuple[str, ...] = ()
    """A list of one user message of text is the same as the text."""
    single: tuple[str, ...] = ()
    """A list of one text, or of one list, is the same as its element."""
    bare: tuple[str, ...] = ()
    """An object with only an id is the same as the id."""
    bytes: tuple[str, ...] = ()
    """The string is base64, of either alphabet, or a data URL, and counts by its bytes."""
    schema: tuple[str, ...] = ()
    """An OpenAPI schema as Google reads it: keywords in snake_case or camelCase, types in any case."""
    names: tuple[str, ...] = ()
    """Here and below, a name in snake_case is the same as in camelCase."""
    own: tuple[str, ...] = ()
    """Exceptions to `names`: here and below, names are defined by the user and not converted."""
    graphql: tuple[str, ...] = ()
    """The string is a GraphQL document: white space, commas and comments in it do not count."""
    defaults: tuple[Default, ...] = ()
    nonces: tuple[Nonce, ...] = ()
    answers: tuple[Answers, ...] = ()


class AnswerRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the comparison of two answers; they do not affect keys."""

    ignore: tuple[str, ...] = ()
    """Paths into the body of an answer that are not compared."""


PLAIN_FOLDS: Final[tuple[PlainFold, ...]] = get_args(PlainFold.__value__)
"""The folds that are lists of paths, without further parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules that turn requests to one API into keys."""

    name: str
    """The name with its version: `openai_chat/1`."""
    match: ProfileMatch = field(default_factory=ProfileMatch)
    key: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    query: QueryRules = field(default_factory=QueryRules)
    headers: HeaderRules = field(default_factory=HeaderRules)
    folds: Folds = field(default_factory=Folds)
    answer: AnswerRules = field(default_factory=AnswerRules)
    unknown: Unknown = "key"
    is_telemetry: bool = False
    """Whether the service only receives reports: bodies are not in the key, the last recorded answer serves all further
    requests, and none is a miss."""
    _plan: Plan | None = field(init=False, repr=False, compare=False, default=None)

    @property
    def plan(self) -> Plan:
        """The compiled rules. Compiled on first access, because a process uses few of all profiles."""
        if (plan := self._plan) is None:
            plan = compile_rules(self.body_rules())
            object.__setattr__(self, "_plan", plan)
        return plan

    def body_rules(self) -> Iterator[RuleAtPath]:
        """Yield every rule on the body with its path."""
        for kind in get_args(FieldClass.__value__):
            yield from (RuleAtPath(path=path, rule=kind) for path in getattr(self, kind))
        for fold in PLAIN_FOLDS:
            yield from (RuleAtPath(path=path, rule=fold) for path in getattr(self.folds, fold))
        yield from (RuleAtPath(path=one.path, rule="default", value=one.value) for one in self.folds.defaults)
        yield from (
            RuleAtPath(path=nonce.path, rule="nonce", nonce=(nonce.within, nonce.starts, nonce.until))
            for nonce in self.folds.nonces
        )
        yield from (RuleAtPath(path=one.path, rule="answers", answer=_answer_places(one)) for one in self.folds.answers)


def _answer_places(answers: Answers) -> AnswerPlaces:
    otherwise = tuple(answers.otherwise.split(".")) if answers.otherwise else ()
    return AnswerPlaces(call_id=tuple(answers.id.split(".")), otherwise=otherwise)


_MAX_CACHED_ROUTES: Final = 2048
_MAX_CACHED_PATH: Final = 512

EVERYTHING: Final = Profile(name="everything/1", key=("$",), query=QueryRules(key=("*",)))
"""The profile for requests that no other profile matches: everything counts."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles in order of precedence: the first one that matches a request applies."""

    profiles: tuple[Profile, ...]
    _digest: str | None = field(init=False, repr=False, compare=False, default=None)
    _by_route: dict[Route, Profile] = field(init=False, repr=False, compare=False, default_factory=dict)
    _ignored_by_name: dict[str, Plan | None] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Caches by profile name and by route: agents call the same few endpoints repeatedly."""

    @property
    def digest(self) -> str:
        """The digest of all that the profiles say about keys. Computed on first access: a worker that only records needs none."""
        if self._digest is None:
            value = [_as_json(profile) for profile in self.profiles]
            object.__setattr__(self, "_digest", digest("profiles/2", canonical_json(value)))
        return self._digest or ""

    @property
    def key_headers(self) -> frozenset[str]:
        """The names, in lower case, of all headers that a profile puts into keys: redaction must keep them."""
        rules = [profile.headers for profile in self.profiles]
        return frozenset(name for rule in rules for name in (*rule.key, *rule.sets, *rule.media))

    @property
    def telemetry_profiles(self) -> frozenset[str]:
        """The names of the profiles for services that only receive reports."""
        return frozenset(profile.name for profile in self.profiles if profile.is_telemetry)

    def ignored_answer_fields(self, name: str) -> Plan | None:
        """Return the rules for the answer fields that the profile of this name ignores in comparisons."""
        if name not in self._ignored_by_name:
            paths = next((profile.answer.ignore for profile in self.profiles if profile.name == name), ())
            rules = [RuleAtPath(path=path, rule="transient") for path in paths]
            self._ignored_by_name[name] = compile_rules(rules) if rules else None
        return self._ignored_by_name[name]

    def match(self, request: Request) -> Profile:
        """Return the profile that applies to a request."""
        return self.find(route_request(request))

    def find(self, route: Route) -> Profile:
        """Return the profile that applies to a route."""
        if (cached := self._by_route.get(route)) is not None:
            return cached
        found = next((profile for profile in self.profiles if _is_profile_for(profile.match, route)), EVERYTHING)
        if len(self._by_route) < _MAX_CACHED_ROUTES and len(route.path) < _MAX_CACHED_PATH:
            self._by_route[route] = found
        return found


_FIELDS_WITHOUT_KEY: Final = ("_plan", "answer")
"""Fields of a profile that affect no key, and are left out of the digest whose change causes recordings to be rekeyed."""


def _as_json(value: Any) -> Any:
    """Convert a profile, or a part of one, to JSON."""
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, Profile):
        names = [part.name for part in fields(value) if part.name not in _FIELDS_WITHOUT_KEY]
    elif isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    else:
        return value
    return {name: _as_json(getattr(value, name)) for name in names}


def _is_profile_for(match: ProfileMatch, route: Route) -> bool:
    return (
        (not match.dialect or route.dialect in match.dialect)
        and (not match.operation or route.operation in match.operation)
        and (not match.host or has_match(match.host, route.host))
        and (not match.method or route.method in match.method)
        and (not match.path or has_match(match.path, route.path))
    )


def has_match(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether one of the patterns matches the whole text."""
    return _compile_patterns(patterns).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_pattern_expression, patterns)), re.DOTALL)


def _pattern_expression(pattern: str) -> str:
    """Return the expression for a pattern with asterisks, of which only the last tries more than one place: requests choose the text."""
    first, *middle = pattern.split("*")
    if not middle:
        return re.escape(first)
    searches = [f"(?>.*?{re.escape(part)})" for part in middle[:-1]]
    return f"{re.escape(first)}{''.join(searches)}.*{re.escape(middle[-1])}"
