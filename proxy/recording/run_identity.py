"""Find the run, step and actor that a request names, in the documented order of sources, with all the evidence.

What the client sends to Playhead (credentials, our own headers) must be valid; `identity_problem` says what is not. What
it sends to others (agents, gateways, tracers) is used as it is: a value that is not a valid run name is replaced by its
digest. Playhead's headers and credentials are not forwarded.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

from calls.model import Headers
from calls.project_runs import DEFAULT_PROJECT, RUN_ID, full_run_name
from calls.request_identifiers import MAX_LENGTH, run_id_for
from proxy.capture.owner import Owner
from proxy.wire.access import Credentials

STEP: Final = re.compile(r"[0-9]{1,9}")
MAX_ACTOR: Final = 256
"""Maximum length of an actor's name, in characters."""

BOUND_RUN_HEADER: Final = "x-playhead-bound-run"
"""The header in which the thin client names the run of one request, because several runs may share a connection and thus its
credentials."""

OWN_SOURCES: Final = (BOUND_RUN_HEADER, "credentials", "x-playhead-run")
"""The sources in which a client names a run to Playhead, strongest first. Other sources never select a recording."""

PER_PROCESS_USER: Final = "per-process"
"""The user name of credentials with a token but no run. The run is then named after the process that owns the connection."""


def parse_credentials(field: str) -> Credentials:
    """Parse run and token from a Proxy-Authorization field with the Basic scheme.

    A run may contain colons, so the token follows the last one. For clients that refuse a colon in a user name, it is
    percent-encoded in the proxy's URL (`proxy/trust/client_environment.py`), and they send it as it is.
    """
    kind, _, encoded = field.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        run, _, token = base64.b64decode(encoded.strip(), validate=True).decode().rpartition(":")
    except (binascii.Error, ValueError):
        return None
    run = unquote(run) if "%" in run else run
    return ("" if run == PER_PROCESS_USER else run), token


class Identity(NamedTuple):
    """The run, step and actor of a request, from its head."""

    run: str
    """Its full name (`calls.project_runs`)."""

    evidence: tuple[tuple[str, str], ...]
    """Every identifier as source and value, strongest first."""

    step: int | None
    actor: str | None
    headers: Headers
    """The headers to forward: the same object if none was for Playhead."""

    problem: str | None = None
    """What `identity_problem` returns."""

    @property
    def named_run(self) -> str | None:
        """The full name of the run, if the client named it to Playhead."""
        is_named = any(source in OWN_SOURCES for source, _ in self.evidence)
        return self.run if is_named else None


def identify(
    headers: Headers,
    credentials: Credentials,
    owner: str,
    is_only_run: Callable[[str], bool] = lambda _run: False,
    project: str = DEFAULT_PROJECT,
) -> Identity:
    """Find the run, step and actor of a request. `owner` is the owner of the connection, `project` that of the credentials.

    Never raises: what `identity_problem` would refuse is replaced or ignored. `is_only_run` returns whether a run is a fork or
    a replay: a program with the credentials of such a run cannot leave it by naming another run.
    """
    values = _first_values(headers)
    is_ours = any(_is_own_header(name) for name in values)
    own_run = full_run_name(project, credentials[0]) if credentials and credentials[0] else None
    if BOUND_RUN_HEADER in values and own_run is not None and is_only_run(own_run):
        del values[BOUND_RUN_HEADER]
    found = (*_own_evidence(values, credentials), *_foreign_evidence(values))
    return Identity(
        run=full_run_name(project, run_id_for(found[0][1]) if found else str(owner)),
        evidence=(*found, *_trace_evidence(values), *_process_evidence(owner), ("owner", str(owner))),
        step=_step(values),
        actor=_actor(values),
        headers=_headers_for_upstream(headers) if is_ours else headers,
        problem=_problem(values, credentials),
    )


def is_run_named(headers: Iterable[tuple[str, str]], credentials: Credentials) -> bool:
    """Return whether the client names a run to Playhead, so that the owner of the connection does not matter."""
    return bool(credentials and credentials[0]) or any(name in OWN_SOURCES for name, _ in headers)


def _process_evidence(owner: str) -> Iterator[tuple[str, str]]:
    if isinstance(owner, Owner) and owner.process:
        yield "process", owner.process


def identity_problem(headers: Headers, credentials: Credentials) -> str | None:
    """Return what is wrong with what the client sent to Playhead, as a message for the client, or None."""
    return _problem(_first_values(headers), credentials)


def _problem(values: dict[str, str], credentials: Credentials) -> str | None:
    for source, run in _own_evidence(values, credentials):
        if not RUN_ID.fullmatch(run):
            return f"invalid run name {run[:80]!r} ({source}): use 1 to 128 of A-Z a-z 0-9 . _ : -"
    step, actor = values.get("x-playhead-step"), values.get("x-playhead-actor", "")
    if step is not None and not STEP.fullmatch(step):
        return f"invalid step {step[:80]!r} (X-Playhead-Step): use a whole number of up to 9 digits"
    if len(actor) > MAX_ACTOR or not actor.isprintable():
        return f"invalid X-Playhead-Actor: use up to {MAX_ACTOR} printable characters"
    return None


def _first_values(headers: Headers) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in headers:
        values.setdefault(name.lower(), value.strip())
    return values


def _headers_for_upstream(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if not _is_own_header(name.lower()))


@lru_cache(2048)
def _is_own_header(name: str) -> bool:
    """Return whether a header is for Playhead, or one that clients send to a proxy only."""
    return name.startswith("x-playhead-") or name in ("proxy-authorization", "proxy-connection")


# -- what the client sends to Playhead


def _own_evidence(values: dict[str, str], credentials: Credentials) -> Iterator[tuple[str, str]]:
    if BOUND_RUN_HEADER in values:
        yield BOUND_RUN_HEADER, values[BOUND_RUN_HEADER]
    if credentials and credentials[0]:
        yield "credentials", credentials[0]
    if "x-playhead-run" in values:
        yield "x-playhead-run", values["x-playhead-run"]


def _step(values: dict[str, str]) -> int | None:
    text = values.get("x-playhead-step", "")
    return int(text) if STEP.fullmatch(text) else None


def _actor(values: dict[str, str]) -> str | None:
    """Return the actor from Playhead's own header, else the sub-agent that an agent names in its headers."""
    names = (values.get("x-playhead-actor", ""), values.get("x-claude-code-agent-id", ""), _sub_agent(values))
    return next((name for name in names if name and len(name) <= MAX_ACTOR and name.isprintable()), None)


def _sub_agent(values: dict[str, str]) -> str:
    """Return the sub-agent of Codex or opencode, which sends its own id beside the session that it belongs to.

    The kind of sub-agent (`x-openai-subagent`) is the same for all spawned ones, so it is used only for one that works in its
    parent's thread and has no id of its own.
    """
    root = next((values[name] for name in _ROOT_HEADERS if name in values), None)
    own = next((values[name] for name in _BRANCH_HEADERS if name in values), "")
    if root is None or not own:
        return ""
    return own if own != root else values.get("x-openai-subagent", "")


# -- what the client sends to others


def _foreign_evidence(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the identifiers for other services, strongest first."""
    if _FOREIGN_HEADERS.isdisjoint(values):
        return
    for header, member, read in _SOURCES:
        value = values.get(header)
        identifier = read(value, member) if value else None
        if identifier and len(identifier) <= MAX_LENGTH and identifier.isprintable():
            yield (f"{header}/{member}" if member else header), identifier


def _whole_value(value: str, _member: str) -> str:
    return value


def _baggage_entry(value: str, member: str) -> str | None:
    """Return an entry of W3C baggage: `key=value;properties, …`, with a percent-encoded value."""
    for entry in value.split(","):
        key, equals, rest = entry.partition(";")[0].partition("=")
        if equals and unquote(key.strip()) == member:
            return unquote(rest.strip())
    return None


def _json_member(value: str, member: str) -> str | None:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    found = parsed.get(member) if isinstance(parsed, dict) else None
    return found if isinstance(found, str) else None


def _dotted_root(value: str, _member: str) -> str:
    """Return the root run from LangSmith's dotted order: the first segment, without its time (`20240101T000000000000Z…`)."""
    return re.sub(r"^\d{8}T\d{6,12}Z", "", value.partition(".")[0])


_SOURCES: Final[tuple[tuple[str, str, Callable[[str, str], str | None]], ...]] = (
    ("baggage", "playhead.run", _baggage_entry),
    ("baggage", "gen_ai.conversation.id", _baggage_entry),
    ("baggage", "session.id", _baggage_entry),
    ("baggage", "langfuse_session_id", _baggage_entry),
    # Agents
    ("x-claude-code-session-id", "", _whole_value),
    # Sub-agents send the session that they work for, and their own id.
    ("session-id", "", _whole_value),
    ("session_id", "", _whole_value),
    ("x-codex-turn-metadata", "session_id", _json_member),
    ("x-codex-parent-thread-id", "", _whole_value),
    ("thread-id", "", _whole_value),
    ("thread_id", "", _whole_value),
    ("x-parent-session-id", "", _whole_value),
    ("x-dynamo-parent-session-id", "", _whole_value),
    ("x-opencode-session", "", _whole_value),
    ("x-session-affinity", "", _whole_value),
    ("x-amp-thread-id", "", _whole_value),
    ("x-dynamo-session-id", "", _whole_value),
    # Gateways and observability tools
    ("helicone-session-id", "", _whole_value),
    ("x-portkey-trace-id", "", _whole_value),
    ("x-litellm-session-id", "", _whole_value),
    ("x-litellm-trace-id", "", _whole_value),
    ("langsmith-trace", "", _dotted_root),
    ("x-langtrace-session-id", "", _whole_value),
    ("x-bt-parent", "", _whole_value),
    ("x-session-id", "", _whole_value),
)


_ROOT_HEADERS: Final = (
    "session-id",
    "session_id",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
    "x-dynamo-parent-session-id",
)
_BRANCH_HEADERS: Final = (
    "thread-id",
    "thread_id",
    "x-opencode-session",
    "x-session-affinity",
    "x-session-id",
    "x-dynamo-session-id",
)
_FOREIGN_HEADERS: Final = frozenset(header for header, _, _ in _SOURCES)


def _trace_evidence(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    # Evidence only: in 111 of 111 recordings with several traces, each call had its own (wire report, D).
    found = re.match(r"[0-9a-f]{2}-([0-9a-f]{32})-", values.get("traceparent", ""))
    if found and found[1].strip("0"):
        yield "traceparent", found[1]
