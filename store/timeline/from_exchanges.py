"""Make the facts of a run from its exchanges, as a bundle has them. Pure.

What the database has in columns is derived here. `loading` makes the same facts from those columns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.generic import DIALECT as GENERIC
from calls.model import Call, Exchange, Json, header
from calls.retry_grouping import RetryGroup, attempt_of, group_retries, merge_calls
from store.call_graph.call_graph import MOST_BETWEEN, CallGraph, Node, ToolRound, match_executions, tool_execution
from store.call_graph.call_ids import created_ids, returned_ids
from store.call_graph.packed_graph import LinkGraph
from store.timeline.facts import AttemptFacts, SpokenCall, StepFacts, ToolLinks

ORIGINS: Final[Mapping[str, str]] = {"replayed": "recorded", "edited": "edited", "live": "live", "miss": "refused"}
"""The words of the `Playhead` response header, and what they say of a fork's answer."""

type Costs = Callable[[Exchange, Call], Decimal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFacts:
    """What the documents of a run are made from."""

    steps: Sequence[StepFacts]
    spoken: Sequence[SpokenCall]
    links: ToolLinks


def read_facts(pairs: Iterable[tuple[Exchange, Call]], cost_of: Costs, *, is_fork: bool = False) -> TimelineFacts:
    """Make the facts of a run from its exchanges in step order, each with the call that is derived from it."""
    by_id = {exchange.id: (exchange, call) for exchange, call in pairs}
    places = {name: number for number, name in enumerate(by_id, 1)}
    groups = group_retries(attempt_of(exchange, call) for exchange, call in by_id.values())
    merged = [(group, [by_id[name] for name in group.ids]) for group in groups]
    graph = CallGraph(_nodes(merged))
    between = list(_tool_calls_between(graph, merged))
    executed_by = _find_executions(between, by_id)
    actors = {name: exchange.actor for name, (exchange, _) in by_id.items()}
    branches = add_tool_branches(graph, between, actors)
    steps = [_step_facts(group, parts, places, graph, branches, cost_of, is_fork=is_fork) for group, parts in merged]
    spoken = [_spoken_of(parts, places, graph) for _, parts in merged]
    links = ToolLinks(executed_by=executed_by, answered_by=graph.answered_by, numbers=places)
    return TimelineFacts(steps=steps, spoken=spoken, links=links)


def add_tool_branches(
    graph: LinkGraph, between: Iterable[tuple[ToolRound, Sequence[str]]], actors: Mapping[str, str | None]
) -> dict[str, int]:
    """Return the branch of each call. A tool's is that of the model that waits for it, if one model of its actor does.

    `between` has the calls of tools that run between an answer with tool calls and the request with their results.
    """
    waiting: dict[str, set[int | None]] = {}
    for one, names in between:
        for name in names:
            if actors.get(name) == actors.get(one.asker.id):
                waiting.setdefault(name, set()).add(graph.branches.get(one.asker.id))
    only = {name: next(iter(asking)) for name, asking in waiting.items() if len(asking) == 1}
    return {name: branch for name, branch in only.items() if branch is not None} | graph.branches


def spoken_call(
    number: int, follows: Sequence[str], first: tuple[Exchange, Call], last: tuple[Exchange, Call]
) -> SpokenCall:
    """Return what was said in a call: the request of its first exchange and the answer of its last."""
    exchange, call = first
    whole = call if first is last else merge_calls([call, last[1]])
    is_plain = whole.dialect == GENERIC.name
    return SpokenCall(
        call=exchange.id,
        number=number,
        kind=whole.kind,
        actor=exchange.actor,
        follows=follows,
        request=_plain_request(exchange, whole) if is_plain else whole.request,
        answer=whole.answer,
        text=whole.text,
        tool_calls=[asdict(tool) for tool in whole.tool_calls],
    )


def _plain_request(exchange: Exchange, call: Call) -> Json:
    """A request that no dialect knows is its address, and its body if it has one."""
    address = f"{exchange.request.method} {exchange.request.url}"
    if not exchange.request.body.data:
        return address
    body = call.request if isinstance(call.request, str) else dumps(call.request).decode()
    return f"{address}\n\n{body}"


def step_label(kind: str, dialect: str, operation: str, model: str | None, tools: Sequence[str], place: str) -> str:
    """Name what a step called: the model, the tool, or the method and path."""
    if kind == "model":
        return model or "(no model)"
    if dialect == GENERIC.name:
        return place
    return tools[0] if kind == "tool" and tools else operation


def error_text(exchange: Exchange, answer: Json) -> str:
    """Say in one line why a call failed: in the words of the answer, else what happened to the connection."""
    body = as_object(answer)
    error = body.get("error")
    words = (
        as_text_or_none(as_object(error).get("message"))
        or as_text_or_none(error)
        or as_text_or_none(body.get("message"))
        or as_text_or_none(body.get("detail"))
        or as_text_or_none(body.get("title"))
        or _content_error(answer)
    )
    if words:
        return " ".join(words.split())
    if exchange.error:
        return exchange.error
    if exchange.response is None:
        return f"no response: {exchange.outcome.replace('_', ' ')}"
    reason = exchange.response.reason
    if exchange.response.status < 400:
        return "the answer ended without its own end mark"
    return f"HTTP {exchange.response.status} {reason}".strip()


def _content_error(answer: Json) -> str | None:
    """Return the words of the first error of GraphQL, of a tool of MCP or of a batch; None if there are none."""
    for one in map(as_object, answer if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]):
        errors = [as_object(one.get("error")), *map(as_object, as_array(one.get("errors")))]
        result = as_object(one.get("result"))
        texts = [as_object(block) for block in as_array(result.get("content"))] if result.get("isError") is True else []
        words = [as_text(each.get(name)) for found, name in ((errors, "message"), (texts, "text")) for each in found]
        if first := next(filter(None, words), None):
            return first
    return None


def answer_origin(exchange: Exchange) -> str:
    """Return where a fork's answer comes from: the recording, an override, or the live API; or Playhead refused the request."""
    headers = exchange.response.headers if exchange.response else ()
    mark = header(headers, "playhead") or "live"
    return ORIGINS.get(mark.partition(";")[0].strip(), "live")


type _Merged = Sequence[tuple[RetryGroup, Sequence[tuple[Exchange, Call]]]]


def _nodes(merged: _Merged) -> list[Node]:
    nodes = []
    for group, parts in merged:
        created = [name for _, call in parts for name in created_ids(call)]
        returned = returned_ids(parts[0][1])
        if created or returned:
            nodes.append(Node(group.ids[0], parts[0][0].started_at, created, returned, group.ids[-1]))
    return nodes


def _tool_calls_between(graph: CallGraph, merged: _Merged) -> Iterator[tuple[ToolRound, Sequence[str]]]:
    tools = [(parts[0][0].started_at, group.ids[0]) for group, parts in merged if parts[0][1].kind in _TOOLS]
    for one in graph.rounds:
        names = [name for at, name in tools if one.asker.started_at < at < one.follower.started_at]
        if 0 < len(names) <= MOST_BETWEEN:
            yield one, names


_TOOLS: Final = ("tool", "retrieval")


def _find_executions(
    between: Iterable[tuple[ToolRound, Sequence[str]]], by_id: Mapping[str, tuple[Exchange, Call]]
) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for one, names in between:
        tool_calls = [tool for tool in by_id[one.asker.answer_exchange][1].tool_calls if tool.id in one.ids]
        matches = match_executions(tool_calls, [tool_execution(*by_id[name]) for name in names])
        found |= {(one.asker.id, tool): call for tool, call in matches.items()}
    return found


def _spoken_of(parts: Sequence[tuple[Exchange, Call]], places: Mapping[str, int], graph: CallGraph) -> SpokenCall:
    name = parts[0][0].id
    return spoken_call(places[name], newest_first(graph, name, places), parts[0], parts[-1])


def newest_first(graph: LinkGraph, call: str, places: Mapping[str, int]) -> list[str]:
    """Return the calls that a call continues, the newest first."""
    names = [one.call for one in graph.follows.get(call, ())]
    return sorted(names, key=lambda name: places.get(name, 0), reverse=True)


def _step_facts(
    group: RetryGroup,
    parts: Sequence[tuple[Exchange, Call]],
    places: Mapping[str, int],
    graph: CallGraph,
    branches: Mapping[str, int],
    cost_of: Costs,
    *,
    is_fork: bool,
) -> StepFacts:
    exchange, call = parts[0]
    last, answered = parts[-1]
    place, host = _place(exchange)
    tools = [tool.name for tool in answered.tool_calls]
    model = answered.model_returned or call.model_requested
    # A poll of work that had ended before repeats the usage of the answer before.
    counted = [] if len(parts) == 1 and call.polls is not None and call.pending is None else parts
    usage = {name: _add(getattr(one.usage, name) for _, one in counted) for name in asdict(call.usage)}
    costs = [cost_of(one, attempt_call) for one, attempt_call in counted]
    facts: dict[str, Any] = {
        "call": exchange.id,
        "number": places[exchange.id],
        **{name: getattr(call, name) for name in ("kind", "provider", "operation")},
        "host": host,
        "method": exchange.request.method,
        "path": place,
        "label": step_label(
            call.kind, call.dialect, call.operation, model, tools, f"{exchange.request.method} {place or host}"
        ),
        "model": model,
        "actor": exchange.actor,
        "branch": branches.get(exchange.id),
        "follows": newest_first(graph, exchange.id, places),
        "attempts": tuple(_attempt_facts(one, attempt_call) for one, attempt_call in parts),
        "tries": group.attempts,
        **{name: getattr(answered, name) for name in ("complete", "streamed", "finish_reason", "answer_state")},
        "tools": tools,
        "usage": usage,
        "cost": _add(costs),
        "unpriced": sum(cost is None and _can_have_cost(*part) for cost, part in zip(costs, counted, strict=True)),
        "error": error_text(last, answered.answer),
        "origin": answer_origin(last) if is_fork else None,
        "excerpt": answered.text,
    }
    return StepFacts(**facts)


def _can_have_cost(exchange: Exchange, call: Call) -> bool:
    """Whether it is a call of a model that may cost something, because it was neither refused nor asked to poll."""
    status = exchange.response.status if exchange.response else None
    return call.kind == "model" and call.pending is None and (status is None or status < 300)


def _attempt_facts(exchange: Exchange, call: Call) -> AttemptFacts:
    # An import without times has no time of the first byte, and none of the end.
    has_times = exchange.response is None or exchange.first_byte_at is not None
    return AttemptFacts(
        exchange=exchange.id,
        started_at=exchange.started_at,
        first_byte=exchange.first_byte_at,
        duration=exchange.ended_at if has_times else None,
        status=exchange.response.status if exchange.response else None,
        outcome=exchange.outcome,
        is_poll=call.polls is not None,
    )


def _place(exchange: Exchange) -> tuple[str | None, str]:
    try:
        parts = urlsplit(exchange.request.url)
        return parts.path or "/", parts.hostname or ""
    except ValueError:
        return None, ""


def _add[Number: (int, Decimal)](numbers: Iterable[Number | None]) -> Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known else None
