"""The parts that follow the record: they process the feed while the store server runs, and never delay it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from calls.model import Call, Exchange
from store.access.audit_log import delete_old_audit_entries
from store.database.connection import Database, DatabaseError
from store.drift.model_days import ModelDays
from store.feed.consumer import ConsumerRunner
from store.feed.feed import delete_old_entries
from store.feed.feed_watch import FeedWatch
from store.feed.idle_runs import IdleRunWatch
from store.feed.model_watch import ModelWatch
from store.feed.signal import FeedSignal
from store.search.fresh_texts import FreshTexts
from store.search.index import TextIndex
from store.sums.call_metrics import CallMetrics
from store.sums.day_sums import DaySums
from store.sums.run_sums import RunSums

if TYPE_CHECKING:
    from store.otlp.exporter import Exporter
    from store.otlp.sender import ExportState

log = logging.getLogger(__name__)

type Derive = Callable[[Exchange], Call]

CLEAN_EVERY = 3600.0
"""Seconds between two deletions of old entries of the feed."""

CLEAN_AGAIN_AFTER = 60.0
"""Seconds until a deletion that failed is tried again."""


class Followers:
    """All parts that follow the record."""

    def __init__(
        self,
        database: Database,
        signal: FeedSignal,
        derive: Derive,
        exporters: "Sequence[Exporter]" = (),
        *,
        fresh: FreshTexts | None = None,
    ) -> None:
        """`fresh` has the texts of calls that this process has just stored."""
        self._database = database
        self._signal = signal
        self.call_metrics = CallMetrics(database, time.time_ns())
        """What was stored since the start, for Prometheus."""

        self._consumers = (
            ConsumerRunner(database, RunSums(database), signal),
            ConsumerRunner(
                database,
                TextIndex(database, derive, fresh),
                signal,
                is_urgent=lambda: fresh is not None and fresh.is_half_full,
            ),
            ConsumerRunner(database, ModelWatch(), signal),
            ConsumerRunner(database, self.call_metrics, signal),
        )
        self._exporters = exporters

    @property
    def exports(self) -> "list[ExportState]":
        """How the exports are doing."""
        return [exporter.state for exporter in self._exporters]

    async def run(self) -> None:
        """Run them until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            for consumer in self._consumers:
                group.create_task(consumer.run())
            for exporter in self._exporters:
                group.create_task(exporter.run())
            group.create_task(FeedWatch(self._database, self._signal).run())
            group.create_task(IdleRunWatch(self._database, time.time_ns).run())
            group.create_task(DaySums(self._database, time.time_ns).run())
            group.create_task(ModelDays(self._database).run())
            group.create_task(self._delete_old_entries())

    async def wait_until_caught_up(self) -> None:
        """Wait until all consumers have processed what is committed now."""
        for consumer in self._consumers:
            await consumer.wait_until_caught_up()

    async def rebuild_search(self, project: str) -> None:
        """Make the index of words of a project anew, beside everything else. Until it is made, searches find less."""
        for consumer in self._consumers:
            if consumer.name == TextIndex.name:
                await consumer.request_rebuild(project)

    async def finish_exports(self, patience: float) -> None:
        """Wait until all ended runs are exported, for so many seconds at most. What is not sent then is sent after the next start."""
        try:
            async with asyncio.timeout(patience):
                for exporter in self._exporters:
                    await exporter.wait_until_idle()
        except TimeoutError:
            log.info("some runs are exported after the next start")

    async def _delete_old_entries(self) -> None:
        while True:
            pause = CLEAN_EVERY
            try:
                async with self._database.connection() as connection, connection.transaction():
                    await delete_old_entries(connection, time.time_ns())
                    await delete_old_audit_entries(connection, time.time_ns())
            except DatabaseError as error:
                log.warning("old entries of the feed and of the audit log are deleted later: %s", error)
                pause = CLEAN_AGAIN_AFTER
            await asyncio.sleep(pause)
