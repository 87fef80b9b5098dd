"""Decide which requests of a fork may go live, by what they could change in the outside world.

Requests to models and requests that only read go live. A request that may change something elsewhere, or that replaces or
deletes anything, is blocked unless the user allows it: an email cannot be unsent. Rules match host and method; the first
matching rule decides.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.dialects import generic
from calls.dialects.parts.unclaimed_kinds import asks_about_server
from calls.model import Request
from calls.route import Route, route_request, serves_only_models

type Policy = Literal["serve-recorded", "block", "allow"]

POLICIES: Final[tuple[Policy, ...]] = ("serve-recorded", "block", "allow")

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""The safe methods (RFC 9110 9.2.1)."""

_READ_ONLY_MCP_PREFIXES: Final = frozenset(
    ("initialize", "ping", "tools", "resources", "prompts", "completion", "logging", "notifications")
)
"""The first part of the names of MCP operations that change nothing; `tools/call` has the name `execute_tool`."""


_METHOD_OVERRIDE_HEADERS: Final = frozenset(("x-http-method-override", "x-http-method", "x-method-override"))
"""Headers that replace the method of a request."""

_MODEL_FIELDS: Final = frozenset(
    ("model", "modelId", "messages", "contents", "prompt", "inputs", "inputText", "texts", "documents", "passages")
)
"""Members of which a request to a model has at least one."""

_TEXT_FIELDS: Final = frozenset(
    (
        *("model", "name", "verbose", "prompt", "messages", "content", "text", "inputs", "tokens", "tools"),
        *("add_special_tokens", "return_token_strs", "add_special", "parse_special", "with_pieces"),
        *("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"),
    )
)
"""Members of questions to tokenizers and templates, and of Ollama's `/api/show`."""


class BadRule(ValueError):
    """A rule cannot be parsed; the message shows the syntax."""


class SideEffectRule(msgspec.Struct, frozen=True):
    """The policy for a host, or for a host and a method."""

    policy: Policy
    host: str
    method: str | None = None

    def matches(self, route: Route) -> bool:
        """Whether the rule applies to a request."""
        return self.method in (None, route.method) and fnmatchcase(route.host, self.host)


class SideEffectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a fork's requests after its recorded steps: rules for hosts, and a policy for the others."""

    rules: tuple[SideEffectRule, ...] = ()
    unsafe_policy: Policy = "block"
    """The policy for a request that no rule matches and that may change something at a host that is no model API."""

    def policy_for(self, request: Request) -> Policy:
        """Return the policy for a request after the fork's prefix."""
        route = route_request(request)
        rule = next((rule for rule in self.rules if rule.matches(route)), None)
        if rule:
            return rule.policy
        if is_model_request(request, route):
            return "allow"
        if self.unsafe_policy == "serve-recorded":
            return self.unsafe_policy
        return "allow" if is_read_only(request, route) else self.unsafe_policy

    def is_host_allowed(self, host: str) -> bool:
        """Whether every request to this host may go live, so that requests need not be inspected."""
        rule = next((rule for rule in self.rules if fnmatchcase(host, rule.host)), None)
        return rule is not None and rule.policy == "allow" and rule.method is None

    def unrecorded_policy(self, request: Request) -> Policy:
        """Return the policy for a request without a recorded answer: instead of `serve-recorded`, only reads go live."""
        policy = self.policy_for(request)
        if policy != "serve-recorded":
            return policy
        return "allow" if is_read_only(request, route_request(request)) else "block"


def is_model_request(request: Request, route: Route) -> bool:
    """Return whether a request calls a model or uploads input for one.

    A request that replaces or deletes is neither: the prefix was served from the recording, so it would replace or delete
    a file of the recorded run.
    """
    if route.method != "POST":
        return False
    if route.provider == route.host:
        return route.kind == "model" and not _has_unrelated_body(request, route)
    # A cloud's or a warehouse's host serves models among other things: there the request must have a model's dialect.
    return route.dialect != generic.DIALECT.name or serves_only_models(route.host)


def is_read_only(request: Request, route: Route) -> bool:
    """Return whether a request changes nothing at its destination."""
    if route.dialect == "mcp":
        return route.operation.partition("/")[0] in (*_READ_ONLY_MCP_PREFIXES, "listen", "close", "answer")
    if any(name.lower() in _METHOD_OVERRIDE_HEADERS for name, _ in request.headers):
        return False
    return route.method in SAFE_METHODS or (
        route.kind == "other"
        and asks_about_server(route.method, route.host, route.path)
        and _asks_about_text(request.body.data)
    )


def _asks_about_text(data: bytes) -> bool:
    """Return whether a body asks about a text or a model and says nothing else: payment services have a `/tokenize`, too."""
    try:
        body = parse_json_leniently(data)
    except InvalidJson:
        return False
    return isinstance(body, Mapping) and bool(body) and _TEXT_FIELDS.issuperset(body)


def _has_unrelated_body(request: Request, route: Route) -> bool:
    """Return whether only the path suggests a model (`/v1/responses` of a survey) and the JSON has no field of a model's."""
    try:
        body = parse_json_leniently(request.body.data)
    except InvalidJson:
        return False
    return route.model is None and isinstance(body, Mapping) and not _MODEL_FIELDS.intersection(body)


_RULE: Final = re.compile(r"(?:(?P<method>[A-Z]+) +)?(?P<host>[A-Za-z0-9.*_\[\]:-]+)")


def parse_rule(text: str, policy: Policy) -> SideEffectRule:
    """Parse `HOST` or `METHOD HOST`; `*` in the host matches anything. Raises BadRule."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(
            f"invalid rule {text!r}: write HOST or 'METHOD HOST', such as tickets.example.com or 'POST *.example.com'"
        )
    return SideEffectRule(policy, found["host"].lower(), found["method"])


def parse_side_effects(policies: Sequence[str], allowed: Iterable[str]) -> SideEffectPolicy:
    """Parse the options of a fork: `POLICY` for all unsafe requests, `[METHOD ]HOST=POLICY` for some; and allowed rules.

    Raises BadRule.
    """
    unsafe: Policy = "block"
    rules = [parse_rule(text, "allow") for text in allowed]
    for text in policies:
        where, equals, name = text.rpartition("=")
        policy = _parse_policy(name)
        if equals:
            rules.append(parse_rule(where, policy))
        else:
            unsafe = policy
    return SideEffectPolicy(rules=tuple(rules), unsafe_policy=unsafe)


def _parse_policy(name: str) -> Policy:
    found = next((policy for policy in POLICIES if policy == name), None)
    if found is None:
        raise BadRule(f"unknown policy {name!r}: use {', '.join(POLICIES)}")
    return found
