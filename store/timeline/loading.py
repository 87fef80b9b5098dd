"""Load the timeline and the conversation of a run from the database.

The timeline is made from columns: of a run of 500 calls no body is read, except of the steps that failed, and of those of a fork,
to say what they were answered with. The conversation reads the bodies of its page, and of the calls that its prompts continue.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import batched
from typing import Any, Final

from sqlalchemy import RowMapping, select

from calls.codec.body import parse_body
from calls.derive import assemble_answer
from calls.dialects.dialect import AnswerSummary
from calls.dialects.table import BY_NAME
from calls.model import Call, Exchange, Usage
from calls.redaction.call import Clean, clean_call
from store.call_graph.retry_query import RetryGroups, load_retry_groups
from store.database.asyncio_engine import AsyncConnection
from store.database.connection import Database
from store.database.tables import calls, exchanges
from store.large.summary import read_summary
from store.query.call_graph import PageLinks, load_page_links
from store.query.call_reader import CallReader
from store.query.rest_shapes import Shape, ns_of, path_of
from store.query.run_stats import can_have_cost
from store.query.runs import Runs
from store.timeline.conversation import make_conversation
from store.timeline.facts import AttemptFacts, SpokenCall, StepFacts, ToolLinks
from store.timeline.from_exchanges import (
    add_tool_branches,
    answer_origin,
    error_text,
    newest_first,
    spoken_call,
    step_label,
)
from store.timeline.prompt_history import CANDIDATES
from store.timeline.timeline import MOST_STEPS, Earlier, make_timeline, sum_earlier

MOST_EXCHANGES: Final = 3 * MOST_STEPS
"""Exchanges of a run that are looked at: a step that is tried several times has several."""

EXCHANGES_BEFORE: Final = 1000
"""Exchanges before a page that are looked at: its prompts and tool calls may go on from these."""

MOST_READ_FAILURES: Final = 50
"""Steps that failed of which the answer is read, to say why."""

MOST_READ_ORIGINS: Final = 500
"""Steps of a fork of which the answer is read, to say where it is from."""

BATCH: Final = 20
"""Exchanges that are held at a time."""

_COLUMNS: Final = (
    *("id", "started_at", "kind", "provider", "dialect", "operation", "host", "status", "outcome", "model_requested"),
    *(
        "model_returned",
        "tools",
        "finish_reason",
        "answer_state",
        "streamed",
        "complete",
        "cost_usd",
        "actor",
        "summary",
    ),
    "polls",
    *Usage.__slots__,
)


@dataclass(frozen=True, slots=True)
class _RunRows:
    """The exchanges of a run in step order, and how they are connected."""

    rows: Sequence[RowMapping]
    groups: RetryGroups
    links: PageLinks
    numbers: Mapping[str, int]
    """By exchange: its step."""

    has_more: bool
    """Whether the run has more exchanges after those that were looked at."""

    skipped: Earlier
    """The steps before the exchanges that were looked at."""

    wholes: Mapping[str, Sequence[RowMapping]]
    """The rows of each call by its id, in step order."""


class RunTimelines:
    """The timelines and conversations of a project's runs. `derive` is as that of `CallReader`; `clean` redacts a text."""

    def __init__(
        self,
        database: Database,
        queries: CallReader,
        derive: Callable[[Exchange], Call],
        clean: Clean,
        project: str = "default",
    ) -> None:
        self._database = database
        self._queries = queries
        self._derive = derive
        self._clean = clean
        self._project = project

    async def load_timeline(self, run: Shape, after: int, limit: int, *, shows_texts: bool) -> Shape:
        """Return the timeline of a run (as `Runs.get` returns it): `limit` steps after a step."""
        found = await self._load_rows(run["id"], after)
        steps = self._facts(found, shows_texts=shows_texts)
        earlier = found.skipped + sum_earlier([step for step in steps if step.number <= after])
        page = [step for step in steps if step.number > after][:limit]
        page = await self._add_what_was_answered(page, is_fork=run["parent"] is not None, shows_texts=shows_texts)
        gaps = await Runs(self._database, self._project).gaps(run["id"])
        return make_timeline(
            run,
            ns_of(run["started_at"]) or 0,
            page,
            gaps,
            earlier=earlier,
            steps_left_out=max(0, run["calls"] - earlier.steps - len(page)),
        )

    async def load_conversation(self, run: Shape, after: int, limit: int, *, shows_texts: bool) -> Shape:
        """Return what was said in `limit` calls of a run after a step."""
        run_rows = await self._load_rows(run["id"], after)
        order = sorted((run_rows.numbers[name], name) for name in run_rows.wholes)
        page = [name for number, name in order if number > after][:limit]
        if not page:
            return {"run": run["id"], "items": [], "next": None}
        spoken, links = await self._load_spoken(run_rows, page, [name for number, name in order if number <= after])
        shapes = await asyncio.to_thread(
            make_conversation,
            [spoken[name] for name in page if name in spoken],
            links,
            earlier=[call for name, call in spoken.items() if name not in page],
            shows_texts=shows_texts,
        )
        is_last = len(shapes) == len(page) and page[-1] == order[-1][1] and not run_rows.has_more
        return {"run": run["id"], "items": shapes, "next": None if is_last or not shapes else shapes[-1]["step"]}

    async def _load_rows(self, run: str, after: int) -> _RunRows:
        """Load the exchanges after a step, and some before it."""
        skip = max(0, after - EXCHANGES_BEFORE)
        is_unpriced = (can_have_cost() & calls.c.cost_usd.is_(None)).label("is_unpriced")
        columns = (calls.c[name] for name in _COLUMNS)
        of_exchange = (exchanges.c[name] for name in ("first_byte_at", "ended_at", "method", "url"))
        query = (
            select(*columns, is_unpriced, *of_exchange)
            .join(exchanges, (exchanges.c.project == calls.c.project) & (exchanges.c.id == calls.c.id))
            .where(calls.c.project == self._project, calls.c.run == run)
            .order_by(calls.c.started_at, calls.c.id)
            .offset(skip)
            .limit(MOST_EXCHANGES + 1)
        )
        async with self._database.transaction() as connection:
            groups = await load_retry_groups(connection, self._project, [run])
            rows = (await connection.execute(query)).mappings().all()
            has_more, rows = len(rows) > MOST_EXCHANGES, rows[:MOST_EXCHANGES]
            links = await load_page_links(connection, self._project, run, groups, rows)
            skipped = await self._sum_first(connection, run, skip, groups) if skip else Earlier()
        numbers = {str(row["id"]): number for number, row in enumerate(rows, skip + 1)}
        wholes: dict[str, list[RowMapping]] = {}
        for row in rows:
            # A call whose first exchange is not among the rows is cut.
            if (name := groups.ids_and_attempts(row["id"])[0][0]) in numbers:
                wholes.setdefault(name, []).append(row)
        return _RunRows(rows, groups, links, numbers, has_more, skipped, wholes)

    async def _sum_first(self, connection: AsyncConnection, run: str, number: int, groups: RetryGroups) -> Earlier:
        """Add up the first exchanges of a run."""
        query = (
            select(calls.c.id, calls.c.cost_usd, calls.c.input_tokens, calls.c.output_tokens)
            .where(calls.c.project == self._project, calls.c.run == run)
            .order_by(calls.c.started_at, calls.c.id)
            .limit(number)
        )
        rows = (await connection.execute(query)).all()
        repeated = set(groups.repeated_polls)
        counted = [row for row in rows if row.id not in repeated]
        return Earlier(
            steps=sum(groups.ids_and_attempts(row.id)[0][0] == str(row.id) for row in rows),
            cost=sum((row.cost_usd or Decimal(0) for row in counted), Decimal(0)),
            tokens=sum((row.input_tokens or 0) + (row.output_tokens or 0) for row in counted),
        )

    def _facts(self, run_rows: _RunRows, *, shows_texts: bool) -> list[StepFacts]:
        repeated = set(run_rows.groups.repeated_polls)
        actors = {str(row["id"]): row["actor"] for row in run_rows.rows}
        branches = add_tool_branches(run_rows.links.graph, run_rows.links.tool_calls_between, actors)
        steps = [
            self._step_facts(name, rows, run_rows, branches, repeated, shows_texts=shows_texts)
            for name, rows in run_rows.wholes.items()
        ]
        return sorted(steps, key=lambda step: step.number)

    def _step_facts(
        self,
        name: str,
        rows: Sequence[RowMapping],
        run_rows: _RunRows,
        branches: Mapping[str, int],
        repeated: Any,
        *,
        shows_texts: bool,
    ) -> StepFacts:
        first, last = rows[0], rows[-1]
        counted = [row for row in rows if row["id"] not in repeated]
        model = last["model_returned"] or first["model_requested"]
        tools = last["tools"] or ()
        path = path_of(first["url"])
        place = f"{first['method']} {path or first['host']}"
        facts: dict[str, Any] = {
            "call": name,
            "number": run_rows.numbers[name],
            **{column: first[column] for column in ("kind", "provider", "operation", "host", "method", "actor")},
            "path": path,
            "label": step_label(first["kind"], first["dialect"], first["operation"], model, tools, place),
            "model": model,
            "branch": branches.get(name),
            "follows": newest_first(run_rows.links.graph, name, run_rows.numbers),
            "attempts": tuple(map(_attempt_facts, rows)),
            "tries": run_rows.groups.ids_and_attempts(first["id"])[1],
            **{column: last[column] for column in ("complete", "streamed", "finish_reason", "answer_state")},
            "tools": tools,
            "usage": {column: _add(row[column] for row in counted) for column in Usage.__slots__},
            "cost": _add(row["cost_usd"] for row in counted),
            "unpriced": sum(row["is_unpriced"] for row in counted),
            "excerpt": read_summary(last["summary"]).text if shows_texts and last["summary"] is not None else None,
        }
        return StepFacts(**facts)

    async def _add_what_was_answered(
        self, steps: Sequence[StepFacts], *, is_fork: bool, shows_texts: bool
    ) -> list[StepFacts]:
        """Add the errors of steps that failed, if texts are shown, and in a fork where the answers are from."""
        failed = [step for step in steps if step.has_failed][:MOST_READ_FAILURES] if shows_texts else []
        answer_ids = {step.attempts[-1].exchange for step in failed}
        if is_fork:
            answer_ids |= {step.attempts[-1].exchange for step in steps[:MOST_READ_ORIGINS]}
        errors: dict[str, str] = {}
        origins: dict[str, str] = {}
        broken = {step.attempts[-1].exchange for step in failed}
        for names in batched(await self._queries.without_large(sorted(answer_ids)), BATCH):
            read = await self._queries.exchanges_by_id(names)
            origins |= {name: answer_origin(one) for name, one in read.items()}
            some = [one for name, one in read.items() if name in broken]
            errors |= await asyncio.to_thread(
                lambda some: {one.id: error_text(one, self._derive(one).answer) for one in some}, some
            )
        return [
            replace(
                step,
                error=errors.get(step.attempts[-1].exchange),
                origin=origins.get(step.attempts[-1].exchange) if is_fork else None,
            )
            for step in steps
        ]

    async def _load_spoken(
        self, run_rows: _RunRows, page: Sequence[str], before: Sequence[str]
    ) -> tuple[dict[str, SpokenCall], ToolLinks]:
        """Load what was said in a page of calls, and in the earlier ones that their prompts may continue, in step order."""
        wholes = run_rows.wholes
        context = _context(run_rows, page, before)
        names = [*context, *page]
        ends = {name: (str(wholes[name][0]["id"]), str(wholes[name][-1]["id"])) for name in names}
        small = set(await self._queries.without_large({one for pair in ends.values() for one in pair}))
        rows = {str(row["id"]): row for row in run_rows.rows}
        spoken: dict[str, SpokenCall] = {}
        read: dict[str, tuple[Exchange, Call]] = {}
        for some in batched(names, BATCH):
            readable = [name for name in some if small.issuperset(ends[name])]
            loaded = await self._queries.exchanges_by_id({one for name in readable for one in ends[name]})
            pairs = await asyncio.to_thread(self._read_calls, loaded, rows)
            for name in readable:
                first, last = (pairs.get(one) for one in ends[name])
                if first and last:
                    follows = newest_first(run_rows.links.graph, name, run_rows.numbers)
                    spoken[name] = spoken_call(run_rows.numbers[name], follows, first, last)
            read |= pairs
        for name in page:
            if name not in spoken:
                row = wholes[name][0]
                spoken[name] = SpokenCall(
                    call=name, number=run_rows.numbers[name], kind=row["kind"], actor=row["actor"], is_large=True
                )
        return spoken, await self._load_executions(run_rows, page, read)

    def _read_calls(
        self, loaded: Mapping[str, Exchange], rows: Mapping[str, RowMapping]
    ) -> dict[str, tuple[Exchange, Call]]:
        """Return the exchanges with their calls, as far as a conversation needs these."""
        return {
            name: (one, _read_spoken(one, rows[name], self._clean) or self._derive(one)) for name, one in loaded.items()
        }

    async def _load_executions(
        self, run_rows: _RunRows, page: Sequence[str], read: Mapping[str, tuple[Exchange, Call]]
    ) -> ToolLinks:
        """Find which calls executed the tool calls of a page."""
        first, last = run_rows.numbers[page[0]], run_rows.numbers[page[-1]]
        near = [
            (one, names)
            for one, names in run_rows.links.tool_calls_between
            if run_rows.numbers.get(one.asker.id, last + 1) <= last
            and run_rows.numbers.get(one.follower.id, 0) >= first
        ]
        links = replace(run_rows.links, tool_calls_between=near)
        more = await self._queries.read_for_links(links.calls_to_read - read.keys())
        links = links.with_executions({**read, **more})
        return ToolLinks(executed_by=links.executions, answered_by=links.graph.answered_by, numbers=run_rows.numbers)


def _read_spoken(exchange: Exchange, row: RowMapping, clean: Clean) -> Call | None:
    """Read what was said in the call of a model, without its key, which takes longest; None if it is another call."""
    if row["kind"] != "model":
        return None
    body = parse_body(exchange.request, is_json=True)
    if body.form != "json":
        return None
    assembly = assemble_answer(exchange.response, row["dialect"])
    answer = assembly.answer if assembly else None
    summary = BY_NAME[row["dialect"]].summarize_answer(answer) if assembly else AnswerSummary()
    call = Call(
        exchanges=(exchange.id,),
        kind="model",
        **{name: row[name] for name in ("provider", "dialect", "operation")},
        key="",
        profile="",
        request=body.value,
        answer=answer,
        text=summary.text,
        tool_calls=summary.tool_calls,
        streamed=assembly.is_streamed if assembly else False,
    )
    return clean_call(call, clean)


def _context(run_rows: _RunRows, page: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return the calls before a page with which its prompts may be compared, in step order."""
    context_calls: set[str] = set()
    actors = {row["actor"] for name in page for row in run_rows.wholes[name][:1]}
    models = [(name, run_rows.wholes[name][0]) for name in before]
    for actor in actors:
        of_actor = [name for name, row in models if row["kind"] == "model" and row["actor"] == actor]
        context_calls.update(of_actor[-CANDIDATES:])
    for name in page:
        context_calls.update(newest_first(run_rows.links.graph, name, run_rows.numbers)[:1])
    return [name for name in before if name in context_calls]


def _attempt_facts(row: RowMapping) -> AttemptFacts:
    # An import without times has no time of the first byte, and none of the end.
    has_times = row["status"] is None or row["first_byte_at"] is not None
    return AttemptFacts(
        exchange=str(row["id"]),
        started_at=row["started_at"],
        first_byte=row["first_byte_at"],
        duration=row["ended_at"] if has_times else None,
        status=row["status"],
        outcome=row["outcome"],
        is_poll=row["polls"] is not None,
    )


def _add[Number: (int, Decimal)](numbers: Any) -> Number | None:
    known: list[Number] = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known else None
