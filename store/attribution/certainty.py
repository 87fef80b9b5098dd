"""Rate how certain it is that an exchange belongs to its run: `given`, `derived` or `guessed`. Pure.

A run is as certain as the least certain of its exchanges.
"""

from typing import Final

from calls.model import Exchange
from store.attribution.correlation_ids import EXECUTES, EXPLICIT_SOURCES, SESSION, owner_run
from store.attribution.run_assignment import CHAIN_PREFIX, PROCESS, SAME_PROCESS, SHARES, TRACE, has_only_weak_evidence

LEVELS: Final = ("given", "derived", "guessed")
"""From certain to uncertain: named by the client, derived from its requests or related calls, or neither."""

GIVEN, DERIVED, GUESSED = range(len(LEVELS))

_DERIVED_SOURCES: Final = frozenset((EXECUTES, SESSION, SAME_PROCESS, SHARES))


def certainty(exchange: Exchange) -> int | None:
    """The index in `LEVELS`; None for an exchange that was not recorded by a proxy."""
    evidence = exchange.run_evidence
    if not evidence:
        return None
    if any(source in EXPLICIT_SOURCES for source, _ in evidence):
        return GIVEN
    if (
        not has_only_weak_evidence(exchange)
        or exchange.run.startswith(CHAIN_PREFIX)
        or (TRACE, exchange.run) in evidence
    ):
        return DERIVED
    sources = {source for source, _ in evidence}
    if exchange.run == owner_run(exchange):
        return DERIVED if PROCESS in sources else GUESSED
    return DERIVED if sources & _DERIVED_SOURCES else GUESSED


def level_name(level: int | None) -> str | None:
    """The name of an index in `LEVELS`."""
    return None if level is None else LEVELS[level]
