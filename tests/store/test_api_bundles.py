"""Bundles over REST: exported as imported, stored once however often they are sent, and never overwriting another run."""

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import asyncpg
import pytest
from msgspec.structs import replace

from calls.events import Gap, ReplayReported
from calls.model import Exchange
from store.api.routes import imports
from store.bundle import rows_bundle as packed
from store.bundle.bundle import BadBundle, Bundle, bundle_lines, load_bundle, read_bundle
from store.bundle.exchange_summary import summarize_exchange
from store.bundle.sealed_lines import seal_line
from store.database.connection import Database
from store.database.schema_version import SCHEMA
from store.database.tables import PARTITIONED
from store.ingest.batch_writer import BatchWriter
from store.query.rows_export import NAMED
from tests.store import exchanges as made
from tests.store.running_store import EXAMPLE, PROFILES, RUN, RunningStore, import_bundle, is_problem, open_store
from tests.store.samples import NOON, uuid7


def conversation(run: str, first: int = 0, count: int = 3) -> list[Exchange]:
    """Return a conversation with ids of its own."""
    turns = enumerate(made.conversation(count), first)
    return [replace(each, run=run, id=uuid7(NOON, n), started_at=NOON + n) for n, each in turns]


def content(run: str, exchanges: list[Exchange], *gaps: Gap) -> bytes:
    """Write a bundle file."""
    return b"".join(
        bundle_lines(dataclasses.replace(made.bundle(exchanges, gaps), run={"id": run, "labels": {"from": "test"}}))
    )


async def fetch_bundle(running_store: RunningStore, run: str) -> Bundle:
    answer = await running_store.api.get(f"/v1/runs/{run}/bundle")
    assert answer.status_code == 200, answer.text
    return read_bundle(answer.content.splitlines(keepends=True))


async def test_a_bundle_goes_out_as_it_came_in_the_same_each_time_and_is_there_once(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        assert (await import_bundle(running_store))["imported"] == 3
        again, example = await fetch_bundle(running_store, RUN), load_bundle(EXAMPLE)
        assert again.exchanges == example.exchanges
        assert [entry.call and entry.call["text"] for entry in again.entries] == [
            entry.call and entry.call["text"] for entry in example.entries
        ]
        assert again.profiles == PROFILES.digest
        one, two = [(await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content for _ in range(2)]
        assert one == two
        # Its own name is no other name.
        for path in ("/v1/import", f"/v1/import?as={RUN}"):
            sent = await running_store.api.post(path, content=EXAMPLE.read_bytes())
            assert (sent.status_code, sent.json()["imported"], sent.json()["calls"]) == (200, 0, 3), path


async def test_every_exchange_of_a_long_run_is_in_its_bundle(tmp_path: Path, database: Database) -> None:
    many = [each for n in range(90) for each in conversation("long", 3 * n)]
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        assert (await import_bundle(running_store, content("long", many)))["imported"] == 270
        bundle = await fetch_bundle(running_store, "long")
        assert bundle.exchanges == many
        nths = [entry.call["nth"] for entry in bundle.entries if entry.call]
        assert sorted(nths) == sorted(list(range(90)) * 3)


async def test_the_rows_of_a_run_are_its_bundle_with_only_the_keys_of_its_calls(
    tmp_path: Path, database: Database
) -> None:
    talk = conversation("long", count=30)
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        await import_bundle(running_store, content("long", talk))
        for run in (RUN, "long"):
            whole = await fetch_bundle(running_store, run)
            rows = packed.read_rows((await running_store.api.get(f"/v1/runs/{run}/rows")).content)
            assert (rows.exchanges, rows.profiles, rows.gaps) == (whole.exchanges, whole.profiles, whole.gaps)
            assert rows.run.items() <= whole.run.items()
            assert [entry.call for entry in rows.entries] == [
                {name: entry.call[name] for name in ("key", "profile")} for entry in whole.entries if entry.call
            ]
            assert isinstance(rows.entries, packed.StoredRun)
            named, same = packed.read_named_recording((await running_store.api.get(f"/v1/replays/{run}/rows")).content)
            assert (named.run, named.requested, same and same.exchanges) == (run, None, rows.exchanges)
            in_short = [(*one[:-1], one.load_exchange()) for one in rows.entries.summaries()]
            assert in_short == [(*summarize_exchange(entry)[:-1], entry.exchange) for entry in whole.entries]


async def test_the_rows_of_a_run_are_read_by_one_statement(tmp_path: Path, database: Database) -> None:
    statements: list[str] = []
    connect = database.connection_by_keys

    @asynccontextmanager
    async def note_statements() -> AsyncIterator[asyncpg.Connection]:
        async with connect() as connection:
            connection.add_query_logger(note := lambda logged: statements.append(logged.query))
            yield connection
            connection.remove_query_logger(note)

    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        with (
            patch.object(database, "connection_by_keys", note_statements),
            patch.object(database, "connection", side_effect=AssertionError("a further statement takes longer")),
            patch.object(database, "transaction", side_effect=AssertionError("a transaction takes two more")),
        ):
            assert (await running_store.api.get(f"/v1/replays/{RUN}/rows")).status_code == 200
    assert len(statements) == 1


async def test_rows_are_read_in_the_project_of_the_request(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        elsewhere = await running_store.api.get(f"/v1/replays/{RUN}/rows", params={"project": "north"})
        is_problem(elsewhere, 404, "unknown_replay")


async def test_the_rows_of_a_run_are_not_planned_for_each_run_anew(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        for _ in range(2):
            assert (await running_store.api.get(f"/v1/replays/{RUN}/rows")).status_code == 200
        async with database.connection_by_keys() as connection:
            plans = await connection.fetch(
                "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1", NAMED
            )
    assert [tuple(one) for one in plans] == [(2, 0)]


async def test_a_replay_that_has_the_name_of_a_run_is_answered_by_its_own_recording(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        await import_bundle(running_store, content("fork", conversation("fork")))
        report = {"id": "fork", "run": RUN, "requested": {"overrides": [], "fork": None, "options": {}}}
        writer = BatchWriter(database, project="default", profile=PROFILES.digest, signal=running_store.signal)
        await writer.write_batch((), replays=[ReplayReported("fork", json.dumps(report).encode())])
        # What cannot be said of the run of that name does not matter.
        async with database.connection() as connection:
            await connection.execute("UPDATE exchanges SET request_digest = NULL WHERE run = 'fork'")
            await connection.execute("UPDATE runs SET bodies_erased_at = 1 WHERE id = 'fork'")
        answer = await running_store.api.get("/v1/replays/fork/rows")
        named, recording = packed.read_named_recording(answer.content)
        assert (named.run, named.requested) == (RUN, report["requested"])
        assert recording is not None
        assert recording.exchanges == (await fetch_bundle(running_store, RUN)).exchanges
        is_problem(await running_store.api.get("/v1/runs/fork/rows"), 410)


async def test_rows_that_break_off_or_are_of_another_version_are_refused(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        rows = (await running_store.api.get(f"/v1/runs/{RUN}/rows")).content
    for size in range(len(packed.MAGIC), len(rows)):
        with pytest.raises(BadBundle, match="is incomplete"):
            packed.read_rows(rows[:size])
    other = rows.replace(SCHEMA.encode(), b"9" * len(SCHEMA), 1)
    with pytest.raises(BadBundle, match="another version"):
        packed.read_rows(other)


async def test_an_import_that_was_cut_off_is_completed_by_the_next(tmp_path: Path, database: Database) -> None:
    whole = conversation("half")
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store, content("half", whole[:2]))
        assert (await import_bundle(running_store, content("half", whole)))["imported"] == 1
        assert (await fetch_bundle(running_store, "half")).exchanges == whole


async def test_gaps_come_along(tmp_path: Path, database: Database) -> None:
    whole = conversation("torn")
    gap = Gap("torn", NOON, "the spool was full", whole[0].id)
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        run = await import_bundle(running_store, content("torn", whole, gap))
        assert (run["gaps"], run["complete"]) == (1, False)
        assert (await fetch_bundle(running_store, "torn")).gaps == (gap,)
        listed = (await running_store.api.get("/v1/runs/torn/gaps")).json()["items"]
        assert listed == [{"happened_at": "2026-11-21T12:00:00.000000Z", "reason": gap.reason, "exchange": whole[0].id}]


async def test_a_bundle_can_be_imported_under_another_name_beside_the_first(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        for status in (201, 200):
            answer = await running_store.api.post("/v1/import?as=second", content=EXAMPLE.read_bytes())
            assert (answer.status_code, answer.json()["calls"]) == (status, 3)
        first, second = await fetch_bundle(running_store, RUN), await fetch_bundle(running_store, "second")
        assert {each.run for each in second.exchanges} == {"second"}
        assert not {each.id for each in first.exchanges} & {each.id for each in second.exchanges}
        assert [each.request for each in first.exchanges] == [each.request for each in second.exchanges]


async def test_a_different_run_of_the_same_name_is_never_touched(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store, content("night", conversation("night")))
        before = await fetch_bundle(running_store, "night")
        other = content("night", conversation("night", first=10))
        problem = is_problem(await running_store.api.post("/v1/import", content=other), 409, "run_exists")
        assert "?as=NAME" in problem["detail"]
        assert await fetch_bundle(running_store, "night") == before


async def test_exchanges_that_another_run_has_are_not_lost_in_silence(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store, content("one", conversation("one")))
        stolen = content("two", conversation("two"))
        is_problem(await running_store.api.post("/v1/import", content=stolen), 409, "exchanges_exist")
        is_problem(await running_store.api.get("/v1/runs/two"), 404)
        assert (await fetch_bundle(running_store, "one")).exchanges == conversation("one")


def first(change: dict[str, object]) -> list[Exchange]:
    whole = conversation("bad")
    return [replace(whole[0], **change), *whole[1:]]


def split(value: str) -> list[Exchange]:
    whole = conversation("split")
    assert whole[0].response is not None
    return [replace(whole[0], response=replace(whole[0].response, headers=(("x-a", value),))), *whole[1:]]


IMPOSSIBLE: tuple[tuple[str, list[Exchange], str], ...] = (
    ("../etc", [], "not a valid run id"),
    ("bad", first({"id": "not-an-id"}), "not a uuidv7"),
    ("bad", first({"id": "010c0e0e-1111-4222-8333-444455556666"}), "is not a uuidv7"),
    ("bad", first({"id": "ffffffff-ffff-7fff-bfff-ffffffffffff"}), "lies in the future"),
    ("bad", first({"id": conversation("bad")[1].id}), "same id"),
    # A header that would split a response.
    *(("split", split(value), "line break") for value in ("a\r\nSet-Cookie: b", "a\nb", "a\0b")),
)


async def test_what_cannot_be_is_refused_and_nothing_of_it_is_stored(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        broken = EXAMPLE.read_bytes().replace(b"umbrella", b"umbrellb", 1)
        problem = is_problem(await running_store.api.post("/v1/import", content=broken), 422, "bad_bundle")
        assert problem["line"] == 2
        newer = seal_line(b'{"playhead":"bundle","format":3}')
        problem = is_problem(await running_store.api.post("/v1/import", content=newer), 422, "unknown_format")
        assert "version 3" in problem["detail"]
        for run, exchanges, why in IMPOSSIBLE:
            problem = is_problem(
                await running_store.api.post("/v1/import", content=content(run, exchanges)), 422, "bad_bundle"
            )
            assert why in problem["detail"], why
        assert (await running_store.api.get("/v1/runs")).json()["items"] == []


async def test_a_bundle_that_no_memory_would_hold_is_not_imported(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = content("large", conversation("large", count=20))
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        # Each request refers to the beginning of the one before.
        monkeypatch.setattr(imports, "LARGEST_UNPACKED", len(file))
        is_problem(await running_store.api.post("/v1/import", content=file), 413, "too_large")
        monkeypatch.setattr(imports, "LARGEST", len(file) - 1)
        is_problem(await running_store.api.post("/v1/import", content=file), 413, "too_large")


async def test_an_import_makes_the_tables_of_the_days_that_it_names(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        path = "/v1/import?days=2020-02-29,2020-03-01"
        assert (await running_store.api.post(path, content=EXAMPLE.read_bytes())).status_code == 201
    async with database.connection() as connection:
        for day in ("20200229", "20200301"):
            for table in PARTITIONED:
                assert await connection.fetchval("SELECT to_regclass($1)", f"{table.name}_{day}") is not None


@pytest.mark.parametrize(
    "days", ["2020-02-30", "2020-02-01,", "1999-12-31", "2099-01-01", ",".join(["2020-02-01"] * 401)]
)
async def test_an_import_makes_no_tables_of_days_that_cannot_be(tmp_path: Path, database: Database, days: str) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        answer = await running_store.api.post(f"/v1/import?days=2020-01-01,{days}", content=EXAMPLE.read_bytes())
        is_problem(answer, 422, "invalid_request")
        is_problem(await running_store.api.get(f"/v1/runs/{RUN}"), 404)
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT to_regclass('exchanges_20200101')") is None
