"""Assign an exchange to a run where the worker could not: by its body, its ids, the model that requested it, or a trace.

A worker names a run when a request begins, from its head. Where that named none, the exchange came in under the connection's
owner; the store server, who has all of it, files it under the run that its body names, else under that of the call whose ids it
hands back or of the model that asked for it, else under its trace as soon as a second exchange has the same one (in 111 of
111 recordings with several traces each call had one of its own: wire report, D). What was told stands in `run_evidence` with its source, whatever came of it.
Filing again changes nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from calls.model import Call, Exchange
from calls.request_identifiers import Evidence, legal, told_by
from store.attribution.correlation_ids import EXECUTES, OWN, OWNER, SESSION, handed_back, owner_of, session_of

LINK: Final = "link"
"""The source of an id that a request hands back."""

TRACE: Final = "traceparent"
CHAIN: Final = "chain:"
"""Begins the name of a run that only the ids in its calls hold together; the id of its first exchange follows."""

PROCESS: Final = "process"
"""The source of the process that owns the connection."""

SAME_PROCESS: Final = "same_process"
"""The source of the only run that a process worked on."""

SHARES: Final = "shares"
"""The source of an identifier that an exchange shares with one run of its process and with no other."""

_PLACED = frozenset((SAME_PROCESS, SHARES))
_LAST = frozenset((LINK, EXECUTES, SESSION, OWNER, TRACE, PROCESS, SAME_PROCESS, SHARES))
"""What is weaker than a body's word."""


def filed(exchange: Exchange, call: Call, is_claimed: Callable[[str], bool] = lambda _run: False) -> Exchange:
    """The exchange with what its body says of its run, and in that run if nothing stronger named one.

    A claimed run takes nothing by a body's word: whoever has its token says so to the proxy worker.
    """
    told, links = _new(exchange, told_by(call)), _links(exchange, call)
    if not (told or links):
        return exchange
    named = legal(told[0][1]) if told and is_owners(exchange) else exchange.run
    run = exchange.run if named != exchange.run and is_claimed(named) else named
    evidence = exchange.run_evidence
    place = next((n for n, (source, _) in enumerate(evidence) if source in _LAST), len(evidence))
    return replace(exchange, run=run, run_evidence=(*evidence[:place], *told, *links, *evidence[place:]))


def is_owners(exchange: Exchange) -> bool:
    """Whether nothing but the connection's owner named the run."""
    return is_loose(exchange) and exchange.run_evidence[-1] == (OWNER, exchange.run)


def is_loose(exchange: Exchange) -> bool:
    """Whether whoever sent it said nothing that names its run."""
    evidence = exchange.run_evidence
    return bool(evidence) and all(source in _LAST for source, _ in evidence)


def may_follow(exchange: Exchange) -> bool:
    """Whether the ids that it hands back may name its run: nothing stronger did, and nothing else has moved it."""
    return is_owners(exchange) or (is_loose(exchange) and exchange.run.startswith(CHAIN))


def may_go(exchange: Exchange) -> bool:
    """Whether what it does for a model, or its session, may name its run: nothing stronger did, and no trace has moved it."""
    return is_loose(exchange) and (TRACE, exchange.run) not in exchange.run_evidence


def is_done(exchange: Exchange) -> bool:
    """Whether it is in the run of a model that asked for it."""
    return any(source == EXECUTES for source, _ in exchange.run_evidence)


def done_for(exchange: Exchange, run: str, tool: str) -> Exchange:
    """The exchange in the run of the model that asked for it by this id."""
    return replace(_unasked(exchange), run=run, run_evidence=((EXECUTES, tool), *_unasked(exchange).run_evidence))


def given_back(exchange: Exchange) -> Exchange:
    """The exchange in the run of its connection's owner: it could as well be of several runs."""
    return replace(_unasked(exchange), run=owner_of(exchange) or exchange.run)


def is_owned_by_process(exchange: Exchange) -> bool:
    """Whether a process that we know sent it, and named no run to us."""
    sources = {source for source, _ in exchange.run_evidence}
    return PROCESS in sources and sources.isdisjoint(OWN)


def is_placed(exchange: Exchange) -> bool:
    """Whether it is where it is by what it has in common with the other calls of its process."""
    return any(source in _PLACED for source, _ in exchange.run_evidence)


def placed(exchange: Exchange, run: str, source: str, value: str) -> Exchange:
    """The exchange in this run for this reason; in that of its process it is for none."""
    evidence = tuple(one for one in exchange.run_evidence if one[0] not in _PLACED)
    reason = () if run == owner_of(exchange) else ((source, value),)
    return replace(exchange, run=run, run_evidence=(*reason, *evidence))


def _unasked(exchange: Exchange) -> Exchange:
    return replace(exchange, run_evidence=tuple(one for one in exchange.run_evidence if one[0] != EXECUTES))


def trace_of(exchange: Exchange) -> str | None:
    """The trace that may name the run of an exchange, because nothing stronger did."""
    if not is_loose(exchange):
        return None
    evidence = exchange.run_evidence
    trace = next((value for source, value in evidence if source == TRACE), None)
    return trace if exchange.run in (owner_of(exchange), trace) else None


def in_trace(exchange: Exchange) -> Exchange:
    """The exchange in the run of its trace."""
    return replace(exchange, run=trace_of(exchange) or exchange.run)


def _links(exchange: Exchange, call: Call) -> Evidence:
    """The ids that it hands back. Where our own words named the run, `follows` of the call says as much."""
    evidence = exchange.run_evidence
    if not evidence or any(source in OWN for source, _ in evidence):
        return ()
    links = [(LINK, one) for one in handed_back(exchange, call)]
    if call.kind != "model" and (session := session_of(exchange)):
        links.append((SESSION, session))
    return _new(exchange, tuple(links))


def _new(exchange: Exchange, told: Evidence) -> Evidence:
    return tuple(pair for pair in told if pair not in exchange.run_evidence)
