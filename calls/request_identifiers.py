"""Read the identifiers that agents and frameworks put into bodies for a provider, a gateway or a cache.

A body is complete only after the worker had to choose a run, so these identifiers count only where nothing better names the
run. They were not written for Playhead: values that do not look like an identifier are skipped, and a value that is not
valid as a run id is replaced by its digest.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from calls.codec.lenient_json import as_object, as_text_or_none
from calls.model import Call, Json
from calls.project_runs import RUN_ID

MAX_LENGTH: Final = 512
"""Longer values are not treated as identifiers (wire report, D)."""

type RunEvidence = tuple[tuple[str, str], ...]
"""Identifiers as (source, value), strongest first."""


def call_identifiers(call: Call) -> RunEvidence:
    """Return the run identifiers of a call to a model or an agent. In a tool's body, a session is the tool's own."""
    if call.dialect == "a2a":
        return a2a_identifiers(call.request, call.answer)
    return body_identifiers(call.request) if call.kind == "model" else ()


def body_identifiers(request: Json) -> RunEvidence:
    """Return the run identifiers in the body of a request to a model."""
    body = as_object(request)
    return _valid_identifiers((source, read(body)) for source, read in _SOURCES)


def a2a_identifiers(request: Json, answer: Json) -> RunEvidence:
    """Return the A2A context of a call: the one that the client names, else the one that the agent created.

    A value from the agent counts only if it looks generated, so that an agent cannot choose a run that the user named.
    """
    message = as_object(as_object(request).get("params")) or as_object(request)
    if context := _context_id(message) or _context_id(as_object(message.get("message"))):
        return _valid_identifiers([("body/contextId", context)])
    result = as_object(as_object(answer).get("result")) or as_object(answer)
    minted = next(
        filter(
            None, (_context_id(result), *(_context_id(as_object(result.get(name))) for name in ("task", "message")))
        ),
        "",
    )
    return _valid_identifiers([("answer/contextId", minted)]) if _GENERATED_ID.fullmatch(minted) else ()


def _context_id(value: Mapping[str, Json]) -> str | None:
    return as_text_or_none(value.get("contextId"))


def _valid_identifiers(found: Iterable[tuple[str, str | None]]) -> RunEvidence:
    return tuple(
        (source, name)
        for source, name in found
        if name and len(name) <= MAX_LENGTH and name.isprintable() and name.strip()
    )


def run_id_for(name: str) -> str:
    """Return a run id for a name: the name itself if it is valid, else its digest."""
    if RUN_ID.fullmatch(name):
        return name
    return "id:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _text_at(*path: str) -> Callable[[Mapping[str, Json]], str | None]:
    def read(body: Mapping[str, Json]) -> str | None:
        *parents, last = path
        for name in parents:
            body = as_object(body.get(name))
        value = body.get(last)
        return value if isinstance(value, str) else None

    return read


def _claude_session(body: Mapping[str, Json]) -> str | None:
    """Return Claude Code's session from `metadata.user_id`: `user_…_account_…_session_UUID`, or JSON with `session_id`."""
    user = _text_at("metadata", "user_id")(body) or ""
    if found := _CLAUDE_SESSION.search(user):
        return found[1]
    return _session_in_json(user) if user.startswith("{") and len(user) <= MAX_LENGTH else None


def _session_in_json(user: str) -> str | None:
    try:
        return _text_at("session_id")(as_object(json.loads(user)))
    except (ValueError, RecursionError):
        return None


def _run_cache_key(body: Mapping[str, Json]) -> str | None:
    """Return the key of a prompt cache if it names a run, session, conversation (OpenAI's Agents SDK) or thread (Codex).

    The keys of other clients name a prompt.
    """
    key = _text_at("prompt_cache_key")(body)
    return key if key and _RUN_CACHE_KEY.fullmatch(key) else None


def _conversation(body: Mapping[str, Json]) -> str | None:
    return _text_at("conversation")(body) or _text_at("conversation", "id")(body)


_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GENERATED_ID: Final = re.compile(r"(?=.*\d)[\w-]{20,64}", re.ASCII)
_CLAUDE_SESSION: Final = re.compile(rf"_session_({_UUID})$")
_RUN_CACHE_KEY: Final = re.compile(rf"agents-sdk:(?:run|session|conversation|group):[\w-]+|{_UUID}")

_SOURCES: Final[tuple[tuple[str, Callable[[Mapping[str, Json]], str | None]], ...]] = (
    ("body/metadata.session_id", _text_at("metadata", "session_id")),
    ("body/metadata.user_id", _claude_session),
    ("body/litellm_session_id", _text_at("litellm_session_id")),
    ("body/session_id", _text_at("session_id")),
    ("body/metadata.langfuse_session_id", _text_at("metadata", "langfuse_session_id")),
    ("body/prompt_cache_key", _run_cache_key),
    ("body/metadata.conversation_id", _text_at("metadata", "conversation_id")),
    ("body/metadata.thread_id", _text_at("metadata", "thread_id")),
    ("body/conversation", _conversation),
)
