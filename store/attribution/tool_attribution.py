"""Attribute a tool call without a run to the one run whose model requested it.

A model requests a tool call, and the next model call of its run sends the result. A call in between with the requested
arguments is the execution and belongs to that run; a call that several runs may have requested is attributed to none. The
other exchanges of an MCP session (its handshake, its lists, its end) are moved to the run of its tool calls, if these are all in
one run. The result does not depend on the order of arrival: an exchange that turns out to have several candidates is moved
back to the run of its connection's owner.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import asyncpg
from msgspec.structs import replace

from calls.model import Call, ToolCall
from store.attribution.correlation_ids import HOUR, TOOL_KINDS, id_tie, id_ties, tool_ties, tools_requested_at
from store.attribution.run_chains import search_range
from store.call_graph.call_graph import ToolExecution, is_possible_execution
from store.ingest.insert_rows import DerivedExchange

MAX_ROWS: Final = 1000
"""Exchanges that one query reads at most; if there are more, no tool call is attributed."""

MAX_REQUESTERS: Final = 8
"""Candidates of a tool call at most; if it has more, it is attributed to none."""

MAX_REMEMBERED: Final = MAX_ROWS
MAX_REMEMBERED_BODY: Final = 16 << 10
"""Bytes of what is remembered of an exchange, so that it need not be read again."""


class ExchangeOutline(NamedTuple):
    """The data of an exchange that is known without reading its bodies."""

    id: str
    run: str
    started_at: int
    kind: str
    ties: frozenset[int]

    @property
    def is_model_call(self) -> bool:
        """Whether it is a model call, which requests tools and sends their results."""
        return self.kind == "model"

    @property
    def referrer_ties(self) -> set[int]:
        """The ties of exchanges that execute what it requests or refer to its ids."""
        return {tie | 1 for tie in self.ties if not tie & 1}

    @property
    def producer_ties(self) -> set[int]:
        """The ties of exchanges that may have requested it or have produced the ids that it refers to."""
        return {tie ^ 1 for tie in self.ties if tie & 1}


class RequestedTool(NamedTuple):
    """A tool call that a model requested, with the time from its request until its result is sent."""

    run: str
    begin: int
    end: int
    tool: ToolCall


class ToolRequests(NamedTuple):
    """The tool calls that an answer requests, with the ties of their ids, and when they can first be executed."""

    id: str
    begin: int
    tools: tuple[tuple[int, ToolCall], ...]


class RelatedExchanges:
    """The exchanges that are connected with some tool calls, by their ties."""

    def __init__(self, outlines: Iterable[ExchangeOutline]) -> None:
        self.outlines: dict[str, ExchangeOutline] = {}
        self._by_tie: dict[int, list[ExchangeOutline]] = {}
        self._last_results: dict[str, int] = {}
        self.add(outlines)

    def add(self, outlines: Iterable[ExchangeOutline]) -> None:
        """Add exchanges that are not known yet."""
        self._last_results.clear()
        for one in outlines:
            if self.outlines.setdefault(one.id, one) is one:
                for tie in one.ties:
                    self._by_tie.setdefault(tie, []).append(one)

    def candidate_executions(self, requester: ExchangeOutline) -> list[ExchangeOutline]:
        """The tool calls that may execute what a model call requested, before its last result was sent."""
        found = self._exchanges_with(requester.referrer_ties) if self._last_result_at(requester) else ()
        return [one for one in found if one.kind in TOOL_KINDS and self._is_in_time(requester, one)]

    def candidate_requesters(self, execution: ExchangeOutline) -> list[ExchangeOutline]:
        """The model calls that may have requested a tool call, and had a result sent later."""
        return [
            one
            for one in self._exchanges_with(execution.producer_ties)
            if one.is_model_call and self._is_in_time(one, execution)
        ]

    def _is_in_time(self, requester: ExchangeOutline, execution: ExchangeOutline) -> bool:
        return requester.started_at <= execution.started_at < self._last_result_at(requester)

    def _last_result_at(self, requester: ExchangeOutline) -> int:
        """When a result of the requested tools was last sent; 0 if none was."""
        if (found := self._last_results.get(requester.id)) is None:
            found = self._last_results[requester.id] = max(
                (one.started_at for one in self._result_calls(requester)), default=0
            )
        return found

    def requested_tools(self, requests: ToolRequests) -> Iterator[RequestedTool]:
        """The requested tool calls whose results were sent."""
        result_calls = self._result_calls(requester := self.outlines[requests.id])
        for tie, tool in requests.tools:
            if ends := [one.started_at for one in result_calls if tie | 1 in one.ties]:
                yield RequestedTool(requester.run, requests.begin, min(*ends, requests.begin + HOUR), tool)

    def session_moves(self, tie: int) -> Iterator[tuple[str, str | None]]:
        """The exchanges of an MCP session to be moved, each with its new run; None for the run of its owner."""
        runs = {one.run for one in self._exchanges_with([tie | 1])}
        for one in self._exchanges_with([tie]) if runs else ():
            if len(runs) > 1 and one.run in runs:
                yield one.id, None
            elif len(runs) == 1 and one.run not in runs:
                yield one.id, next(iter(runs))

    def _result_calls(self, requester: ExchangeOutline) -> list[ExchangeOutline]:
        found = self._exchanges_with(requester.referrer_ties)
        return [
            one
            for one in found
            if one.is_model_call and one.run == requester.run and one.started_at > requester.started_at
        ]

    def _exchanges_with(self, ties: Collection[int]) -> list[ExchangeOutline]:
        return list({one.id: one for tie in ties for one in self._by_tie.get(tie, ())}.values())


def outline_exchange(derived: DerivedExchange) -> ExchangeOutline | None:
    """The outline of an exchange that is about to be stored; None if it has no ties."""
    exchange, call = derived.exchange, derived.call
    found = frozenset((*id_ties(exchange, call), *tool_ties(exchange, call)))
    return ExchangeOutline(exchange.id, exchange.run, exchange.started_at, call.kind, found) if call and found else None


def tool_requests(derived: DerivedExchange) -> ToolRequests:
    """The tool calls that an exchange requests."""
    exchange, call = derived.exchange, derived.call
    begin = tools_requested_at(exchange, call) if call else None
    if call is None or begin is None:
        return ToolRequests(exchange.id, 0, ())
    tied = ((id_tie(exchange, tool.id), tool) for tool in call.tool_calls if tool.id)
    return ToolRequests(exchange.id, begin, tuple((tie, tool) for tie, tool in tied if tie is not None))


class RecentRequests:
    """The most recent tool requests and tool calls, so that they need not be read again.

    A model call refers to all tool calls of its run before it. What tools answered decides nothing, so of those with large answers
    only the request is remembered.
    """

    def __init__(self) -> None:
        self._requests: dict[str, ToolRequests] = {}
        self._executions: dict[str, DerivedExchange] = {}

    def remember(self, batch: Iterable[DerivedExchange]) -> None:
        """Remember the exchanges of a batch, as far as they are small."""
        for one in batch:
            if one.call is None or not one.exchange.response:
                continue
            request_size, answer_size = one.exchange.request.body.size, one.exchange.response.body.size
            if one.call.kind == "model" and one.call.tool_calls:
                if min(answer_size, _arguments_size(one.call)) <= MAX_REMEMBERED_BODY:
                    _remember(self._requests, one.exchange.id, tool_requests(one))
            elif one.call.kind in TOOL_KINDS and request_size <= MAX_REMEMBERED_BODY:
                decisive = one if request_size + answer_size <= MAX_REMEMBERED_BODY else _without_answer(one)
                _remember(self._executions, one.exchange.id, replace(decisive, previous_run=None))

    def tool_requests(self, name: str) -> ToolRequests | None:
        """The remembered tool requests of an exchange."""
        return self._requests.get(name)

    def execution(self, outline: ExchangeOutline) -> DerivedExchange | None:
        """A remembered tool call, if it is still in the same run."""
        found = self._executions.get(outline.id)
        return found if found and found.exchange.run == outline.run else None

    def is_reduced(self, derived: DerivedExchange) -> bool:
        """Whether this is a remembered tool call whose answer is not remembered."""
        return self._executions.get(derived.exchange.id) is derived and derived.exchange.response is None


def _arguments_size(call: Call) -> int:
    return sum(len(repr(tool.arguments)) for tool in call.tool_calls)


def _without_answer(derived: DerivedExchange) -> DerivedExchange:
    call = derived.call and replace(derived.call, answer=None, text=None, tool_results=())
    return replace(derived, exchange=replace(derived.exchange, response=None), call=call)


def _remember[T](remembered: dict[str, T], name: str, value: T) -> None:
    remembered.pop(name, None)
    remembered[name] = value
    if len(remembered) > MAX_REMEMBERED:
        del remembered[next(iter(remembered))]


def requesting_runs(execution: ToolExecution, requests: Iterable[RequestedTool]) -> dict[str, str]:
    """The runs whose models may have requested a call, each with the id of the tool call."""
    found: dict[str, str] = {}
    for one in sorted(requests, key=lambda one: (one.begin, one.tool.id)):
        if one.begin <= execution.started_at < one.end and one.tool.id and is_possible_execution(one.tool, execution):
            found.setdefault(one.run, one.tool.id)
    return found


async def fetch_related(
    connection: asyncpg.Connection, project: str, fresh: Sequence[ExchangeOutline]
) -> tuple[RelatedExchanges, list[ExchangeOutline]]:
    """Fetch the exchanges connected with these, and find the tool calls whose attribution these may change."""
    related = RelatedExchanges(fresh)
    query = _TieQuery(connection, project, fresh)
    await query.fetch_into(related, {tie for one in fresh if one.is_model_call for tie in one.producer_ties})
    requesters = [one for one in related.outlines.values() if one.is_model_call]
    await query.fetch_into(related, {tie for one in requesters for tie in one.referrer_ties})
    executions = {one.id: one for one in fresh if one.kind in TOOL_KINDS}
    executions |= {one.id: one for requester in requesters for one in related.candidate_executions(requester)}
    await query.fetch_into(related, {tie for one in executions.values() for tie in one.producer_ties})
    await query.fetch_into(
        related, {tie for one in related.outlines.values() if one.is_model_call for tie in one.referrer_ties}
    )
    return related, [] if query.is_truncated else list(executions.values())


async def find_session_moves(
    connection: asyncpg.Connection, project: str, batch: Sequence[ExchangeOutline], sessions: Collection[int]
) -> dict[str, str | None]:
    """The exchanges of these MCP sessions to be moved, each with its new run; None for the run of its owner."""
    related, query = RelatedExchanges(batch), _TieQuery(connection, project, batch)
    await query.fetch_into(related, {tie | side for tie in sessions for side in (0, 1)})
    if query.is_truncated:
        return {}
    return {name: run for tie in sessions for name, run in related.session_moves(tie)}


class _TieQuery:
    """Fetches stored exchanges by their ties, each tie once."""

    def __init__(self, connection: asyncpg.Connection, project: str, near: Sequence[ExchangeOutline]) -> None:
        self._connection = connection
        self._project = project
        self._search_range = search_range([one.started_at for one in near])
        self._queried: set[int] = set()
        self.is_truncated = False

    async def fetch_into(self, related: RelatedExchanges, ties: set[int]) -> None:
        if not (new_ties := ties - self._queried):
            return
        self._queried |= new_ties
        rows = await self._connection.fetch(
            FETCH_OUTLINES, self._project, sorted(new_ties), *self._search_range, MAX_ROWS
        )
        self.is_truncated |= len(rows) == MAX_ROWS
        related.add(
            ExchangeOutline(str(row["id"]), row["run"], row["started_at"], row["kind"], frozenset(row["ties"]))
            for row in rows
        )


FETCH_OUTLINES = """
SELECT exchanges.id, exchanges.run, exchanges.started_at, calls.kind, exchanges.ties
FROM exchanges JOIN calls USING (project, id)
WHERE project = $1 AND exchanges.ties && $2::bigint[] AND id BETWEEN $3 AND $4
LIMIT $5
"""
