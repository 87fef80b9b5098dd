"""Find the run, step and actor that a request names, in the documented order of places, with all the evidence.

What the client tells us on purpose (credentials, our own headers) must be right; `refusal` says what is wrong with it.
What it tells others (agents, gateways, tracers) is taken as it is found: a name that cannot be a run's becomes one by
digest. Our own headers and our credentials are for us, and go no further.
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
from calls.request_identifiers import LONGEST, RUN, legal
from proxy.capture.owner import Owner

STEP: Final = re.compile(r"[0-9]{1,9}")
ACTOR: Final = 256
"""Characters that an actor's name may have."""

BOUND: Final = "x-playhead-bound-run"
"""The header with which the thin client names the run of one request: the credentials of a connection are shared by several runs."""

OWN_SOURCES: Final = (BOUND, "credentials", "x-playhead-run")
"""Where a client names a run to us, strongest first. What an agent tells others never selects a recording."""

BY_PROCESS: Final = "per-process"
"""The user name of credentials that carry a token and name no run: the process that owns the connection names it."""

type Credentials = tuple[str, str] | None
"""Run and token, as they were given to us."""


def credentials(field: str) -> Credentials:
    """Run and token from a Proxy-Authorization field, where it is a Basic one.

    A run may hold colons, so the token is what follows the last one. Clients that refuse a colon in a user's name are given
    it escaped (`environ.addressed`), and send it as they got it.
    """
    kind, _, encoded = field.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        run, _, token = base64.b64decode(encoded.strip(), validate=True).decode().rpartition(":")
    except (binascii.Error, ValueError):
        return None
    run = unquote(run) if "%" in run else run
    return ("" if run == BY_PROCESS else run), token


class Identity(NamedTuple):
    """What the head of a request says about whose it is."""

    run: str
    evidence: tuple[tuple[str, str], ...]
    """Every identifier with its source, strongest first."""

    step: int | None
    actor: str | None
    headers: Headers
    """What goes on to the upstream: the very same where nothing was for us."""

    wrong: str | None = None
    """What `refusal` says."""


def identify(
    headers: Headers, credentials: Credentials, owner: str, is_only_run: Callable[[str], bool] = lambda _run: False
) -> Identity:
    """Whose call this is; `owner` is whose the connection is. Total: what `refusal` would refuse is made to fit.

    `is_only_run`: whether a run that credentials name is a fork or a replay, which a program does not leave by binding runs.
    """
    seen = _first_values(headers)
    is_ours = any(_is_ours(name) for name in seen)
    if BOUND in seen and credentials and credentials[0] and is_only_run(credentials[0]):
        del seen[BOUND]
    found = (*_told(seen, credentials), *_foreign(seen))
    return Identity(
        run=legal(found[0][1]) if found else str(owner),
        evidence=(*found, *_trace(seen), *_process(owner), ("owner", str(owner))),
        step=_step(seen),
        actor=_actor(seen),
        headers=_for_upstream(headers) if is_ours else headers,
        wrong=_wrong(seen, credentials),
    )


def names_a_run(seen: Iterable[tuple[str, str]], given: Credentials) -> bool:
    """Whether the client names a run to us: then it does not matter whose connection it is."""
    return bool(given and given[0]) or any(name in OWN_SOURCES for name, _ in seen)


def _process(owner: str) -> Iterator[tuple[str, str]]:
    if isinstance(owner, Owner) and owner.process:
        yield "process", owner.process


def refusal(headers: Headers, credentials: Credentials) -> str | None:
    """What is wrong with what the client told us on purpose, in a sentence for it; None when nothing is."""
    return _wrong(_first_values(headers), credentials)


def _wrong(seen: dict[str, str], credentials: Credentials) -> str | None:
    for source, run in _told(seen, credentials):
        if not RUN.fullmatch(run):
            return f"{run[:80]!r} ({source}) cannot name a run; use 1 to 128 of A-Z a-z 0-9 . _ : -"
    step, actor = seen.get("x-playhead-step"), seen.get("x-playhead-actor", "")
    if step is not None and not STEP.fullmatch(step):
        return f"{step[:80]!r} (X-Playhead-Step) is no step; use a whole number of up to 9 digits"
    if len(actor) > ACTOR or not actor.isprintable():
        return f"X-Playhead-Actor cannot be used; use up to {ACTOR} printable characters"
    return None


def _first_values(headers: Headers) -> dict[str, str]:
    seen: dict[str, str] = {}
    for name, value in headers:
        seen.setdefault(name.lower(), value.strip())
    return seen


def _for_upstream(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if not _is_ours(name.lower()))


@lru_cache(2048)
def _is_ours(name: str) -> bool:
    """Meant for us, also by clients of old, and hop-by-hop."""
    return name.startswith("x-playhead-") or name in ("proxy-authorization", "proxy-connection")


# -- what the client tells us


def _told(seen: dict[str, str], credentials: Credentials) -> Iterator[tuple[str, str]]:
    if BOUND in seen:
        yield BOUND, seen[BOUND]
    if credentials and credentials[0]:
        yield "credentials", credentials[0]
    if "x-playhead-run" in seen:
        yield "x-playhead-run", seen["x-playhead-run"]


def _step(seen: dict[str, str]) -> int | None:
    text = seen.get("x-playhead-step", "")
    return int(text) if STEP.fullmatch(text) else None


def _actor(seen: dict[str, str]) -> str | None:
    """By our own header, else the sub-agent that calls, as agents tell it of theirs."""
    names = (seen.get("x-playhead-actor", ""), seen.get("x-claude-code-agent-id", ""), _branch(seen))
    return next((name for name in names if name and len(name) <= ACTOR and name.isprintable()), None)


def _branch(seen: dict[str, str]) -> str:
    """The sub-agent of Codex or opencode: it names the session that it belongs to, and has an id of its own.

    What kind of agent it is (`x-openai-subagent`) is the same for all that are spawned; it names one that works in its parent's thread.
    """
    root = next((seen[name] for name in _ROOTS if name in seen), None)
    own = next((seen[name] for name in _BRANCHES if name in seen), "")
    if root is None or not own:
        return ""
    return own if own != root else seen.get("x-openai-subagent", "")


# -- what the client tells others


def _foreign(seen: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Identifiers that were meant for others, strongest first."""
    if _FOREIGN.isdisjoint(seen):
        return
    for header, member, read in _SOURCES:
        value = seen.get(header)
        identifier = read(value, member) if value else None
        if identifier and len(identifier) <= LONGEST and identifier.isprintable():
            yield (f"{header}/{member}" if member else header), identifier


def _itself(value: str, _member: str) -> str:
    return value


def _baggage(value: str, member: str) -> str | None:
    """An entry of W3C baggage: `key=value;properties, …`, the value percent-encoded."""
    for entry in value.split(","):
        key, equals, rest = entry.partition(";")[0].partition("=")
        if equals and unquote(key.strip()) == member:
            return unquote(rest.strip())
    return None


def _in_json(value: str, member: str) -> str | None:
    try:
        told = json.loads(value)
    except (ValueError, RecursionError):
        return None
    named = told.get(member) if isinstance(told, dict) else None
    return named if isinstance(named, str) else None


def _dotted_root(value: str, _member: str) -> str:
    """LangSmith's dotted order: the first segment is the root run, as its time and its id (`20240101T000000000000Z…`)."""
    return re.sub(r"^\d{8}T\d{6,12}Z", "", value.partition(".")[0])


_SOURCES: Final[tuple[tuple[str, str, Callable[[str, str], str | None]], ...]] = (
    ("baggage", "playhead.run", _baggage),
    ("baggage", "gen_ai.conversation.id", _baggage),
    ("baggage", "session.id", _baggage),
    ("baggage", "langfuse_session_id", _baggage),
    # Agents, of their own
    ("x-claude-code-session-id", "", _itself),
    # Sub-agents name the session that they work for, and themselves by their own.
    ("session-id", "", _itself),
    ("session_id", "", _itself),
    ("x-codex-turn-metadata", "session_id", _in_json),
    ("x-codex-parent-thread-id", "", _itself),
    ("thread-id", "", _itself),
    ("thread_id", "", _itself),
    ("x-parent-session-id", "", _itself),
    ("x-dynamo-parent-session-id", "", _itself),
    ("x-opencode-session", "", _itself),
    ("x-session-affinity", "", _itself),
    ("x-amp-thread-id", "", _itself),
    ("x-dynamo-session-id", "", _itself),
    # Gateways and observers
    ("helicone-session-id", "", _itself),
    ("x-portkey-trace-id", "", _itself),
    ("x-litellm-session-id", "", _itself),
    ("x-litellm-trace-id", "", _itself),
    ("langsmith-trace", "", _dotted_root),
    ("x-langtrace-session-id", "", _itself),
    ("x-bt-parent", "", _itself),
    ("x-session-id", "", _itself),
)


_ROOTS: Final = (
    "session-id",
    "session_id",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
    "x-dynamo-parent-session-id",
)
_BRANCHES: Final = (
    "thread-id",
    "thread_id",
    "x-opencode-session",
    "x-session-affinity",
    "x-session-id",
    "x-dynamo-session-id",
)
_FOREIGN: Final = frozenset(header for header, _, _ in _SOURCES)


def _trace(seen: dict[str, str]) -> Iterator[tuple[str, str]]:
    # Evidence only: in 111 of 111 recordings with several, each call had a trace of its own (wire report, D).
    found = re.match(r"[0-9a-f]{2}-([0-9a-f]{32})-", seen.get("traceparent", ""))
    if found and found[1].strip("0"):
        yield "traceparent", found[1]
