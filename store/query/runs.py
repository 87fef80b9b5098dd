"""Look up, list, name, label, pin, end and delete runs."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    CursorResult,
    RowMapping,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    not_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from calls.events import Gap
from calls.model import Usage
from store.attribution.certainty import GUESSED
from store.call_graph.retry_query import Folds, among, folds
from store.database.blobs import unpack
from store.database.connection import Database
from store.database.rows import clean
from store.database.tables import calls, exchanges, gaps, parts, processes, replays, runs
from store.query.filters import Cursor, Filters, cut, of_runs, page, unkept
from store.query.rest_shapes import NO_STATS, Shape, ns_of, run_shape

ISOLATIONS = ("none", "watched", "captive")
"""From the least to the most."""

LONGEST_LABEL = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """Some items of a list, and where the next ones begin."""

    items: list[Shape]
    next: str | None


class Runs:
    """The runs of a project. `now` is wall time in nanoseconds: whether a run has fallen idle depends on it."""

    def __init__(self, database: Database, project: str = "default") -> None:
        self._database = database
        self._project = project

    async def get(self, run: str, now: int) -> Shape | None:
        """One run, or None."""
        async with self._database.transaction() as connection:
            found = (await connection.execute(self._one(run))).mappings().first()
            if found is None:
                return None
            return run_shape(found, (await counted(connection, self._project, [run]))[run], now)

    async def page(self, filters: Filters, now: int, limit: int = 50, cursor: str | None = None) -> Page:
        """Runs, newest first. Raises `BadCursor`."""
        begin = Cursor.parse(cursor) if cursor else None
        query = select(runs).where(runs.c.project == self._project, *of_runs(filters))
        async with self._database.transaction() as connection:
            found = (await connection.execute(page(query, runs, begin, limit, newest_first=True))).mappings().all()
            stats = await counted(connection, self._project, [row["id"] for row in found[:limit]])
        items = [run_shape(row, stats[row["id"]], now) for row in found[:limit]]
        return Page(items, following(found, limit))

    async def put(
        self,
        run: str,
        now: int,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        parent: str | None = None,
        forked_at: int | None = None,
    ) -> None:
        """Make a run, or open it again; what is given is added to what it has."""
        fresh = {"project": self._project, "id": run, "incarnation": uuid.uuid4(), "name": _name(name)}
        fresh |= {"parent": parent, "forked_at": forked_at}
        times = {"started_at": now, "newest_at": now, "active_at": now}
        made = insert(runs).values(**fresh, **times, labels=_labels(labels or {}))
        kept = {
            **{
                column: func.coalesce(made.excluded[column], runs.c[column])
                for column in ("name", "parent", "forked_at")
            },
            "labels": runs.c.labels.concat(made.excluded.labels),
            "active_at": func.greatest(runs.c.active_at, now),
            "ended_at": None,
        }
        async with self._database.transaction() as connection:
            await connection.execute(made.on_conflict_do_update(index_elements=["project", "id"], set_=kept))

    async def patch(
        self,
        run: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        pinned: bool | None = None,
        ended_at: int | None = None,
        isolation: str | None = None,
    ) -> bool:
        """Change what is given; a label of None is taken away. Whether there is such a run."""
        changes: dict[str, Any] = {"name": runs.c.name if name is None else _name(name)}
        if labels:
            gone = [label for label, value in labels.items() if value is None]
            changes["labels"] = _without(gone).concat(_labels({k: v for k, v in labels.items() if v is not None}))
        if pinned is not None:
            changes["pinned"] = pinned
        if ended_at is not None:
            changes["ended_at"] = ended_at
        if isolation is not None:
            changes["isolation"] = _weaker(isolation)
        async with self._database.transaction() as connection:
            changed = await connection.execute(update(runs).where(*self._is(run)).values(changes))
            return _count(changed) > 0

    async def adopt(self, run: str, told: Mapping[str, Any], end: int, latest: int) -> None:
        """Take what a bundle says of its run and no exchange in it says: when it began and ended, what it was forked from.
        Where it says nothing, or a time after `latest`, it ended with its last exchange, at `end`."""
        times = (ns_of(told.get(name)) for name in ("started_at", "ended_at"))
        began, ended = (ns if ns is not None and 0 <= ns <= latest else None for ns in times)
        is_open = "ended_at" in told and told["ended_at"] is None
        parent, step = told.get("parent"), told.get("forked_at")
        changes = {
            "started_at": runs.c.started_at if began is None else func.least(runs.c.started_at, began),
            "active_at": func.greatest(runs.c.newest_at, end),
            "ended_at": None if is_open else end if ended is None else ended,
            "parent": clean(parent, LONGEST_LABEL) if isinstance(parent, str) else None,
            "forked_at": step if type(step) is int and 0 <= step < 1 << 31 else None,
            "isolation": told.get("isolation") if told.get("isolation") in ISOLATIONS else None,
        }
        async with self._database.transaction() as connection:
            await connection.execute(update(runs).where(*self._is(run)).values(changes))

    async def delete(self, run: str) -> bool:
        """Delete a run with all that was recorded of it. Whether there was one."""
        async with self._database.transaction() as connection:
            # First, because it is what ingest locks: what comes later comes to a new run (`known`).
            gone = await connection.execute(delete(runs).where(*self._is(run)))
            for table in (exchanges, calls, parts, gaps):
                await connection.execute(delete(table).where(table.c.project == self._project, table.c.run == run))
            return _count(gone) > 0

    async def gaps(self, run: str) -> list[Gap]:
        """What passed and is not among the run's exchanges, oldest first."""
        query = select(gaps).where(gaps.c.project == self._project, gaps.c.run == run)
        async with self._database.transaction() as connection:
            found = (await connection.execute(query.order_by(gaps.c.happened_at, gaps.c.id))).mappings().all()
        return [Gap(row["run"], row["happened_at"], row["reason"], row["exchange"], row["count"]) for row in found]

    async def replay(self, replay: str) -> bytes | None:
        """The newest report of a replay, as the JSON that was told."""
        query = select(replays.c.report).where(replays.c.project == self._project, replays.c.id == replay)
        async with self._database.transaction() as connection:
            report = await connection.scalar(query)
        return None if report is None else unpack(report)

    def _one(self, run: str) -> Select[Any]:
        return select(runs).where(*self._is(run))

    def _is(self, run: str) -> tuple[Any, Any]:
        return (runs.c.project == self._project, runs.c.id == run)


async def counted(connection: AsyncConnection, project: str, names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """What is counted about runs: by name, with zeros where there is nothing."""
    stats: defaultdict[str, dict[str, Any]] = defaultdict(lambda: dict(NO_STATS))
    folded = await folds(connection, project, names)
    for query in (_of_exchanges(), _of_calls(folded), _of_gaps(), _of_processes()):
        for row in (await connection.execute(query, {"project": project, "names": list(names)})).mappings():
            stats[row["run"]].update(row)
    return stats


def following(found: Sequence[RowMapping], limit: int) -> str | None:
    """The cursor after a page of which one row more than `limit` was asked for."""
    if len(found) <= limit:
        return None
    last = found[limit - 1]
    return str(Cursor(last["started_at"], str(last["id"])))


def _of_exchanges() -> Select[Any]:
    attribution = func.max(exchanges.c.attribution).label("attribution")
    return _by_run(
        exchanges, (func.count().label("exchanges"), func.count().filter(unkept()).label("unkept"), attribution)
    )


def _of_processes() -> Select[Any]:
    """What is left in the run of a process that worked on several things at once is there by a guess."""
    return _by_run(processes, (func.max(GUESSED).label("attribution"),)).where(processes.c.unclear)


def _of_calls(folded: Folds) -> Select[Any]:
    model = func.coalesce(calls.c.model_requested, calls.c.model_returned)
    models = func.array_remove(func.array_agg(func.distinct(model)), None).label("models")
    number = func.count().filter(~among(folded.later))
    # A look at what was done before tells the same usage again, which is counted once.
    once = ~among(folded.strays)
    sums = [func.sum(calls.c[name]).filter(once).cast(calls.c[name].type).label(name) for name in Usage.__slots__]
    cost = func.sum(calls.c.cost_usd).filter(once).label("known_cost_usd")
    unpriced = func.count().filter(_may_have_cost(), once, calls.c.cost_usd.is_(None)).label("unpriced")
    broken = func.count().filter(cut()).label("cut")
    return _by_run(calls, (number.label("calls"), models, *sums, cost, unpriced, broken))


def _may_have_cost() -> ColumnElement[bool]:
    """A model that answered, as far as one can tell: who is refused, or only told to ask again, pays nothing."""
    refused = and_(calls.c.status.is_not(None), calls.c.status >= 300)
    return and_(calls.c.kind == "model", calls.c.pending.is_(None), not_(func.coalesce(refused, False)))


def _of_gaps() -> Select[Any]:
    return _by_run(gaps, (func.sum(gaps.c.count).label("gaps"),))


def _by_run(table: Any, columns: Iterable[Any]) -> Select[Any]:
    names = bindparam("names", type_=ARRAY(Text))
    wanted = (table.c.project == bindparam("project"), table.c.run == func.any(names))
    return select(table.c.run, *columns).where(*wanted).group_by(table.c.run)


def _without(labels: Sequence[str]) -> Any:
    return runs.c.labels.op("-", return_type=JSONB())(cast(list(labels), ARRAY(Text)))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {clean(name, LONGEST_LABEL): clean(value, LONGEST_LABEL) for name, value in labels.items()}


def _name(name: str | None) -> str | None:
    return None if name is None else clean(name, LONGEST_LABEL)


def _count(result: Any) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount


def _weaker(isolation: str) -> ColumnElement[str]:
    """What a run keeps that is continued: it is as isolated as the least of its parts."""
    weaker = ISOLATIONS[: ISOLATIONS.index(isolation)]
    return case((runs.c.isolation.in_(weaker), runs.c.isolation), else_=isolation)
