"""A profile: the declared, versioned rules for which parts of a request make its key.

A fold is listed at the places where the API itself reads two spellings as one. How profiles are written: `profile_text`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from calls.codec.canonical import canonical, digest
from calls.keys.rules import FieldClass, Plan, RuleAtPath, compiled
from calls.model import Json, Request
from calls.route import Route, route_of

type Unknown = Literal["key", "transient"]

NEVER_KEYS: Final = re.compile(
    r"accept-encoding|authorization|baggage|connection|content-length|cookie|date|host|idempotency-key|proxy-.*"
    r"|sec-websocket-(key|extensions)|trace(parent|state)|transfer-encoding|user-agent|x-stainless-.*|last-event-id"
    r"|mcp-session-id"
    # AWS signs every sending anew.
    r"|sec-websocket-(extensions|key|version)|amz-sdk-(invocation-id|request)|x-amz-(date|security-token|content-sha256)|x-amzn-trace-id"
)
"""Headers that change from one sending to the next of the same request: refused as keys, skipped by raw digests."""


class BadProfile(ValueError):
    """A profile cannot be used as it is written. The message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileMatch:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """What does not count when two answers are compared. No part of a key."""

    ignore: tuple[str, ...] = ()
    """Paths into the body of an answer."""


PLAIN_FOLDS: Final = (
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
    match: ProfileMatch = ProfileMatch()
    key: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    query: Query = Query()
    headers: HeaderRules = HeaderRules()
    folds: Folds = Folds()
    answer: AnswerRules = AnswerRules()
    unknown: Unknown = "key"
    told: bool = False
    """What is sent there is only told: it is not in the key, the last answer does for all that comes after, and none is missed."""
    _plan: Plan | None = field(init=False, repr=False, compare=False, default=None)

    @property
    def plan(self) -> Plan:
        """Its rules, compiled when they are first asked for: of all profiles, a process meets few."""
        if (plan := self._plan) is None:
            plan = compiled(self.rulings())
            object.__setattr__(self, "_plan", plan)
        return plan

    def rulings(self) -> Iterator[RuleAtPath]:
        """Every rule on the body, with its path."""
        for kind in get_args(FieldClass.__value__):
            yield from (RuleAtPath(path=path, rule=kind) for path in getattr(self, kind))
        for fold in PLAIN_FOLDS:
            yield from (RuleAtPath(path=path, rule=fold) for path in getattr(self.folds, fold))
        yield from (RuleAtPath(path=one.path, rule="default", value=one.value) for one in self.folds.defaults)
        yield from (RuleAtPath(path=nonce.path, rule="nonce", starts=nonce.starts) for nonce in self.folds.nonces)


_WAYS: Final = 2048
_SHORT: Final = 512

EVERYTHING: Final = Profile(name="everything/1", key=("$",), query=Query(key=("*",)))
"""What counts where no profile matches: all of it."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles in the order in which they are asked; the first that matches rules."""

    profiles: tuple[Profile, ...]
    digest: str = field(init=False)
    _found: dict[Route, Profile] = field(init=False, repr=False, compare=False, default_factory=dict)
    _ignored: dict[str, Plan | None] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Which profile rules on what went these ways before: agents ask the same few places again and again."""

    def __post_init__(self) -> None:
        value = [_plain(profile) for profile in self.profiles]
        object.__setattr__(self, "digest", digest("profiles/2", canonical(value)))

    @property
    def headers(self) -> frozenset[str]:
        """Every header that some profile makes a key of, in lower case: redaction must leave them."""
        rules = [profile.headers for profile in self.profiles]
        return frozenset(name for rule in rules for name in (*rule.key, *rule.sets, *rule.media))

    @property
    def told(self) -> frozenset[str]:
        """The profiles of what is only told."""
        return frozenset(profile.name for profile in self.profiles if profile.told)

    def ignored(self, name: str) -> Plan | None:
        """What does not count in the answers to requests of the profile of this name."""
        if name not in self._ignored:
            paths = next((profile.answer.ignore for profile in self.profiles if profile.name == name), ())
            rulings = [RuleAtPath(path=path, rule="transient") for path in paths]
            self._ignored[name] = compiled(rulings) if rulings else None
        return self._ignored[name]

    def match(self, request: Request) -> Profile:
        """The profile that rules on this request."""
        return self.find(route_of(request))

    def find(self, route: Route) -> Profile:
        """The profile that rules on requests that go this way."""
        if (known := self._found.get(route)) is not None:
            return known
        found = next((profile for profile in self.profiles if _matches(profile.match, route)), EVERYTHING)
        if len(self._found) < _WAYS and len(route.path) < _SHORT:
            self._found[route] = found
        return found


_NO_KEY: Final = ("_plan", "answer")
"""Fields of a profile that change no key, and so not the digest by which recordings are keyed anew."""


def _plain(value: Any) -> Any:
    """A dataclass as JSON."""
    if not hasattr(value, "__dataclass_fields__"):
        return [_plain(item) for item in value] if isinstance(value, tuple) else value
    return {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.name not in _NO_KEY}


def _matches(match: ProfileMatch, route: Route) -> bool:
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
