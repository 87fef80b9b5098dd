"""Runs that end are exported once, in spite of restarts and of targets that are down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from store.database.connection import Database
from store.feed.entries import RunBegan
from store.feed.feed import KEEP, append_entries, delete_old_entries
from store.feed.signal import FeedSignal
from store.otlp.exporter import Exporter
from store.otlp.metrics import export_lines, export_troubles
from store.otlp.target import ExportTarget, SpanOptions
from store.query.runs import Runs
from tests.store.otlp.receiver import Receiver, receiving
from tests.store.otlp.recorded import agent, attributes, claude, derive, store_run
from tests.store.samples import NOON


def exporter_to(database: Database, url: str, **target: Any) -> Exporter:
    return Exporter(database, derive, ExportTarget(endpoint=url, **target), FeedSignal(), now=lambda: NOON)


async def export_all(exporter: Exporter) -> None:
    while await exporter.export_new():
        pass


def runs_of(receiver: Receiver) -> list[str]:
    return [attributes(span)["session.id"] for span in receiver.spans if not span.parent_span_id]


@asynccontextmanager
async def exporting(exporter: Exporter) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(exporter.run())
        try:
            yield
        finally:
            task.cancel()


async def test_runs_are_exported_when_they_end(database: Database) -> None:
    async with receiving() as receiver:
        exporter = exporter_to(database, receiver.url)
        await store_run(database, claude("before"))
        await export_all(exporter)
        assert receiver.tries == 0, "runs that ended before the target was configured"
        await store_run(database, agent("open"), ends=False)
        await store_run(database, claude("done"))
        await export_all(exporter)
        assert runs_of(receiver) == ["done"]
        await Runs(database).patch("open", ended_at=NOON)
        await export_all(exporter)
        assert runs_of(receiver) == ["done", "open"]
        await exporter.close()


async def test_the_first_run_of_all_is_exported(database: Database) -> None:
    async with receiving() as receiver:
        first = exporter_to(database, receiver.url)
        await export_all(first)
        await first.close()
        await store_run(database, claude("first"))
        later = exporter_to(database, receiver.url)
        await export_all(later)
        await later.close()
        assert runs_of(receiver) == ["first"]


async def test_calls_that_are_stored_after_the_end_are_exported_too(database: Database) -> None:
    async with receiving() as receiver:
        exporter = exporter_to(database, receiver.url)
        await export_all(exporter)
        first, last = claude("late")
        await store_run(database, [first])
        await Runs(database).patch("late", ended_at=last.started_at + 1)
        await export_all(exporter)
        await store_run(database, [last], ends=False)
        await export_all(exporter)
        await exporter.close()
        names = [span.span_id for span in receiver.spans]
        assert len(names) == 5
        assert len(set(names)) == 3, "two calls and their run, the first twice under the same ids"


async def test_a_restarted_exporter_continues_where_it_was(database: Database) -> None:
    async with receiving() as receiver:
        for run in ("one", "two"):
            exporter = exporter_to(database, receiver.url)
            await export_all(exporter)
            await exporter.close()
            await store_run(database, claude(run))
        last = exporter_to(database, receiver.url)
        await export_all(last)
        await last.close()
        assert runs_of(receiver) == ["one", "two"]


async def test_only_runs_with_the_labels_are_exported(database: Database) -> None:
    async with receiving() as receiver:
        exporter = exporter_to(database, receiver.url, labels={"team": "red"})
        await export_all(exporter)
        for run, team in (("a", "red"), ("b", "blue")):
            await Runs(database).put(run, NOON, labels={"team": team})
            await store_run(database, claude(run))
        await export_all(exporter)
        await exporter.close()
        assert runs_of(receiver) == ["a"]


async def test_a_target_that_is_down_gets_its_runs_when_it_is_back(database: Database) -> None:
    async with receiving((503, {"retry-after": "0"}, b""), (503, {"retry-after": "0"}, b"")) as receiver:
        exporter = exporter_to(database, receiver.url, options=SpanOptions(project="agents"))
        await export_all(exporter)
        await store_run(database, claude("patient"))
        async with exporting(exporter), asyncio.timeout(60):
            await exporter.wait_until_idle()
        assert runs_of(receiver) == ["patient"]
        assert exporter.state.retries == 2
        assert exporter.state.trouble is None


async def test_a_run_that_is_refused_does_not_stop_the_others(database: Database) -> None:
    async with receiving((400, {}, b"bad span")) as receiver:
        exporter = exporter_to(database, receiver.url)
        await export_all(exporter)
        await store_run(database, claude("refused"))
        await store_run(database, claude("taken"))
        await export_all(exporter)
        await exporter.close()
        assert runs_of(receiver) == ["taken"]
        assert (exporter.state.refused, exporter.state.runs) == (1, 1)
        assert "playhead_store_export_refused_total" in "\n".join(export_lines([exporter.state]))


async def test_trouble_is_shown_while_a_target_does_not_answer(database: Database) -> None:
    exporter = exporter_to(database, "http://127.0.0.1:9")
    await export_all(exporter)
    await store_run(database, claude("waiting"))
    async with exporting(exporter), asyncio.timeout(60):
        while exporter.state.trouble is None:  # noqa: ASYNC110 - the state tells no one
            await asyncio.sleep(0.01)
    (trouble,) = export_troubles([exporter.state]).values()
    assert trouble.startswith("127.0.0.1:9 does not answer")


async def test_a_target_that_lags_more_than_a_week_behind_goes_on_with_what_is_left(database: Database) -> None:
    async with receiving() as receiver:
        exporter = exporter_to(database, receiver.url)
        await export_all(exporter)
        async with database.connection() as connection:
            await append_entries(connection, "default", [RunBegan("gone", NOON)], now=NOON)
            await delete_old_entries(connection, NOON + 2 * KEEP)
        await store_run(database, claude("left"))
        await export_all(exporter)
        await exporter.close()
        assert runs_of(receiver) == ["left"]
        assert exporter.state.lost == 1
