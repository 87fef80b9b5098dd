"""Where the money of one run went: step by step, and as a tree of its actors, branches and models.

An agent sends its history again with each request. So each step says how many tokens of its prompt are new, and how many were
sent in an earlier step of the same branch. That is an estimate: the parts of the prompt (`prompt_parts`) are compared with those
of the earlier steps, and the input tokens that the provider reported are divided by the lengths of the parts. A branch that begins
at a step of another one has what was sent up to there. What a model answered is new in the first prompt that returns it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import batched
from typing import Any, Final

import msgspec
from sqlalchemy import RowMapping, select

from calls.codec.encoding import Undecodable, decode_content
from calls.dialects.generic import DIALECT as GENERIC
from calls.model import Exchange, Usage, header
from store.call_graph.retry_query import RetryGroups, load_retry_groups
from store.database.connection import Database
from store.database.tables import calls
from store.query.call_graph import PageLinks, load_page_links
from store.query.call_reader import CallReader
from store.query.prompt_parts import PromptPart, PromptParts
from store.query.rest_shapes import Shape, dollars, rfc3339
from store.query.run_stats import can_have_cost

MOST_STEPS: Final = 2000
"""Steps of a run that are read."""

MOST_EXCHANGES: Final = 2 * MOST_STEPS
"""Exchanges of a run that are read: a step that is tried several times has several."""

BATCH: Final = 20
"""Requests that are held at a time."""

MOST_BYTES: Final = 256 << 20
"""Bytes of requests that are compared. The prompts after them are not divided."""

MOST_LEVELS: Final = 20
"""Branches within branches that the tree shows; what begins deeper is shown at the deepest."""

ESTIMATE: Final = (
    "new_tokens and repeated_tokens divide the reported input tokens by the lengths of the prompt's parts: those that an earlier"
    " step of the same branch sent are repeated. Null where the request does not have its prompt, or no tokens are reported"
)

_COLUMNS: Final = (
    *(
        "id",
        "run",
        "started_at",
        "kind",
        "provider",
        "dialect",
        "operation",
        "host",
        "model_requested",
        "model_returned",
    ),
    *("actor", "status", "tools", "prices", "cost_usd", *Usage.__slots__),
)


@dataclass(slots=True)
class _Amounts:
    """Tokens and costs; a call may have several exchanges."""

    tokens: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(Usage.__slots__))
    cost: Decimal | None = None
    unpriced: int = 0

    def add(self, tokens: Mapping[Any, Any], cost: Decimal | None, unpriced: int) -> None:
        for name in Usage.__slots__:
            self.tokens[name] = _sum(self.tokens[name], tokens[name])
        self.cost = _sum(self.cost, cost)
        self.unpriced += unpriced

    def shape(self) -> Shape:
        """The amounts in JSON."""
        return {
            "usage": dict(self.tokens),
            "cost_usd": None if self.unpriced else dollars(self.cost),
            "known_cost_usd": dollars(self.cost),
            "calls_without_price": self.unpriced,
        }


def _sum[Number: (int, Decimal)](one: Number | None, other: Number | None) -> Number | None:
    return other if one is None else one if other is None else one + other


@dataclass(slots=True, kw_only=True)
class CostStep:
    """A call of a run: its place, its amounts, and the division of its prompt."""

    id: str
    number: int
    row: RowMapping
    """The row of its first exchange."""

    status: int | None = None
    attempts: int = 1
    branch: int | None = None
    follows: str | None = None
    """The newest call that it continues."""

    amounts: _Amounts = field(default_factory=_Amounts)
    new: int | None = None
    repeated: int | None = None

    @property
    def is_of_model(self) -> bool:
        """Whether a model was called."""
        return bool(self.row["kind"] == "model")

    @property
    def model(self) -> str | None:
        """The model that answered, else the requested one."""
        name: str | None = self.row["model_returned"] or self.row["model_requested"]
        return name

    @property
    def name(self) -> str:
        """The model with its operation; or the tool, if the request names one, else the host."""
        row = self.row
        if self.is_of_model:
            return f"{self.model or '(no model)'} {row['operation']}"
        return str(row["host"] if row["dialect"] == GENERIC.name else row["operation"])


class RunCost:
    """The costs of the runs of a project."""

    def __init__(self, database: Database, queries: CallReader, project: str = "default") -> None:
        self._database = database
        self._queries = queries
        self._project = project

    async def load_cost(self, run: Shape, limit: int) -> Shape:
        """Return the costs of a run (as `Runs.get` returns it), with its first `limit` steps."""
        steps = await self._load_steps(run["id"], min(limit, MOST_STEPS))
        await self._divide_prompts(steps)
        total = {
            "calls": run["calls"],
            "usage": run["tokens"],
            "cost_usd": run["cost_usd"],
            "known_cost_usd": run["known_cost_usd"],
            "calls_without_price": run["unpriced"],
        }
        return {
            "run": run["id"],
            "total": total,
            "steps": list(_step_shapes(steps)),
            "steps_left_out": max(0, run["calls"] - len(steps)),
            "tree": _make_tree(run["id"], steps),
            "estimate": ESTIMATE,
        }

    async def _load_steps(self, run: str, limit: int) -> list[CostStep]:
        is_unpriced = (can_have_cost() & calls.c.cost_usd.is_(None)).label("is_unpriced")
        query = select(*(calls.c[name] for name in _COLUMNS), is_unpriced)
        query = query.where(calls.c.project == self._project, calls.c.run == run)
        async with self._database.transaction() as connection:
            groups = await load_retry_groups(connection, self._project, [run])
            in_order = query.order_by(calls.c.started_at, calls.c.id).limit(MOST_EXCHANGES)
            rows = (await connection.execute(in_order)).mappings().all()
            places = {str(row["id"]): place for place, row in enumerate(rows, start=1)}
            steps = _group_rows(rows, groups, places, limit)
            links = await load_page_links(connection, self._project, run, groups, [step.row for step in steps])
        _add_branches(steps, links)
        return steps

    async def _divide_prompts(self, steps: Sequence[CostStep]) -> None:
        """Divide the prompts of the calls of models, except large ones, which only a helper process may load."""
        history, parts, size = PromptHistory(), PromptParts(), 0
        small = set(await self._queries.without_large(step.id for step in steps if step.is_of_model))
        for some in batched((step for step in steps if step.id in small), BATCH):
            exchanges, _ = await self._queries.readable_exchanges([step.id for step in some])
            bodies = {name: _request_body(one) for name, one in exchanges.items()}
            await asyncio.to_thread(_divide_batch, some, bodies, history, parts)
            if (size := size + sum(map(len, bodies.values()))) > MOST_BYTES:
                return


def _group_rows(
    rows: Sequence[RowMapping], groups: RetryGroups, places: Mapping[str, int], limit: int
) -> list[CostStep]:
    """Make the steps of the exchanges: one for each call, with the amounts of all its exchanges."""
    steps: dict[str, CostStep] = {}
    repeated = set(groups.repeated_polls)
    for row in rows:
        names, attempts = groups.ids_and_attempts(row["id"])
        if names[0] not in steps:
            if len(steps) == limit or names[0] not in places:
                continue
            steps[names[0]] = CostStep(id=names[0], number=places[names[0]], row=row, attempts=attempts)
        step = steps[names[0]]
        step.status = row["status"]
        if row["id"] not in repeated:
            step.amounts.add(row, row["cost_usd"], int(row["is_unpriced"]))
    return list(steps.values())


def _add_branches(steps: Sequence[CostStep], links: PageLinks) -> None:
    """Add the branches, and what each call continues.

    The call of a tool is on the branch of the model that waits for it, if one model of its actor does.
    """
    start_times = {step.id: step.row["started_at"] for step in steps}
    actors = {step.id: step.row["actor"] for step in steps}
    waiting: dict[str, set[int | None]] = {}
    for one, names in links.tool_calls_between:
        for name in names:
            if actors.get(name) == actors.get(one.asker.id):
                waiting.setdefault(name, set()).add(links.graph.branches.get(one.asker.id))
    for step in steps:
        step.branch = links.graph.branches.get(step.id)
        if step.branch is None and len(asking := waiting.get(step.id, ())) == 1:
            step.branch = next(iter(asking))
        before = [one.call for one in links.graph.follows.get(step.id, ()) if one.call in start_times]
        step.follows = max(before, key=start_times.__getitem__, default=None)


def _request_body(exchange: Exchange) -> bytes:
    request = exchange.request
    if not (encoding := header(request.headers, "content-encoding")):
        return request.body.data
    try:
        return decode_content(request.body.data, encoding)
    except Undecodable:
        return b""


def _divide_batch(
    steps: Iterable[CostStep], bodies: Mapping[str, bytes], history: "PromptHistory", parts: PromptParts
) -> None:
    for step in steps:
        body = bodies.get(step.id, b"")
        history.divide(step, parts.divide(body), is_continued=_continues_on_server(body))


class _ContinuedRequest(msgspec.Struct):
    """The member that names a response whose conversation the provider keeps."""

    previous_response_id: object = None
    previous_interaction_id: object = None


_continued: Final = msgspec.json.Decoder(_ContinuedRequest)


def _continues_on_server(body: bytes) -> bool:
    if b'"previous_' not in body:
        return False
    try:
        request = _continued.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(request.previous_response_id or request.previous_interaction_id, str)


class PromptHistory:
    """What was sent in the steps of a run so far, branch by branch."""

    def __init__(self) -> None:
        self._sent: dict[object, dict[bytes, int]] = {}
        """By branch: the parts that were sent, and the step in which they were first."""

        self._steps: dict[str, CostStep] = {}

    def divide(self, step: CostStep, parts: Sequence[PromptPart], *, is_continued: bool = False) -> None:
        """Add a step, and divide its input tokens. `is_continued`: the provider has the conversation before it."""
        self._steps[step.id] = step
        sent_parts = self._sent_on_branch(step)
        weight = sum(part.weight for part in parts)
        new = sum(part.weight for part in parts if part.hash not in sent_parts)
        for part in parts:
            sent_parts.setdefault(part.hash, step.number)
        if (tokens := step.amounts.tokens["input_tokens"]) is None:
            return
        if is_continued:
            before = self._steps.get(step.follows or "")
            input_tokens = None if before is None else before.amounts.tokens["input_tokens"]
            if input_tokens is None:
                return
            step.repeated = min(input_tokens, tokens)
        elif weight:
            step.repeated = tokens - round(tokens * new / weight)
        else:
            return
        step.new = tokens - step.repeated

    def _sent_on_branch(self, step: CostStep) -> dict[bytes, int]:
        # Calls that continue no other one, and that none continues, are compared with those of the same actor.
        alone = ("actor", step.row["actor"])
        branch = step.branch or alone
        if (sent_parts := self._sent.get(branch)) is None:
            sent_parts = self._sent[branch] = self._sent_before(step, alone)
        return sent_parts

    def _sent_before(self, step: CostStep, alone: object) -> dict[bytes, int]:
        """Return what was sent up to the step in which a branch begins."""
        if (before := self._steps.get(step.follows or "")) is None:
            return dict(self._sent.get(alone, {}))
        sent_parts = self._sent.get(before.branch or ("actor", before.row["actor"]), {})
        return {part: number for part, number in sent_parts.items() if number <= before.number}


def _step_shapes(steps: Sequence[CostStep]) -> Iterator[Shape]:
    """Yield the steps in JSON, each with the known cost of the run up to it."""
    numbers = {step.id: step.number for step in steps}
    so_far = Decimal(0)
    for step in steps:
        row = step.row
        so_far += step.amounts.cost or 0
        yield {
            "step": step.number,
            "call": step.id,
            "started_at": rfc3339(row["started_at"]),
            "kind": row["kind"],
            "provider": row["provider"],
            "name": step.name,
            "model": step.model,
            **{name: row[name] for name in ("operation", "host", "actor")},
            "branch": step.branch,
            "follows": None if step.follows is None else numbers.get(step.follows),
            "status": step.status,
            "attempts": step.attempts,
            **step.amounts.shape(),
            "prices": row["prices"],
            "new_tokens": step.new,
            "repeated_tokens": step.repeated,
            "cost_so_far_usd": dollars(so_far),
        }


@dataclass(slots=True)
class _Node:
    """A node of the tree: the sums of all steps below it."""

    kind: str
    name: str
    first_step: int = 0
    calls: int = 0
    amounts: _Amounts = field(default_factory=_Amounts)
    new: int | None = None
    repeated: int | None = None
    children: dict[object, "_Node"] = field(default_factory=dict)

    def child(self, kind: str, name: str) -> "_Node":
        """The child of this name, which is made if there is none."""
        return self.children.setdefault((kind, name), _Node(kind, name))

    def add(self, step: CostStep) -> None:
        self.first_step = self.first_step or step.number
        self.calls += 1
        self.amounts.add(step.amounts.tokens, step.amounts.cost, step.amounts.unpriced)
        self.new, self.repeated = _sum(self.new, step.new), _sum(self.repeated, step.repeated)

    def shape(self) -> Shape:
        """The node in JSON, its children the most expensive first."""
        ordered = sorted(self.children.values(), key=lambda one: (-(one.amounts.cost or 0), one.first_step))
        return {
            "kind": self.kind,
            "name": self.name,
            "first_step": self.first_step or None,
            "calls": self.calls,
            **self.amounts.shape(),
            "new_tokens": self.new,
            "repeated_tokens": self.repeated,
            "children": [child.shape() for child in ordered],
        }


def _make_tree(run: str, steps: Sequence[CostStep]) -> Shape:
    """Return the steps as a tree: the run, its actors if they are named, branches within branches, and models and tools."""
    root = _Node("run", run)
    branch_of = {step.id: step.branch for step in steps}
    has_actors = any(step.row["actor"] is not None for step in steps)
    paths: dict[int, list[_Node]] = {}
    """By branch: the nodes from the root to it."""

    for step in steps:
        path = [root]
        if has_actors:
            path.append(root.child("actor", step.row["actor"] or "(no actor)"))
        if step.branch is not None:
            if step.branch not in paths:
                # A branch that begins at a step of another one is within that.
                before = branch_of.get(step.follows or "")
                around = paths.get(before, path)[:MOST_LEVELS] if before is not None else path
                paths[step.branch] = [*around, around[-1].child("branch", f"branch {step.branch}")]
            path = paths[step.branch]
        leaf = path[-1].child(step.row["kind"], step.name)
        for node in (*path, leaf):
            node.add(step)
    return root.shape()
