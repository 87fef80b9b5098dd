"""Decide which requests of a fork may leave the record, by what they could change in the outside world.

Models are asked and whatever only reads goes live. What may change something elsewhere, or replaces or deletes anywhere, is
blocked unless somebody allows it: one cannot un-send an email. Rules go by host and method, the first that fits decides.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from calls.codec.json import NotLossless, lenient
from calls.dialects.generic import NAME as GENERIC
from calls.model import Request
from calls.route import Route, route_of, serves_only_models

type Policy = Literal["serve-recorded", "block", "allow"]

POLICIES: Final[tuple[Policy, ...]] = ("serve-recorded", "block", "allow")

SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""RFC 9110 9.2.1."""

_HARMLESS: Final = frozenset(
    ("initialize", "ping", "tools", "resources", "prompts", "completion", "logging", "notifications")
)
"""What the operations of MCP that change nothing begin with; `tools/call` is named `execute_tool`."""


_OTHER_METHOD: Final = frozenset(("x-http-method-override", "x-http-method", "x-method-override"))
"""Headers by which a GET is something else."""

_OF_MODELS: Final = frozenset(
    ("model", "modelId", "messages", "contents", "prompt", "inputs", "inputText", "texts", "documents", "passages")
)
"""Members of which a request for a model has one."""


class BadRule(ValueError):
    """A rule cannot be read; the message says how one is written."""


@dataclass(frozen=True, slots=True)
class EffectRule:
    """What holds for a host, or a host and a method."""

    policy: Policy
    host: str
    method: str | None = None

    def fits(self, route: Route) -> bool:
        """Whether it is about this request."""
        return self.method in (None, route.method) and fnmatchcase(route.host, self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The rules of one fork."""

    rules: tuple[EffectRule, ...] = ()
    unsafe: Policy = "block"
    """For what no rule is about, and what may change something at a host that is no model API."""

    def policy(self, request: Request) -> Policy:
        """What becomes of a request that is not part of the prefix."""
        route = route_of(request)
        rule = next((rule for rule in self.rules if rule.fits(route)), None)
        if rule:
            return rule.policy
        if asks_model(request, route):
            return "allow"
        if self.unsafe == "serve-recorded":
            return self.unsafe
        return "allow" if reads(request, route) else self.unsafe

    def allows(self, host: str) -> bool:
        """Whether whatever goes to this host may go out, so that nobody need look at it."""
        rule = next((rule for rule in self.rules if fnmatchcase(host, rule.host)), None)
        return rule is not None and rule.policy == "allow" and rule.method is None

    def unrecorded(self, request: Request) -> Policy:
        """The same where `serve-recorded` finds nothing in the record: then only what reads goes live."""
        policy = self.policy(request)
        if policy != "serve-recorded":
            return policy
        return "allow" if reads(request, route_of(request)) else "block"


def asks_model(request: Request, route: Route) -> bool:
    """Whether a request asks a model, or hands its API what it is to be asked about. What replaces or deletes does neither:
    the prefix came from the record, so it would be the production's file that goes."""
    if route.method != "POST":
        return False
    if route.provider == route.host:
        return route.kind == "model" and not _is_about_something_else(request, route)
    # A cloud's or a warehouse's host serves models beside much else: there it must be asked as a model.
    return route.dialect != GENERIC or serves_only_models(route.host)


def reads(request: Request, route: Route) -> bool:
    """Whether a request changes nothing where it goes."""
    if route.dialect == "mcp":
        return route.operation.partition("/")[0] in (*_HARMLESS, "listen", "close", "answer")
    return route.method in SAFE and not any(name.lower() in _OTHER_METHOD for name, _ in request.headers)


def _is_about_something_else(request: Request, route: Route) -> bool:
    """Whether nobody but the path says that it is for a model, `/v1/responses` of a survey, and its JSON speaks of none."""
    try:
        body = lenient(request.body.data)
    except NotLossless:
        return False
    return route.model is None and isinstance(body, Mapping) and not _OF_MODELS.intersection(body)


_RULE: Final = re.compile(r"(?:(?P<method>[A-Z]+) +)?(?P<host>[A-Za-z0-9.*_\[\]:-]+)")


def rule(text: str, policy: Policy) -> EffectRule:
    """A rule as a person writes it: `HOST` or `METHOD HOST`, the host with `*` for any part. Raises BadRule."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(
            f"{text!r} is no rule; write HOST or 'METHOD HOST', such as tickets.example.com or 'POST *.example.com'"
        )
    return EffectRule(policy, found["host"].lower(), found["method"])


def effects(wanted: Sequence[str], allowed: Iterable[str]) -> Effects:
    """From what a person gives: `POLICY` for everything unsafe, `[METHOD ]HOST=POLICY` for one; and what is allowed.
    Raises BadRule."""
    unsafe: Policy = "block"
    rules = [rule(text, "allow") for text in allowed]
    for text in wanted:
        where, equals, name = text.rpartition("=")
        policy = _policy(name)
        if equals:
            rules.append(rule(where, policy))
        else:
            unsafe = policy
    return Effects(rules=tuple(rules), unsafe=unsafe)


def _policy(name: str) -> Policy:
    found = next((policy for policy in POLICIES if policy == name), None)
    if found is None:
        raise BadRule(f"{name!r} is no policy; known are {', '.join(POLICIES)}")
    return found
