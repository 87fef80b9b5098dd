"""Whose an exchange is, where the door could not know: by its body, and by a trace that it shares with others.

A door names a run when a request begins, from its head. Where that named none, the exchange came in under the connection's
owner; the keeper, who has all of it, files it under the run that its body names, else under its trace as soon as a second
exchange has the same one (in 111 of 111 recordings with several traces each call had one of its own: wire report, D). What
was told stands in `run_evidence` with its source, whatever came of it. Filing again changes nothing.
"""

from dataclasses import replace

from calls.identity import Evidence, legal, told_by_body
from calls.model import Call, Exchange

OWNER = "owner"
TRACE = "traceparent"
_LAST = frozenset((OWNER, TRACE))
"""What is weaker than a body's word."""


def filed(exchange: Exchange, call: Call) -> Exchange:
    """The exchange with what its body says of its run, and in that run if nothing stronger named one.

    Only models are believed: in a body for a tool a session is the tool's.
    """
    told = told_by_body(call.request) if call.kind == "model" else ()
    new = tuple(pair for pair in told if pair not in exchange.run_evidence)
    if not new:
        return exchange
    evidence = exchange.run_evidence
    place = next((n for n, (source, _) in enumerate(evidence) if source in _LAST), len(evidence))
    run = legal(new[0][1]) if is_owners(exchange) else exchange.run
    return replace(exchange, run=run, run_evidence=(*evidence[:place], *new, *evidence[place:]))


def is_owners(exchange: Exchange) -> bool:
    """Whether nothing but the connection's owner named the run."""
    evidence = exchange.run_evidence
    return bool(evidence) and evidence[-1] == (OWNER, exchange.run) and all(source in _LAST for source, _ in evidence)


def trace_of(exchange: Exchange) -> str | None:
    """The trace that may name the run of an exchange, because nothing stronger did."""
    evidence = exchange.run_evidence
    if not evidence or any(source not in _LAST for source, _ in evidence):
        return None
    trace = next((value for source, value in evidence if source == TRACE), None)
    return trace if exchange.run in (_owner(evidence), trace) else None


def in_trace(exchange: Exchange) -> Exchange:
    """The exchange in the run of its trace."""
    return replace(exchange, run=trace_of(exchange) or exchange.run)


def _owner(evidence: Evidence) -> str | None:
    return next((value for source, value in evidence if source == OWNER), None)
