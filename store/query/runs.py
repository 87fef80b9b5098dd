"""Look up, list, name, label, pin, end and delete runs."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    RowMapping,
    Select,
    Text,
    case,
    cast,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from calls.events import Gap
from calls.proof.records import ChainRecord
from store.bundle.statement import RUN_FACTS
from store.database.asyncio_engine import AsyncConnection, driver_connection
from store.database.blobs import unpack
from store.database.connection import Database, note_changed_runs
from store.database.plans import plan_without_workers
from store.database.rows import storable_text
from store.database.tables import (
    calls,
    effects,
    exchanges,
    gaps,
    parts,
    replays,
    run_totals,
    runs,
)
from store.feed.entries import FeedEntry, RunBegan, RunChanged, RunDeleted, RunEnded
from store.feed.feed import append_entries
from store.proof.chain import append_records, forget_run
from store.proof.commitments import make_salts
from store.proof.evidence import run_record
from store.query.call_summaries import Fields, select_fields
from store.query.filters import Filters
from store.query.pages import NEWEST_FIRST, Sort, list_digest, next_cursor, parse_cursor
from store.query.rest_shapes import NO_STATS, Shape, ns_of, run_shape
from store.query.run_stats import load_run_stats
from store.retention.remains import remove_remains
from store.sums.positions import load_unsummed_runs
from store.sums.run_lists import load_run_rows
from store.sums.summed_days import delete_call_sums

ISOLATIONS = ("none", "watched", "captive")
"""The levels of isolation, from the weakest to the strongest."""

LONGEST_LABEL = 1000

RUN_COLUMNS: Final = frozenset(
    (
        *("id", "name", "labels", "started_at", "active_at", "ended_at", "pinned", "parent", "forked_at", "profile"),
        "isolation",
    )
)
"""The members of a run that are columns; the others are counted over its exchanges."""

RUN_MEMBERS: Final = RUN_COLUMNS | {
    *("calls", "exchanges", "gaps", "complete", "models", "tokens", "cost_usd", "known_cost_usd", "unpriced"),
    *("attribution", "head"),
}
"""The members of a run that can be requested."""


FACTS: Final = (runs.c.incarnation, runs.c.started_at, runs.c.ended_at, *(runs.c[name] for name in RUN_FACTS))
"""The columns of which a proof commits."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, and the cursor of the next one."""

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
            found = (await connection.execute(self._run_query(run))).mappings().first()
            if found is None:
                return None
            # As in a list: to count the calls of a long run takes a second.
            changed = await load_unsummed_runs(connection, self._project)
            stats = await load_run_stats(connection, self._project, [run], changed)
            return run_shape(found, stats[run], now)

    async def exists(self, run: str) -> bool:
        """Whether there is such a run."""
        async with self._database.connection() as connection:
            return bool(await connection.fetchval(EXISTS, self._project, run))

    async def page(
        self,
        filters: Filters,
        now: int,
        limit: int = 50,
        cursor: str | None = None,
        sort: Sort = NEWEST_FIRST,
        fields: Fields = None,
    ) -> Page:
        """Return a page of runs. Raises `BadCursor`."""
        digest = list_digest("runs", self._project, sort, filters)
        begin = parse_cursor(cursor, digest)
        has_stats = fields is None or not fields <= RUN_COLUMNS
        async with self._database.transaction() as connection:
            await plan_without_workers(connection)
            changed = await load_unsummed_runs(connection, self._project)
            found = await load_run_rows(connection, self._project, filters, sort, begin, limit, changed=changed)
            names = [row["id"] for row in found[:limit]]
            stats = (
                await load_run_stats(connection, self._project, names, changed)
                if has_stats
                else dict.fromkeys(names, NO_STATS)
            )
        items = [select_fields(run_shape(row, stats[row["id"]], now), fields) for row in found[:limit]]
        following = next_cursor(found, limit, digest)
        return Page(items, None if following is None else str(following))

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
        """Create or reopen a run; what is given is added to what it has."""
        fresh = {"project": self._project, "id": run, "incarnation": uuid.uuid4(), "name": _name(name)}
        fresh |= {"parent": parent, "forked_at": forked_at}
        times = {"started_at": now, "newest_at": now, "active_at": now}
        insertion = insert(runs).values(**fresh, **times, labels=_labels(labels or {}))
        updates = {
            **{
                column: func.coalesce(insertion.excluded[column], runs.c[column])
                for column in ("name", "parent", "forked_at")
            },
            "labels": runs.c.labels.concat(insertion.excluded.labels),
            "active_at": func.greatest(runs.c.active_at, now),
            "ended_at": None,
        }
        made_or_kept = insertion.on_conflict_do_update(index_elements=["project", "id"], set_=updates).returning(*FACTS)
        async with self._database.transaction() as connection:
            facts = (await connection.execute(made_or_kept)).mappings().one()
            is_new = facts["incarnation"] == fresh["incarnation"]
            await self._prove(connection, facts, now if is_new else facts["started_at"])
            if is_new:
                await remove_remains(await driver_connection(connection), self._project, [run])
            await self._append(connection, RunBegan(run, now) if is_new else RunChanged(run, now))

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
        """Change what is given; a label of None is removed. Return whether there is such a run."""
        changes: dict[str, Any] = {"name": runs.c.name if name is None else _name(name)}
        if labels:
            removed_labels = [label for label, value in labels.items() if value is None]
            changes["labels"] = _without_labels(removed_labels).concat(
                _labels({k: v for k, v in labels.items() if v is not None})
            )
        if pinned is not None:
            changes["pinned"] = pinned
        if ended_at is not None:
            changes["ended_at"] = ended_at
        if isolation is not None:
            changes["isolation"] = _weaker_isolation(isolation)
        async with self._database.transaction() as connection:
            changed = update(runs).where(*self._run_condition(run)).values(changes).returning(*FACTS)
            if (facts := (await connection.execute(changed)).mappings().first()) is None:
                return False
            await self._prove(connection, facts, facts["started_at"], ended_at)
            entry = RunChanged(run, time.time_ns()) if ended_at is None else RunEnded(run, ended_at, is_reported=True)
            await self._append(connection, entry)
            return True

    async def adopt(self, run: str, head: Mapping[str, Any], end: int, latest: int) -> None:
        """Take over what only the head of a bundle says about its run: when it began and ended, and its parent.

        Without an end, or with one after `latest`, the run ended with its last exchange, at `end`.
        """
        times = (ns_of(head.get(name)) for name in ("started_at", "ended_at"))
        began, ended_at = (ns if ns is not None and 0 <= ns <= latest else None for ns in times)
        is_open = "ended_at" in head and head["ended_at"] is None
        parent, step = head.get("parent"), head.get("forked_at")
        changes = {
            "started_at": runs.c.started_at if began is None else func.least(runs.c.started_at, began),
            "active_at": func.greatest(runs.c.newest_at, end),
            "ended_at": None if is_open else end if ended_at is None else ended_at,
            "parent": storable_text(parent, LONGEST_LABEL) if isinstance(parent, str) else None,
            "forked_at": step if type(step) is int and 0 <= step < 1 << 31 else None,
            "isolation": head.get("isolation") if head.get("isolation") in ISOLATIONS else None,
        }
        changed = update(runs).where(*self._run_condition(run)).values(changes).returning(*FACTS)
        async with self._database.transaction() as connection:
            if (facts := (await connection.execute(changed)).mappings().first()) is not None:
                await self._prove(connection, facts, facts["started_at"], facts["ended_at"])
                note_changed_runs(await driver_connection(connection), self._project, [run])

    async def delete(self, run: str) -> bool:
        """Delete a run with everything that was recorded in it. Return whether there was one."""
        async with self._database.transaction() as connection:
            # First, because ingest locks this row: what it stores later goes into a new run.
            deletion = delete(runs).where(*self._run_condition(run)).returning(runs.c.incarnation)
            incarnation = await connection.scalar(deletion)
            for table in (exchanges, calls, parts, gaps, effects, run_totals):
                await connection.execute(delete(table).where(table.c.project == self._project, table.c.run == run))
            await delete_call_sums(await driver_connection(connection), self._project, [run])
            if incarnation is None:
                return False
            now, server = time.time_ns(), self._database.store_server
            await forget_run(await driver_connection(connection), self._project, server, incarnation, now)
            await self._append(connection, RunDeleted(run, now))
            return True

    async def gaps(self, run: str) -> list[Gap]:
        """Return the gaps of a run, oldest first."""
        query = select(gaps).where(gaps.c.project == self._project, gaps.c.run == run)
        async with self._database.transaction() as connection:
            found = (await connection.execute(query.order_by(gaps.c.happened_at, gaps.c.id))).mappings().all()
        return [Gap(row["run"], row["happened_at"], row["reason"], row["exchange"], row["count"]) for row in found]

    async def replay(self, replay: str) -> bytes | None:
        """Return the newest report of a replay, as JSON."""
        query = select(replays.c.report).where(replays.c.project == self._project, replays.c.id == replay)
        async with self._database.transaction() as connection:
            report = await connection.scalar(query)
        return None if report is None else unpack(report)

    async def _prove(
        self, connection: AsyncConnection, facts: RowMapping, began: int, ended_at: int | None = None
    ) -> None:
        """Append to the run's chain what was said about it, in the transaction that stores it."""
        if (server := self._database.store_server) is None:
            return
        salt = make_salts()
        records = [run_record(dict(facts), began, salt)]
        if ended_at is not None:
            records.append(ChainRecord(kind="end", at=ended_at))
        await connection.execute(update(runs).where(*self._run_condition(facts["id"])).values(salt=salt))
        await append_records(
            await driver_connection(connection), self._project, server, {facts["incarnation"]: records}
        )

    async def _append(self, connection: AsyncConnection, entry: FeedEntry) -> None:
        await append_entries(await driver_connection(connection), self._project, [entry])

    def _run_query(self, run: str) -> Select[Any]:
        return select(runs).where(*self._run_condition(run))

    def _run_condition(self, run: str) -> tuple[Any, Any]:
        return (runs.c.project == self._project, runs.c.id == run)


def _without_labels(labels: Sequence[str]) -> Any:
    return runs.c.labels.op("-", return_type=JSONB())(cast(list(labels), ARRAY(Text)))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {storable_text(name, LONGEST_LABEL): storable_text(value, LONGEST_LABEL) for name, value in labels.items()}


def _name(name: str | None) -> str | None:
    return None if name is None else storable_text(name, LONGEST_LABEL)


def _weaker_isolation(isolation: str) -> ColumnElement[str]:
    """Return the weaker of the run's isolation and this one: a run is only as isolated as its weakest part."""
    weaker = ISOLATIONS[: ISOLATIONS.index(isolation)]
    return case((runs.c.isolation.in_(weaker), runs.c.isolation), else_=isolation)


EXISTS: Final = "SELECT EXISTS (SELECT FROM runs WHERE project = $1 AND id = $2)"
