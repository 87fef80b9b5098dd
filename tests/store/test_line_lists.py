"""Lists as lines: the whole result, page by page."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from store.api import line_lists
from store.database.connection import Database, DatabaseUnavailable
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.runs import Runs
from tests.store.running_store import PROFILES, RunningStore, is_problem, open_store
from tests.store.samples import exchange, model_call

LINES = {"accept": "application/x-ndjson"}
PATHS = ("/v1/calls", "/v1/runs", "/v1/runs/run-1/calls")


async def store_calls(database: Database, count: int = 9) -> None:
    made = [exchange(n, run=f"run-{n % 3}") for n in range(count)]
    batch = [DerivedExchange(one, model_call(one)) for one in made]
    await BatchWriter(database, profile=PROFILES.digest).write_batch(batch)


async def items_of(running_store: RunningStore, path: str, **query: str) -> list[dict[str, Any]]:
    """All items of a list, page by page."""
    items: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await running_store.api.get(path, params={**query, **cursor, "limit": "2"})).json()
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = {"cursor": page["next"]}


QUERIES: tuple[dict[str, str], ...] = (
    {},
    {"sort": "duration", "order": "asc"},
    {"fields": "id,started_at"},
    {"fields": "*"},
)


async def test_lines_are_the_items_of_all_pages(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_lists, "LINES_AT_ONCE", 2)
    monkeypatch.setattr(line_lists, "LINES_WITH_BODIES", 2)
    await store_calls(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        for path, query in itertools.product(PATHS, QUERIES):
            answer = await running_store.api.get(path, params=query, headers=LINES)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
            lines = [json.loads(line) for line in answer.text.splitlines()]
            assert len(lines) >= 3
            assert lines == await items_of(running_store, path, **query), (path, query)


async def test_lines_honour_filters_a_cursor_and_a_limit(tmp_path: Path, database: Database) -> None:
    await store_calls(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        whole = await items_of(running_store, "/v1/calls")
        limited = (await running_store.api.get("/v1/calls?limit=4", headers=LINES)).text.splitlines()
        assert [json.loads(line)["id"] for line in limited] == [item["id"] for item in whole[:4]]
        cursor = (await running_store.api.get("/v1/calls?limit=4")).json()["next"]
        rest = (await running_store.api.get("/v1/calls", params={"cursor": cursor}, headers=LINES)).text.splitlines()
        assert [json.loads(line)["id"] for line in rest] == [item["id"] for item in whole[4:]]
        none = await running_store.api.get("/v1/calls?model=absent", headers=LINES)
        assert (none.status_code, none.content) == (200, b"")


async def test_what_is_wrong_before_the_first_line_is_an_ordinary_problem(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        is_problem(await running_store.api.get("/v1/calls?modle=x", headers=LINES), 400, "unknown_parameter")
        is_problem(await running_store.api.get("/v1/calls?cursor=x", headers=LINES), 422, "bad_cursor")
        is_problem(await running_store.api.get("/v1/calls?fields=", headers=LINES), 422, "unknown_field")
        is_problem(await running_store.api.get("/v1/runs?fields=text"), 422, "unknown_field")
        is_problem(await running_store.api.get("/v1/runs/absent/calls", headers=LINES), 404, "unknown_run")


async def test_lines_that_break_off_end_with_a_problem(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_lists, "LINES_AT_ONCE", 2)
    await store_calls(database)
    whole, count = CallReader.calls, 0

    async def fail_on_the_third(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise DatabaseUnavailable("Postgres is not available: it stopped.")
        return await whole(*arguments, **more)

    monkeypatch.setattr(CallReader, "calls", fail_on_the_third)
    async with open_store(tmp_path / "spool", database) as running_store:
        lines = [
            json.loads(line) for line in (await running_store.api.get("/v1/calls", headers=LINES)).text.splitlines()
        ]
    assert [line.get("incomplete") for line in lines] == [None] * 4 + [True]
    assert (lines[-1]["type"], lines[-1]["status"]) == ("urn:playhead:problem:database_unavailable", 503)


async def test_a_run_that_is_deleted_while_it_is_read_ends_with_a_404(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_lists, "LINES_AT_ONCE", 2)
    await store_calls(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        cursor = (await running_store.api.get("/v1/runs/run-2/calls?limit=1")).json()["next"]
        list_of_all = (await running_store.api.get("/v1/calls?limit=2")).json()["next"]
        whole = CallReader.run_calls

        async def delete_after(queries: CallReader, run: str, *arguments: Any) -> Any:
            page = await whole(queries, run, *arguments)
            await Runs(database).delete(run)
            return page

        monkeypatch.setattr(CallReader, "run_calls", delete_after)
        lines = [
            json.loads(line)
            for line in (await running_store.api.get("/v1/runs/run-1/calls", headers=LINES)).text.splitlines()
        ]
        assert [line.get("status") for line in lines] == [200, 200, 404]
        assert lines[-1]["incomplete"]
        await Runs(database).delete("run-2")
        is_problem(await running_store.api.get("/v1/runs/run-2/calls", params={"cursor": cursor}), 404, "unknown_run")
        rest = (await running_store.api.get("/v1/calls", params={"cursor": list_of_all})).json()["items"]
        assert {item["run"] for item in rest} == {"run-0"}


async def test_fields_of_runs(tmp_path: Path, database: Database) -> None:
    await store_calls(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        whole = (await running_store.api.get("/v1/runs")).json()["items"]
        for names in (("name", "labels"), ("calls", "started_at")):
            found = (await running_store.api.get("/v1/runs", params={"fields": ",".join(names)})).json()["items"]
            assert found == [{name: run[name] for name in run if name in (*names, "id")} for run in whole]
