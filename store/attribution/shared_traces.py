"""Find the traces that name a run: those that at least two calls share. Attempts of one call, and the hops of a redirect, have one trace too."""

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from calls.retry_grouping import Attempt, attempt_of, group_retries
from store.call_graph.retry_query import make_attempt
from store.ingest.batch_writer import DerivedExchange

MAX_ATTEMPTS: Final = 16
"""Exchanges that may be attempts of one call. A trace with more names a run: all of them are read for each new one."""

REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))

FETCH_LONE_TRACES: Final = """
SELECT exchanges.id, exchanges.trace, exchanges.started_at, exchanges.ended_at, calls.key, calls.polls, calls.pending,
    calls.kind, calls.streamed, calls.status, calls.outcome, calls.complete, calls.finish_reason, calls.answer_state
FROM exchanges LEFT JOIN calls USING (project, id) WHERE project = $1 AND exchanges.trace = ANY ($2::text[])
"""
"""The exchanges of traces that are in the runs of their owners."""


class TracedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that may be assigned to the run of its trace."""

    id: str
    trace: str
    attempt: Attempt | None
    """None if no call is known of it: then it counts as one."""


def traced_exchange(one: DerivedExchange, trace: str) -> TracedExchange:
    """Return an exchange of a batch with its trace."""
    attempt = None if one.call is None else attempt_of(one.exchange, one.call)
    return TracedExchange(id=one.exchange.id, trace=trace, attempt=attempt)


def stored_exchange(row: Any) -> TracedExchange:
    """Return an exchange from a row of `FETCH_LONE_TRACES`."""
    attempt = None if row["key"] is None else make_attempt(row, row["ended_at"])
    return TracedExchange(id=str(row["id"]), trace=row["trace"], attempt=attempt)


def find_shared_traces(found: Iterable[TracedExchange]) -> set[str]:
    """Return the traces that at least two calls share."""
    by_trace: dict[str, dict[str, TracedExchange]] = {}
    for one in found:
        by_trace.setdefault(one.trace, {})[one.id] = one
    return {trace for trace, of_trace in by_trace.items() if len(of_trace) > 1 and _are_calls(of_trace.values())}


def _are_calls(found: Collection[TracedExchange]) -> bool:
    """Return whether exchanges are at least two calls."""
    if len(found) > MAX_ATTEMPTS:
        return True
    attempts = [one.attempt for one in found if one.attempt is not None]
    unknown = len(found) - len(attempts)
    ends = sorted((one for one in attempts if one.status not in REDIRECTS), key=lambda one: (one.started_at, one.id))
    return unknown + len(group_retries(ends)) > 1
