"""A replay's report has every answer that a client has seen, however late the worker writes it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from calls.redaction.redactor import Redactor
from proxy.worker.replay_reports import SPARES, ReplayReports
from replay.replay_options import ReplayOptions
from replay.replays import Replays, ReplaySource
from store.api.routes.replays import new_report
from store.database.connection import Database
from store.spool import Spool, SpoolFull
from tests.replay.strategies import PROFILES, chat, exchange, model_answer, run_of
from tests.store.running_store import RunningStore, open_store


@asynccontextmanager
async def replaying(notes: ReplayReports) -> AsyncIterator[Replays]:
    """Return a replay `night` of two calls, one of which was requested."""
    replays = Replays(
        redactor=Redactor(key=b"k" * 32),
        profiles=PROFILES,
        options=ReplayOptions(),
        on_change=notes.mark_changed,
        may_begin=notes.begin,
    )
    run = run_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B")))
    await replays.start([ReplaySource(replay="night", bundle=run)])
    assert await replays.answer(chat("a"), run=None, owner="")
    yield replays


def noting(tmp_path: Path, spool: Spool) -> ReplayReports:
    (tmp_path / "replays").mkdir()
    return ReplayReports(file=None, spool=spool, directory=tmp_path / "replays", up=1)


def report_of(replay: str) -> dict[str, Any]:
    return new_report(replay, "night", 2)


async def served_count(running_store: RunningStore) -> int:
    answer = (await running_store.api.get("/v1/replays/night?settled=true")).json()
    assert answer["settled"]
    return int(answer["served"])


async def test_a_report_is_waited_for_until_the_worker_has_noted_it(tmp_path: Path, database: Database) -> None:
    spools = tmp_path / "spools"
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            notes = noting(tmp_path, spool)
            async with replaying(notes) as replays, asyncio.TaskGroup() as group:
                assert not await running_store.store_server.wait_until_settled(0.2, reports=True), (
                    "a client has seen its answer"
                )
                assert await running_store.store_server.wait_until_settled(10), "nothing else is lacking"
                asking = group.create_task(served_count(running_store))
                await notes.write_changes(replays)
            assert asking.result() == 1


async def test_what_a_killed_worker_did_not_note_is_not_waited_for(tmp_path: Path, database: Database) -> None:
    spools = tmp_path / "spools"
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            notes = noting(tmp_path, spool)
            async with replaying(notes) as replays:
                await notes.write_changes(replays)
                await replays.answer(chat("b"), run=None, owner="")
        assert await served_count(running_store) == 1


async def test_a_replay_that_begins_is_noted_in_a_file_that_is_ready(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        notes = noting(tmp_path, spool)
        notes._make_spare_files()
        spares = {path: path.stat().st_ino for path in (tmp_path / "replays").iterdir()}
        assert len(spares) == SPARES
        for number in range(SPARES + 1):
            assert notes.begin(f"night-{number}", report_of(f"night-{number}"))
        files = list((tmp_path / "replays").iterdir())
        assert len(files) == SPARES + 1, "once there is none left, a replay makes its own"
        assert {json.loads(path.read_bytes())["id"] for path in files} == {f"night-{n}" for n in range(SPARES + 1)}
        assert {path: path.stat().st_ino for path in files}.items() > spares.items()
        # A worker that follows a killed one. Files that nobody used say nothing.
        notes._make_spare_files()
        successor = ReplayReports(file=None, spool=spool, directory=tmp_path / "replays", up=1)
        successor.report_interrupted_replays()
        assert not successor.begin("night-3", report_of("night-3"))
        assert successor.begin("day", report_of("day"))
        assert len(list((tmp_path / "replays").iterdir())) == SPARES + 2
        successor._make_spare_files()
        successor.close()
        notes.close()
        assert not list((tmp_path / "replays").iterdir())


async def test_a_full_spool_ends_no_worker_and_is_tried_again(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    spools = tmp_path / "spools"
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            notes = noting(tmp_path, spool)
            async with replaying(notes) as replays:
                with monkeypatch.context() as full:
                    full.setattr(spool, "append", _full)
                    await notes.write_changes(replays)
                assert not await running_store.store_server.wait_until_settled(0.1, reports=True)
                await notes.write_changes(replays)
                assert await served_count(running_store) == 1


def _full(*_: object) -> int:
    raise SpoolFull("there is no room")
