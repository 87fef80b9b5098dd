"""Connect exchanges without a run by ids: one answer makes an id, and a later request sends it.

A tie counts among the exchanges of one owner only, so it is a digest of both: who hands back an id of another machine's call
has another tie. Beside the ids stands what finds a tool call and whoever asked for it (`marks`). What our own credentials or
header named has none: it neither is moved nor draws others to it. Pure.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import elements, members, some
from calls.model import Call, Exchange, Json, header
from store.attribution.turns import turn_handed_back, turn_made
from store.call_graph.call_graph import asked_by, done_by, found_by
from store.call_graph.call_ids import gives, takes

OWNER: Final = "owner"
OWN: Final = frozenset(("x-playhead-bound-run", "credentials", "x-playhead-run"))
"""Sources of evidence that are our own words."""

EXECUTES: Final = "executes"
"""The source of the id of a tool call that an exchange did."""

DOING: Final = frozenset(("tool", "retrieval"))
"""Kinds of calls that do what a model asks for."""

HOUR: Final = 3600 * 1_000_000_000
"""Nanoseconds after a model asked for a tool in which it is looked for who called it."""

SESSION: Final = "mcp-session-id"
"""The source of the session of MCP that an exchange is of."""

ASKED: Final = "asked"

MOST: Final = 16
"""Ties of one exchange in each direction."""

LOOKED_AT: Final = 200
"""Values of the conversation that is sent along, from its end, in which an id is looked for."""

_STATEFUL: Final = frozenset(
    ("openai_responses", "openai_agents", "gemini_interactions", "openai_assistants", "mistral_conversations")
)
"""Dialects whose answers have an id that later requests go on from."""

_BEFORE: Final = ("previous_response_id", "previous_interaction_id")
_TOLD: Final = ("tool_call_id", "tool_use_id", "toolUseId", "call_id")
_IN_PATH: Final = re.compile(r"/(?:threads|conversations|agents/sessions)/([\w-]{8,128})(?=/|$)")


def ties(exchange: Exchange, call: Call | None) -> list[int]:
    """Even numbers for what its answer makes, odd ones for what it hands back."""
    owner = owner_of(exchange)
    if owner is None or call is None or any(source in OWN for source, _ in exchange.run_evidence):
        return []
    return [_tie(owner, "", one) for one in made(exchange, call)] + [
        _tie(owner, "", one) | 1 for one in handed_back(exchange, call)
    ]


def marks(exchange: Exchange, call: Call | None) -> list[int]:
    """What finds a tool call and whoever asked for it, and the exchanges of one session of MCP (`errands`).

    Even numbers for what an answer asks of tools, odd ones for what may have been asked. A session is even for what belongs
    to it whatever it does, odd for a call that is known to be a run's.
    """
    owner = owner_of(exchange)
    if owner is None or call is None or any(source in OWN for source, _ in exchange.run_evidence):
        return []
    if call.kind == "model":
        return _asked(owner, exchange, call)
    session = session_tie(exchange)
    if session is not None and not call.tool_calls:
        return [session]
    if call.kind not in DOING or ties(exchange, call):
        return []
    hour = exchange.started_at // HOUR
    found = [_tie(owner, f"{ASKED} {hour}", one) | 1 for one in found_by(done_by(exchange, call))]
    if session is not None and any(source == EXECUTES for source, _ in exchange.run_evidence):
        found.append(session | 1)
    return found


def asked_at(exchange: Exchange, call: Call) -> int | None:
    """When whoever asked could first act on the answer; None where there is no whole one."""
    at = exchange.first_byte_at if call.streamed else exchange.ended_at
    return exchange.started_at + at if call.complete and at is not None else None


def session_of(exchange: Exchange) -> str | None:
    """The session of MCP that an exchange begins or is part of."""
    heads = (exchange.request.headers, exchange.response.headers if exchange.response else ())
    return next((found for head in heads if (found := header(head, SESSION))), None)


def session_tie(exchange: Exchange) -> int | None:
    """The tie of the session of MCP that an exchange is of."""
    owner, session = owner_of(exchange), session_of(exchange)
    return None if owner is None or session is None else _tie(owner, SESSION, session)


def tie_of(exchange: Exchange, name: str) -> int | None:
    """The tie of whoever makes this id beside an exchange."""
    owner = owner_of(exchange)
    return None if owner is None else _tie(owner, "", name)


def _asked(owner: str, exchange: Exchange, call: Call) -> list[int]:
    at = asked_at(exchange, call)
    if at is None or not call.tool_calls:
        return []
    told = _distinct(one for tool in call.tool_calls if tool.id for one in asked_by(tool))
    # What is done in the hour after lies in the one or in the other.
    return [_tie(owner, f"{ASKED} {at // HOUR + n}", one) for n in (0, 1) for one in told]


def made(exchange: Exchange, call: Call) -> list[str]:
    """The ids that its answer makes; not those that it was asked with, as when somebody looks whether work is done."""
    ids: list[str | None] = [*gives(call), call.pending]
    if call.dialect in _STATEFUL:
        answer = members(call.answer)
        ids += [some(answer.get(name)) for name in ("id", "conversation_id", "thread_id")]
    ids.append(turn_made(call) if call.kind == "model" else None)
    asked = {call.polls, *_in_path(exchange)}
    return _distinct(one for one in ids if one not in asked)


def handed_back(exchange: Exchange, call: Call) -> list[str]:
    """The ids that its request hands back: what is told or gone on from now, else the newest of what was told before."""
    ids = [*takes(call), call.polls]
    if call.kind != "model":
        return _distinct(ids)
    request = members(call.request)
    ids += [*(some(request.get(name)) for name in _BEFORE), *_in_path(exchange)]
    return _distinct(ids) or _distinct([next(_told_before(request), None) or turn_handed_back(call.request)])


def owner_of(exchange: Exchange) -> str | None:
    """The run that only its connection's owner names."""
    return next((value for source, value in exchange.run_evidence if source == OWNER), None)


def _tie(owner: str, kind: str, name: str) -> int:
    said = f"{owner}\0{name}" if not kind else f"{owner}\0{kind}\0{name}"
    digest = hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) & ~1


def _distinct(ids: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(one for one in ids if one))[:MOST]


def _in_path(exchange: Exchange) -> list[str]:
    return _IN_PATH.findall(exchange.request.url.partition("?")[0])


def _told_before(request: Mapping[str, Json]) -> Iterator[str]:
    """Ids of tool calls whose results are in the conversation that is sent along, the newest first."""
    left: list[Json] = [said for name in ("messages", "input", "contents") for said in elements(request.get(name))]
    for _ in range(LOOKED_AT):
        if not left:
            return
        match left.pop():
            case Mapping() as inner:
                yield from (found for name in _TOLD if (found := some(inner.get(name))))
                left += inner.values()
            case Sequence() as inner if not isinstance(inner, str):
                left += inner
            case _:
                pass
