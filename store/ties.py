"""Ids that tie an exchange to others, where nobody told us whose it is: those that its answer makes, those that it hands back.

A tie counts among the exchanges of one owner only, so it is a digest of both: who hands back an id of another machine's call
has another tie. What our own credentials or header named has none: it neither is moved nor draws others to it. Pure.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from calls.model import Call, Exchange, Json
from calls.shape import elements, members, some
from store.links import gives, takes

OWNER: Final = "owner"
OWN: Final = frozenset(("credentials", "x-playhead-run"))
"""Sources of evidence that are our own words."""

MOST: Final = 16
"""Ties of one exchange in each direction."""

LOOKED_AT: Final = 200
"""Values of the conversation that is sent along, from its end, in which an id is looked for."""

_STATEFUL: Final = frozenset(("openai_responses", "gemini_interactions", "openai_assistants", "mistral_conversations"))
"""Dialects whose answers have an id that later requests go on from."""

_BEFORE: Final = ("previous_response_id", "previous_interaction_id")
_TOLD: Final = ("tool_call_id", "tool_use_id", "toolUseId", "call_id")
_IN_PATH: Final = re.compile(r"/(?:threads|conversations)/([\w-]{8,128})(?=/|$)")


def ties(exchange: Exchange, call: Call | None) -> list[int]:
    """Even numbers for what its answer makes, odd ones for what it hands back."""
    owner = owner_of(exchange)
    if owner is None or call is None or any(source in OWN for source, _ in exchange.run_evidence):
        return []
    return [_tie(owner, one) for one in made(exchange, call)] + [
        _tie(owner, one) | 1 for one in handed_back(exchange, call)
    ]


def made(exchange: Exchange, call: Call) -> list[str]:
    """The ids that its answer makes; not those that it was asked with, as when somebody looks whether work is done."""
    ids: list[str | None] = [*gives(call), call.pending]
    if call.dialect in _STATEFUL:
        answer = members(call.answer)
        ids += [some(answer.get(name)) for name in ("id", "conversation_id", "thread_id")]
    asked = {call.polls, *_in_path(exchange)}
    return _distinct(one for one in ids if one not in asked)


def handed_back(exchange: Exchange, call: Call) -> list[str]:
    """The ids that its request hands back: what is told or gone on from now, else the newest of what was told before."""
    ids = [*takes(call), call.polls]
    if call.kind != "model":
        return _distinct(ids)
    request = members(call.request)
    ids += [*(some(request.get(name)) for name in _BEFORE), *_in_path(exchange)]
    return _distinct(ids) or _distinct([next(_told_before(request), None)])


def owner_of(exchange: Exchange) -> str | None:
    """The run that only its connection's owner names."""
    return next((value for source, value in exchange.run_evidence if source == OWNER), None)


def _tie(owner: str, name: str) -> int:
    digest = hashlib.blake2b(f"{owner}\0{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
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
