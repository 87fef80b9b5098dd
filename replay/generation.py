"""A new generation of a recorded run: what answered a replay, and what was recorded live where nothing could.

It takes effect as a whole or not at all. A recording that failed or was cut never takes the place of a good one: `flaw` says
what is wrong with it, and the run stays as it was.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from calls.key import raw_digest
from calls.model import Call, Exchange, Usage
from replay import playback
from store.bundle import Bundle, Entry, told

type Derive = Callable[[Exchange], Call]

FAILED: Final = frozenset({401, 403, 407, 408, 425, 429, *range(500, 600)})
"""Statuses that tell of the moment or of the caller's keys, and not what an API answers to a request. One may come first,
but not be the last word."""


def flaw(recorded: Bundle) -> str | None:
    """Why what was recorded live is not to be replayed; None where it is whole."""
    if recorded.gaps:
        return f"not everything could be recorded ({recorded.gaps[0].reason})"
    last: dict[str, Exchange] = {}
    for exchange in recorded.exchanges:
        if exchange.outcome != "completed" or playback.lacking(exchange):
            how = playback.lacking(exchange) or exchange.error or exchange.outcome
            return f"{_words(exchange)} did not end well: {how}"
        last[raw_digest(exchange.request)] = exchange
    failed = next((each for each in last.values() if each.response and each.response.status in FAILED), None)
    if failed is None or failed.response is None:
        return None
    return f"{_words(failed)} was answered with status {failed.response.status}"


def generation(run: Mapping[str, Any], profiles: str, exchanges: Sequence[Exchange], derive: Derive) -> Bundle:
    """A run of these exchanges, as its bundle. `run` is the one that it follows."""
    named = str(run["id"])
    ordered = sorted(exchanges, key=lambda each: (each.started_at, each.id))
    entries, seen, calls = [], Counter[str](), []
    for each in ordered:
        call = derive(each)
        calls.append(call)
        entries.append(Entry(exchange=replace(each, run=named), call=told(call, seen[call.key])))
        seen[call.key] += 1
    head = {**run, "gaps": 0, "complete": True, "calls": len(calls), "exchanges": len(entries)}
    head |= {"tokens": _tokens(calls), "models": sorted(_models(calls)), "cost_usd": None, "head": None}
    return Bundle(run=head, profiles=profiles, entries=tuple(entries))


def kept(recorded: Bundle, answered: Collection[str], *, unused: bool) -> list[Exchange]:
    """What of the recording goes on: what answered; what was not asked for only where it may be `unused`."""
    return [each for each in recorded.exchanges if unused or each.id in answered]


def _words(exchange: Exchange) -> str:
    return f"{exchange.request.method} {exchange.request.url.partition('?')[0]}"


def _tokens(calls: Sequence[Call]) -> dict[str, int | None]:
    tokens: dict[str, int | None] = {}
    for name in Usage.__slots__:
        known = [getattr(call.usage, name) for call in calls if getattr(call.usage, name) is not None]
        tokens[name] = sum(known) if known else None
    return tokens


def _models(calls: Sequence[Call]) -> set[str]:
    return {model for call in calls if (model := call.model_requested or call.model_returned)}
