"""The calls of a bundle in the shapes of the REST API."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calls.model import Call, Exchange
from store.database.rows import digest_bytes
from store.ingest.insert_rows import request_host
from store.pricing.prices import Cost
from store.query.rest_shapes import CallExchange, CallPlace, Shape, call_shape
from store.timeline.facts import StepFacts, ToolLinks
from store.timeline.from_exchanges import TimelineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileExchange:
    """An exchange of the file, the call that is derived from it, and what that cost."""

    exchange: Exchange
    call: Call
    cost: Cost | None


def make_call_shapes(exchanges: Mapping[str, FileExchange], facts: TimelineFacts) -> Iterator[Shape]:
    """Yield the calls in step order."""
    key_counts: Counter[str] = Counter()
    executes = {executor: asking_call for asking_call, executor in facts.links.executed_by.items()}
    for step in facts.steps:
        first, last = exchanges[step.call], exchanges[step.attempts[-1].exchange]
        place = CallPlace(
            step=step.number,
            nth=key_counts[first.call.key],
            exchanges=tuple(attempt.exchange for attempt in step.attempts),
            attempts=step.tries,
        )
        key_counts[first.call.key] += 1
        yield _with_links(call_shape(place, _with_row(first), _with_row(last)), step, facts.links, executes)


def _with_row(one: FileExchange) -> CallExchange:
    exchange, call = one.exchange, one.call
    names = ("kind", "provider", "dialect", "operation", "model_requested", "model_returned", "finish_reason")
    states = ("answer_state", "streamed", "complete", "profile")
    row: dict[str, Any] = {
        **{name: getattr(call, name) for name in (*names, *states)},
        **asdict(call.usage),
        "id": exchange.id,
        "run": exchange.run,
        "started_at": exchange.started_at,
        "host": request_host(exchange.request.url),
        "status": exchange.response.status if exchange.response else None,
        "outcome": exchange.outcome,
        "key": digest_bytes(call.key),
        "cost_usd": one.cost.usd if one.cost else None,
        "prices": one.cost.prices if one.cost else None,
    }
    return CallExchange(row=row, exchange=exchange, call=call)


def _with_links(shape: Shape, step: StepFacts, links: ToolLinks, executes: Mapping[str, tuple[str, str]]) -> Shape:
    asking_call = executes.get(shape["id"])
    answers = [place for place, answering in links.answered_by.items() if answering == shape["id"]]
    follows = [
        {"call": one, "step": links.numbers[one], "by": [name for asker, name in answers if asker == one]}
        for one in step.follows
    ]
    return shape | {
        "branch": step.branch,
        "follows": follows or None,
        "executes": asking_call
        and {"call": asking_call[0], "step": links.numbers[asking_call[0]], "tool_call": asking_call[1]},
        "tool_calls": [
            {
                **tool,
                "executed_by": links.executed_by.get((shape["id"], tool["id"])),
                "answered_by": links.answered_by.get((shape["id"], tool["id"])),
            }
            for tool in shape["tool_calls"]
        ],
    }


def list_summaries(calls: Sequence[Shape]) -> list[Shape]:
    """Return the calls as a list shows them: without their bodies."""
    return [call | {"request": None, "answer": None, "tool_results": []} for call in calls]
