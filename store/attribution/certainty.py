"""Tell how sure it is that an exchange belongs to its run: `given`, `derived` or `guessed`. Pure.

A run is as sure as the least sure of its exchanges.
"""

from typing import Final

from calls.model import Exchange
from store.attribution.correlation_ids import EXECUTES, OWN, SESSION, owner_of
from store.attribution.run_assignment import CHAIN, PROCESS, SAME_PROCESS, SHARES, TRACE, is_loose

LEVELS: Final = ("given", "derived", "guessed")
"""From sure to unsure: by the client, for us; by what it told others or by what its calls have in common; by neither."""

GIVEN, DERIVED, GUESSED = range(len(LEVELS))

_MOVED_BY: Final = frozenset((EXECUTES, SESSION, SAME_PROCESS, SHARES))


def certainty(exchange: Exchange) -> int | None:
    """The place in `LEVELS`; None of an exchange that was not recorded by a proxy."""
    evidence = exchange.run_evidence
    if not evidence:
        return None
    if any(source in OWN for source, _ in evidence):
        return GIVEN
    if not is_loose(exchange) or exchange.run.startswith(CHAIN) or (TRACE, exchange.run) in evidence:
        return DERIVED
    sources = {source for source, _ in evidence}
    if exchange.run == owner_of(exchange):
        return DERIVED if PROCESS in sources else GUESSED
    return DERIVED if sources & _MOVED_BY else GUESSED


def level_name(level: int | None) -> str | None:
    """The word for a place in `LEVELS`."""
    return None if level is None else LEVELS[level]
