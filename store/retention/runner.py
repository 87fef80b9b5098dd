"""Run retention regularly in the store server, one server at a time.

A pass can end at any point: what it has decided is stored, and the next pass continues with it before it decides anything new.
"""

import asyncio
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from store.database.connection import Database, DatabaseError
from store.database.object_forms import ObjectStorageDown
from store.erasure.disk_traces import clear_shared_files
from store.feed.feed import PROJECTS
from store.feed.signal import FeedSignal
from store.retention.expiry import expire_bodies, expire_runs
from store.retention.facts import load_replay_reports
from store.retention.partition_sizes import DaySizes
from store.retention.partition_swap import ClearedDay, clear_day, erased_days, pending_days
from store.retention.plan import Expiry, RetentionPlan, make_plan
from store.retention.rules import RetentionPolicy

log = logging.getLogger(__name__)

EVERY: Final = 3600.0
"""Seconds between two passes."""

FIRST_AFTER: Final = 60.0
"""Seconds from the start of the store server to its first pass."""

_LOCK: Final = 0x6B656570  # "keep"


class RetentionBusy(Exception):
    """Another process runs retention on this database."""


class RetentionResult(NamedTuple):
    """What a pass did."""

    plan: RetentionPlan
    runs: Sequence[Expiry]
    """The runs that went, or their bodies."""

    days: Sequence[ClearedDay]
    freed: int
    """Bytes that the database has become smaller by; negative if more was stored meanwhile."""

    objects: int
    """Objects that nothing named and that were deleted."""

    warnings: Sequence[str]


class RetentionRunner:
    """Removes what the policy says. `forget` is called with the project and name of each run and replay that went."""

    def __init__(
        self,
        database: Database,
        policy: RetentionPolicy,
        *,
        signal: FeedSignal | None = None,
        forget: Callable[[str, str], None] = lambda _project, _run: None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.policy = policy
        self._database = database
        self._signal = signal or FeedSignal()
        self._forget = forget
        self._now = now
        self._known_sizes = DaySizes()

    async def run(self) -> None:
        """Run a pass every hour until the task is cancelled, if there is a policy."""
        await asyncio.sleep(FIRST_AFTER)
        while True:
            try:
                if self.policy.is_active or self._database.objects.threshold or await self._has_remains():
                    result = await self.run_once()
                    _log_result(result)
            except RetentionBusy:
                log.info("another store server runs retention on this database")
            except DatabaseError as error:
                log.warning("retention waits for the database: %s", error)
            except Exception:  # a bug here must not end the process that stores what is recorded
                log.exception("retention failed; it tries again in %.0f s", EVERY)
            await asyncio.sleep(EVERY)

    async def plan(self) -> RetentionPlan:
        """Return what a pass would do now."""
        return await make_plan(self._database, self.policy, self._now(), self._known_sizes)

    async def run_once(self) -> RetentionResult:
        """Run one pass. Raises `RetentionBusy`."""
        async with self._lock():
            await self._forget_expired()
            is_left_by_erasure = bool(await erased_days(self._database))
            days = await self._clear_days(None)
            remains = await clear_shared_files(self._database) if is_left_by_erasure else []
            plan = await self.plan()
            replays = await self._replays(plan.expiries)
            expired = await expire_runs(self._database, plan.expiries, replays, plan.at)
            expiries = [*expired, *await expire_bodies(self._database, plan.expiries, plan.at)]
            self._signal.send()
            for one in expired:
                project, run = one.judged.facts.project, one.judged.facts.run
                for name in (run, *await self._names_without_run(project, replays.get((project, run), ()))):
                    self._forget(project, name)
            days += await self._clear_days(plan)
            objects, warnings = await self._collect_objects()
            async with self._database.connection() as connection:
                size: int = await connection.fetchval("SELECT pg_database_size(current_database())")
        return RetentionResult(plan, expiries, days, plan.size - size, objects, [*plan.warnings, *warnings, *remains])

    async def _has_remains(self) -> bool:
        return bool(await pending_days(self._database, await self._projects()))

    async def _projects(self) -> list[str]:
        async with self._database.connection() as connection:
            known = {row["project"] for row in await connection.fetch(PROJECTS)}
            # A project of which all runs went has none in `runs`.
            old_projects = {row["project"] for row in await connection.fetch(LEFT_PROJECTS)}
        return sorted(known | old_projects)

    async def _clear_days(self, plan: RetentionPlan | None) -> list[ClearedDay]:
        """Remove from the partitions what has been decided, day by day. Without a plan, what an earlier process has left."""
        today = dt.datetime.fromtimestamp(self._now() / 1e9, dt.UTC).date()
        sizes = {} if plan is None else {day.day: day for day in plan.days}
        expired_runs = (
            [] if plan is None else [(one.judged.facts.project, one.judged.facts.run) for one in plan.expiries]
        )
        cleared = []
        for day in await pending_days(self._database, await self._projects()):
            share = sizes[day].share_of(expired_runs) if day in sizes else 1.0
            cleared.append(await clear_day(self._database, day, today, share))
            await asyncio.sleep(0)
        return cleared

    async def _collect_objects(self) -> tuple[int, list[str]]:
        """Delete the objects that nothing names; return how many, and why some stay."""
        try:
            return await self._database.objects.collect(await self._projects()), []
        except ObjectStorageDown as error:
            return 0, [f"objects that nothing needs were not deleted from object storage: {error}"]

    async def _replays(self, expiries: Sequence[Expiry]) -> dict[tuple[str, str], Sequence[str]]:
        """Return the ids of the replays of all runs in the projects of these."""
        replays: dict[tuple[str, str], Sequence[str]] = {}
        for project in {one.judged.facts.project for one in expiries if one.part == "run"}:
            async with self._database.connection() as connection:
                reports = await load_replay_reports(connection, project)
            replays |= {(project, run): ids for run, ids in reports.replays.items()}
        return replays

    async def _names_without_run(self, project: str, replay_ids: Sequence[str]) -> list[str]:
        """Return the replays that are not forks. The run of a fork stays when its parent goes."""
        if not replay_ids:
            return []
        async with self._database.connection() as connection:
            rows = await connection.fetch(REPLAYS_WITHOUT_RUN, project, replay_ids)
        return [row["id"] for row in rows]

    async def _forget_expired(self) -> None:
        """Forget the runs that went in a pass which was killed before it could."""
        for project in await self._projects():
            async with self._database.connection() as connection:
                rows = await connection.fetch(EXPIRED, project)
            for row in rows:
                self._forget(project, row["run"])

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        """Hold the lock of retention, on a connection of its own. It ends with the process."""
        async with self._database.connection() as connection:
            connection.keep_session_state()
            if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
                raise RetentionBusy(
                    "retention is running on this database already, in this or another store server: wait until it ends"
                )
            try:
                yield
            finally:
                await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)


def _log_result(result: RetentionResult) -> None:
    if result.runs:
        parts = [one.part for one in result.runs]
        runs, bodies = parts.count("run"), parts.count("bodies")
        log.info("retention removed %d runs and the bodies of %d, and freed %d bytes", runs, bodies, result.freed)
    for warning in result.warnings:
        log.warning("retention: %s", warning)


EXPIRED = """
SELECT DISTINCT run FROM expirations AS expired
WHERE project = $1 AND part = 'run' AND NOT EXISTS (SELECT FROM runs WHERE runs.project = $1 AND runs.id = expired.run)
"""

REPLAYS_WITHOUT_RUN = """
SELECT replay.id FROM unnest($2::text[]) AS replay (id)
WHERE NOT EXISTS (SELECT FROM runs WHERE runs.project = $1 AND runs.id = replay.id)
"""

LEFT_PROJECTS = "SELECT DISTINCT project FROM expirations UNION SELECT DISTINCT project FROM objects"
