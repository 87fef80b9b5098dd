"""Write the next generation of a run as a bundle."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from calls.model import Call, Exchange, Usage
from store.bundle.bundle import Bundle, Entry, call_members
from store.generations.build import FAILED, kept_exchanges, recording_flaw

__all__ = ["FAILED", "generation_bundle", "kept_exchanges", "recording_flaw"]

type Derive = Callable[[Exchange], Call]


def generation_bundle(run: Mapping[str, Any], profiles: str, exchanges: Sequence[Exchange], derive: Derive) -> Bundle:
    """Bundle these exchanges as a run. `run` is the run of the previous generation."""
    run_id = str(run["id"])
    ordered = sorted(exchanges, key=lambda each: (each.started_at, each.id))
    entries, key_counts, calls = [], Counter[str](), []
    for each in ordered:
        call = derive(each)
        calls.append(call)
        entries.append(Entry(exchange=replace(each, run=run_id), call=call_members(call, key_counts[call.key])))
        key_counts[call.key] += 1
    head = {**run, "gaps": 0, "complete": True, "calls": len(calls), "exchanges": len(entries)}
    head |= {"tokens": _tokens(calls), "models": sorted(_models(calls)), "cost_usd": None, "head": None}
    return Bundle(run=head, profiles=profiles, entries=tuple(entries))


def _tokens(calls: Sequence[Call]) -> dict[str, int | None]:
    tokens: dict[str, int | None] = {}
    for name in Usage.__slots__:
        known = [getattr(call.usage, name) for call in calls if getattr(call.usage, name) is not None]
        tokens[name] = sum(known) if known else None
    return tokens


def _models(calls: Sequence[Call]) -> set[str]:
    return {model for call in calls if (model := call.model_requested or call.model_returned)}
