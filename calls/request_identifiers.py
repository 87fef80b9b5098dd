"""Read the identifiers that agents and frameworks put into bodies for a provider, a gateway or a cache.

A body is known only after the worker had to name a run, so what it says counts where nothing better did. What is read here was
meant for others: a value that could not be an identifier is none, and a name that cannot be a run's becomes one by digest.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from calls.codec.lenient_json import members, some
from calls.model import Call, Json

RUN: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")
"""What can be a run's id (contract), but for the two that a URL's path cannot name."""

LONGEST: Final = 512
"""An identifier that is longer is none (wire report, D)."""

type Evidence = tuple[tuple[str, str], ...]
"""Identifiers as (source, value), strongest first."""


def told_by(call: Call) -> Evidence:
    """What a call says about whose it is. Only models and agents are believed: in a tool's body a session is the tool's."""
    if call.dialect == "a2a":
        return told_to_agent(call.request, call.answer)
    return told_by_body(call.request) if call.kind == "model" else ()


def told_by_body(request: Json) -> Evidence:
    """What the body of a request to a model says about whose it is."""
    body = members(request)
    return _names((source, read(body)) for source, read in _SOURCES)


def told_to_agent(request: Json, answer: Json) -> Evidence:
    """The context of a call from agent to agent: as whoever asks names it, or else as the agent does that made it.

    What comes from elsewhere counts only as it is minted, and so cannot be aimed at a run that a person gave a name.
    """
    asked = members(members(request).get("params")) or members(request)
    if named := _context(asked) or _context(members(asked.get("message"))):
        return _names([("body/contextId", named)])
    told = members(members(answer).get("result")) or members(answer)
    minted = next(
        filter(None, (_context(told), *(_context(members(told.get(name))) for name in ("task", "message")))), ""
    )
    return _names([("answer/contextId", minted)]) if _MINTED.fullmatch(minted) else ()


def _context(value: Mapping[str, Json]) -> str | None:
    return some(value.get("contextId"))


def _names(found: Iterable[tuple[str, str | None]]) -> Evidence:
    return tuple(
        (source, name)
        for source, name in found
        if name and len(name) <= LONGEST and name.isprintable() and name.strip()
    )


def legal(name: str) -> str:
    """A run's id for any name: itself where it can be one."""
    if RUN.fullmatch(name):
        return name
    return "id:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _at(*path: str) -> Callable[[Mapping[str, Json]], str | None]:
    def read(body: Mapping[str, Json]) -> str | None:
        *parents, last = path
        for name in parents:
            body = members(body.get(name))
        value = body.get(last)
        return value if isinstance(value, str) else None

    return read


def _claude_session(body: Mapping[str, Json]) -> str | None:
    """Claude Code's session, in the user that it names to Anthropic: `user_…_account_…_session_UUID`, or JSON with the same."""
    user = _at("metadata", "user_id")(body) or ""
    if found := _SESSION.search(user):
        return found[1]
    return _session_in_json(user) if user.startswith("{") and len(user) <= LONGEST else None


def _session_in_json(user: str) -> str | None:
    try:
        return _at("session_id")(members(json.loads(user)))
    except (ValueError, RecursionError):
        return None


def _cached_for_a_run(body: Mapping[str, Json]) -> str | None:
    """The key of a prompt cache, where it names one run, session or conversation (OpenAI's Agents SDK) or one thread (Codex).

    Others name a prompt.
    """
    key = _at("prompt_cache_key")(body)
    return key if key and _ONE_RUN.fullmatch(key) else None


def _conversation(body: Mapping[str, Json]) -> str | None:
    return _at("conversation")(body) or _at("conversation", "id")(body)


_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_MINTED: Final = re.compile(r"(?=.*\d)[\w-]{20,64}", re.ASCII)
_SESSION: Final = re.compile(rf"_session_({_UUID})$")
_ONE_RUN: Final = re.compile(rf"agents-sdk:(?:run|session|conversation|group):[\w-]+|{_UUID}")

_SOURCES: Final[tuple[tuple[str, Callable[[Mapping[str, Json]], str | None]], ...]] = (
    ("body/metadata.session_id", _at("metadata", "session_id")),
    ("body/metadata.user_id", _claude_session),
    ("body/litellm_session_id", _at("litellm_session_id")),
    ("body/session_id", _at("session_id")),
    ("body/metadata.langfuse_session_id", _at("metadata", "langfuse_session_id")),
    ("body/prompt_cache_key", _cached_for_a_run),
    ("body/metadata.conversation_id", _at("metadata", "conversation_id")),
    ("body/metadata.thread_id", _at("metadata", "thread_id")),
    ("body/conversation", _conversation),
)
