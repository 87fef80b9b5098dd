"""What the live part of a fork may do to the world: asked of every request that is about to leave the record.

Models and whatever only reads go live. What may change something at a host that is no model API is blocked unless somebody
allows it: one cannot un-send an email. Rules go by host and method, the first that fits decides.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from calls.model import Request
from calls.route import Route, route_of

type Policy = Literal["serve-recorded", "block", "allow"]

POLICIES: Final[tuple[Policy, ...]] = ("serve-recorded", "block", "allow")

SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""RFC 9110 9.2.1."""

_HARMLESS: Final = frozenset(
    ("initialize", "ping", "tools", "resources", "prompts", "completion", "logging", "notifications")
)
"""What the operations of MCP that change nothing begin with; `tools/call` is named `execute_tool`."""


class BadRule(ValueError):
    """A rule cannot be read; the message says how one is written."""


@dataclass(frozen=True, slots=True)
class Rule:
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

    rules: tuple[Rule, ...] = ()
    unsafe: Policy = "block"
    """For what no rule is about, and what may change something at a host that is no model API."""

    def policy(self, request: Request) -> Policy:
        """What becomes of a request that is not part of the prefix."""
        route = route_of(request)
        rule = next((rule for rule in self.rules if rule.fits(route)), None)
        if rule:
            return rule.policy
        if asks_model(route):
            return "allow"
        if self.unsafe == "serve-recorded":
            return self.unsafe
        return "allow" if reads(route) else self.unsafe

    def unrecorded(self, request: Request) -> Policy:
        """The same where `serve-recorded` finds nothing in the record: then only what reads goes live."""
        policy = self.policy(request)
        if policy != "serve-recorded":
            return policy
        return "allow" if reads(route_of(request)) else "block"


def asks_model(route: Route) -> bool:
    """Whether a request is for a model API: a host that is known as one, or one that is asked as one."""
    return route.kind == "model" or route.provider != route.host


def reads(route: Route) -> bool:
    """Whether a request changes nothing where it goes."""
    if route.dialect == "mcp":
        return route.operation.partition("/")[0] in (*_HARMLESS, "listen", "close", "answer")
    return route.method in SAFE


_RULE: Final = re.compile(r"(?:(?P<method>[A-Z]+) +)?(?P<host>[A-Za-z0-9.*_\[\]:-]+)")


def rule(text: str, policy: Policy) -> Rule:
    """A rule as a person writes it: `HOST` or `METHOD HOST`, the host with `*` for any part. Raises BadRule."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(
            f"{text!r} is no rule; write HOST or 'METHOD HOST', such as tickets.example.com or 'POST *.example.com'"
        )
    return Rule(policy, found["host"].lower(), found["method"])


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
