"""Assign an exchange to a run if the worker could not: by its body, its ids, the model that requested it, or a trace.

A worker assigns the run when a request begins, from its head. If the head names none, the exchange arrives in the run of its
connection's owner. The store server, which has all of the exchange, moves it to the run that its body names, else to the run
of the call whose ids its request refers to or of the model that requested it, else to the run of its trace once a second
call has the same trace (in 111 of 111 recordings with several traces, each call had a trace of its own: wire report, D).
All evidence is added to `run_evidence` with its source. Assigning a run again changes nothing.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from calls.model import Call, Exchange
from calls.request_identifiers import RunEvidence, call_identifiers, run_id_for
from store.attribution.correlation_ids import (
    EXECUTES,
    EXPLICIT_SOURCES,
    OWNER,
    SESSION,
    owner_run,
    referenced_ids,
    session_id,
)

LINK: Final = "link"
"""The source of an id that a request refers to."""

TRACE: Final = "traceparent"
CHAIN_PREFIX: Final = "chain:"
"""Prefix of the name of a run that only ids connect; the id of its first exchange follows."""

PROCESS: Final = "process"
"""The source of the process that owns the connection."""

SAME_PROCESS: Final = "same_process"
"""The source of the only run that a process worked on."""

SHARES: Final = "shares"
"""The source of an identifier that an exchange shares with one run of its process and with no other."""

_PROCESS_SOURCES = frozenset((SAME_PROCESS, SHARES))
_WEAK_SOURCES = frozenset((LINK, EXECUTES, SESSION, OWNER, TRACE, PROCESS, SAME_PROCESS, SHARES))
"""The sources that are weaker than an identifier in the body."""


def assign_run(exchange: Exchange, call: Call, is_claimed: Callable[[str], bool] = lambda _run: False) -> Exchange:
    """Add the evidence of the body to an exchange, and move it to the run named there if nothing stronger named one.

    A body cannot name a claimed run, because a client of that run has to present its token to the proxy worker.
    """
    identifiers, links = _new_evidence(exchange, call_identifiers(call)), _referenced_evidence(exchange, call)
    if not (identifiers or links):
        return exchange
    run_of_body = run_id_for(identifiers[0][1]) if identifiers and is_assigned_to_owner(exchange) else exchange.run
    run = exchange.run if run_of_body != exchange.run and is_claimed(run_of_body) else run_of_body
    evidence = exchange.run_evidence
    place = next((n for n, (source, _) in enumerate(evidence) if source in _WEAK_SOURCES), len(evidence))
    return replace(exchange, run=run, run_evidence=(*evidence[:place], *identifiers, *links, *evidence[place:]))


def is_assigned_to_owner(exchange: Exchange) -> bool:
    """Whether only the connection's owner names the run."""
    return has_only_weak_evidence(exchange) and exchange.run_evidence[-1] == (OWNER, exchange.run)


def has_only_weak_evidence(exchange: Exchange) -> bool:
    """Whether nothing that the client sent names the run."""
    evidence = exchange.run_evidence
    return bool(evidence) and all(source in _WEAK_SOURCES for source, _ in evidence)


def can_join_chain(exchange: Exchange) -> bool:
    """Whether ids may assign the run: no stronger evidence did, and nothing else has moved the exchange."""
    return is_assigned_to_owner(exchange) or (
        has_only_weak_evidence(exchange) and exchange.run.startswith(CHAIN_PREFIX)
    )


def can_join_requester(exchange: Exchange) -> bool:
    """Whether a tool request or session may assign the run: no stronger evidence did, and no trace has moved the exchange."""
    return has_only_weak_evidence(exchange) and (TRACE, exchange.run) not in exchange.run_evidence


def is_assigned_to_requester(exchange: Exchange) -> bool:
    """Whether the exchange is in the run of the model that requested it."""
    return any(source == EXECUTES for source, _ in exchange.run_evidence)


def assign_to_requester(exchange: Exchange, run: str, tool: str) -> Exchange:
    """Move an exchange to the run of the model that requested it by the tool call `tool`."""
    return replace(
        _without_requester(exchange),
        run=run,
        run_evidence=((EXECUTES, tool), *_without_requester(exchange).run_evidence),
    )


def return_to_owner(exchange: Exchange) -> Exchange:
    """Move an exchange to the run of its connection's owner, because it may belong to several runs."""
    return replace(_without_requester(exchange), run=owner_run(exchange) or exchange.run)


def is_owned_by_process(exchange: Exchange) -> bool:
    """Whether a known process sent the exchange and named no run."""
    sources = {source for source, _ in exchange.run_evidence}
    return PROCESS in sources and sources.isdisjoint(EXPLICIT_SOURCES)


def is_assigned_by_process(exchange: Exchange) -> bool:
    """Whether the other calls of its process determine the exchange's run."""
    return any(source in _PROCESS_SOURCES for source, _ in exchange.run_evidence)


def assign_by_process(exchange: Exchange, run: str, source: str, value: str) -> Exchange:
    """Move an exchange to a run and add the reason to its evidence; without one if it is its process's run."""
    evidence = tuple(one for one in exchange.run_evidence if one[0] not in _PROCESS_SOURCES)
    reason = () if run == owner_run(exchange) else ((source, value),)
    return replace(exchange, run=run, run_evidence=(*reason, *evidence))


def _without_requester(exchange: Exchange) -> Exchange:
    return replace(exchange, run_evidence=tuple(one for one in exchange.run_evidence if one[0] != EXECUTES))


def assignable_trace(exchange: Exchange) -> str | None:
    """The trace that may assign the run of an exchange, because no stronger evidence did."""
    if not has_only_weak_evidence(exchange):
        return None
    evidence = exchange.run_evidence
    trace = next((value for source, value in evidence if source == TRACE), None)
    return trace if exchange.run in (owner_run(exchange), trace) else None


def assign_to_trace(exchange: Exchange) -> Exchange:
    """Move an exchange to the run of its trace."""
    return replace(exchange, run=assignable_trace(exchange) or exchange.run)


def _referenced_evidence(exchange: Exchange, call: Call) -> RunEvidence:
    """The evidence of ids that the request refers to; none if the run is explicit, where `follows` of the call shows them."""
    evidence = exchange.run_evidence
    if not evidence or any(source in EXPLICIT_SOURCES for source, _ in evidence):
        return ()
    links = [(LINK, one) for one in referenced_ids(exchange, call)]
    if call.kind != "model" and (session := session_id(exchange)):
        links.append((SESSION, session))
    return _new_evidence(exchange, tuple(links))


def _new_evidence(exchange: Exchange, evidence: RunEvidence) -> RunEvidence:
    return tuple(pair for pair in evidence if pair not in exchange.run_evidence)
