"""Compute the ties that connect an exchange with others: an answer produces an id and a later request refers to it.

A tie is a number, a digest of the id and of the connection's owner, so that ids only connect exchanges of one owner. An even
tie stands for a produced id, and the odd number after it for a reference to that id. Tool calls and the model calls that
requested them have ties too (`tool_ties`). An exchange with an explicit run has no ties: it is not moved, and no other
exchange is moved to it. Pure.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text_or_none
from calls.model import Call, Exchange, Json, header
from store.attribution.turns import produced_turn_id, referenced_turn_id
from store.call_graph.call_graph import execution_search_values, tool_execution, tool_search_values
from store.call_graph.call_ids import created_ids, returned_ids

OWNER: Final = "owner"
EXPLICIT_SOURCES: Final = frozenset(("x-playhead-bound-run", "credentials", "x-playhead-run"))
"""The sources of an explicit run: Playhead's credentials and header."""

EXECUTES: Final = "executes"
"""The source of the id of the tool call that an exchange executes."""

TOOL_KINDS: Final = frozenset(("tool", "retrieval"))
"""Kinds of calls that may execute a tool call of a model."""

HOUR: Final = 3600 * 1_000_000_000
"""Nanoseconds after a model requested a tool in which a call may be its execution."""

SESSION: Final = "mcp-session-id"
"""The source of the MCP session of an exchange."""

_TOOL_REQUEST: Final = "asked"
"""Stored in digests, so it cannot change."""

MAX_TIES: Final = 16
"""Ties of an exchange in each direction at most."""

MAX_VALUES_SEARCHED: Final = 200
"""Values of the conversation in a request that are searched for an id, from its end."""

_STATEFUL_DIALECTS: Final = frozenset(
    ("openai_responses", "openai_agents", "gemini_interactions", "openai_assistants", "mistral_conversations")
)
"""Dialects whose answers have an id by which later requests continue them."""

_PREVIOUS_ID_FIELDS: Final = ("previous_response_id", "previous_interaction_id")
_TOOL_RESULT_ID_FIELDS: Final = ("tool_call_id", "tool_use_id", "toolUseId", "call_id")
_IN_PATH: Final = re.compile(r"/(?:threads|conversations|agents/sessions)/([\w-]{8,128})(?=/|$)")


def id_ties(exchange: Exchange, call: Call | None) -> list[int]:
    """The ties of an exchange: even for ids that its answer produces, odd for ids that its request refers to."""
    owner = owner_run(exchange)
    if owner is None or call is None or any(source in EXPLICIT_SOURCES for source, _ in exchange.run_evidence):
        return []
    return [_digest_tie(owner, "", one) for one in produced_ids(exchange, call)] + [
        _digest_tie(owner, "", one) | 1 for one in referenced_ids(exchange, call)
    ]


def tool_ties(exchange: Exchange, call: Call | None) -> list[int]:
    """The ties that connect a tool call with the model call that requested it, and the exchanges of an MCP session.

    Ties are even for the tools that an answer requests, and odd for calls that may execute them. The tie of a session is
    even for any exchange of it, and odd for a tool call whose run is known.
    """
    owner = owner_run(exchange)
    if owner is None or call is None or any(source in EXPLICIT_SOURCES for source, _ in exchange.run_evidence):
        return []
    if call.kind == "model":
        return _tool_request_ties(owner, exchange, call)
    session = session_tie(exchange)
    if session is not None and not call.tool_calls:
        return [session]
    if call.kind not in TOOL_KINDS or id_ties(exchange, call):
        return []
    hour = exchange.started_at // HOUR
    found = [
        _digest_tie(owner, f"{_TOOL_REQUEST} {hour}", one) | 1
        for one in execution_search_values(tool_execution(exchange, call))
    ]
    if session is not None and any(source == EXECUTES for source, _ in exchange.run_evidence):
        found.append(session | 1)
    return found


def tools_requested_at(exchange: Exchange, call: Call) -> int | None:
    """When the requested tools could first be called; None if the answer is incomplete."""
    at = exchange.first_byte_at if call.streamed else exchange.ended_at
    return exchange.started_at + at if call.complete and at is not None else None


def session_id(exchange: Exchange) -> str | None:
    """The id of the MCP session that an exchange begins or belongs to."""
    heads = (exchange.request.headers, exchange.response.headers if exchange.response else ())
    return next((found for head in heads if (found := header(head, SESSION))), None)


def session_tie(exchange: Exchange) -> int | None:
    """The tie of the MCP session of an exchange."""
    owner, session = owner_run(exchange), session_id(exchange)
    return None if owner is None or session is None else _digest_tie(owner, SESSION, session)


def id_tie(exchange: Exchange, name: str) -> int | None:
    """The even tie of this id for the owner of an exchange."""
    owner = owner_run(exchange)
    return None if owner is None else _digest_tie(owner, "", name)


def _tool_request_ties(owner: str, exchange: Exchange, call: Call) -> list[int]:
    at = tools_requested_at(exchange, call)
    if at is None or not call.tool_calls:
        return []
    values = _distinct_ids(one for tool in call.tool_calls if tool.id for one in tool_search_values(tool))
    # An execution within an hour is in this clock hour or in the next.
    return [_digest_tie(owner, f"{_TOOL_REQUEST} {at // HOUR + n}", one) for n in (0, 1) for one in values]


def produced_ids(exchange: Exchange, call: Call) -> list[str]:
    """The ids that the answer produces, without those that the request has, as a request for the state of work has."""
    ids: list[str | None] = [*created_ids(call), call.pending]
    if call.dialect in _STATEFUL_DIALECTS:
        answer = as_object(call.answer)
        ids += [as_text_or_none(answer.get(name)) for name in ("id", "conversation_id", "thread_id")]
    ids.append(produced_turn_id(call) if call.kind == "model" else None)
    requested = {call.polls, *_ids_in_path(exchange)}
    return _distinct_ids(one for one in ids if one not in requested)


def referenced_ids(exchange: Exchange, call: Call) -> list[str]:
    """The ids that the request refers to; if it has none, the newest tool result or turn in its conversation."""
    ids = [*returned_ids(call), call.polls]
    if call.kind != "model":
        return _distinct_ids(ids)
    request = as_object(call.request)
    ids += [*(as_text_or_none(request.get(name)) for name in _PREVIOUS_ID_FIELDS), *_ids_in_path(exchange)]
    return _distinct_ids(ids) or _distinct_ids(
        [next(_tool_result_ids(request), None) or referenced_turn_id(call.request)]
    )


def owner_run(exchange: Exchange) -> str | None:
    """The run of the owner of the exchange's connection."""
    return next((value for source, value in exchange.run_evidence if source == OWNER), None)


def _digest_tie(owner: str, kind: str, name: str) -> int:
    text = f"{owner}\0{name}" if not kind else f"{owner}\0{kind}\0{name}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) & ~1


def _distinct_ids(ids: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(one for one in ids if one))[:MAX_TIES]


def _ids_in_path(exchange: Exchange) -> list[str]:
    return _IN_PATH.findall(exchange.request.url.partition("?")[0])


def _tool_result_ids(request: Mapping[str, Json]) -> Iterator[str]:
    """The ids of tool calls whose results are in the conversation of a request, newest first."""
    stack: list[Json] = [one for name in ("messages", "input", "contents") for one in as_array(request.get(name))]
    for _ in range(MAX_VALUES_SEARCHED):
        if not stack:
            return
        match stack.pop():
            case Mapping() as inner:
                yield from (found for name in _TOOL_RESULT_ID_FIELDS if (found := as_text_or_none(inner.get(name))))
                stack += inner.values()
            case Sequence() as inner if not isinstance(inner, str):
                stack += inner
            case _:
                pass
