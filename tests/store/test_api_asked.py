"""Parameters of the REST API and their errors, searches for words, and what a bundle transfers."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from calls.project_runs import RUN_ID
from replay.report import Tally, build_report
from store.api.parameters import RUN_ID_PATTERN
from store.bundle.bundle import Bundle, bundle_lines, read_bundle
from store.database.connection import Database
from store.query.rest_shapes import ns_of, rfc3339
from tests.store.running_store import RunningStore, import_bundle, is_problem, open_store

CONTRACT = {
    *("id", "run", "served", "missed", "unused", "live", "edited", "ambiguous", "drift", "first_divergence", "verdict")
}
SAID = "In Reykjavík it rains"


async def get_items(running_store: RunningStore, path: str, **query: str) -> list[dict[str, Any]]:
    answer = await running_store.api.get(f"/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_what_a_model_said_and_what_it_asked_of_tools_is_found(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        run = (await import_bundle(running_store))["id"]
        for words in (SAID, "IT RAINS", '{"city":"Reykjavík"}', "weather {", "reykjavik", run[3:9]):
            assert [one["id"] for one in await get_items(running_store, "runs", q=words, settled="true")] == [run], (
                words
            )
        assert [call["step"] for call in await get_items(running_store, "calls", q=SAID)] == [3]
        assert [call["step"] for call in await get_items(running_store, "calls", q='{"city":"Reykjavík"}')] == [2, 1]
        for words in ("Oslo", "_ain", "reykjavix"):
            assert await get_items(running_store, "runs", q=words) == [], words


@given(st.text(alphabet="._:-aZ9/", max_size=5) | st.integers(125, 130).map(lambda size: "." * size))
def test_the_api_takes_for_a_run_s_id_what_the_worker_takes(text: str) -> None:
    assert bool(re.fullmatch(RUN_ID_PATTERN, text)) == bool(RUN_ID.fullmatch(text))


async def test_a_parameter_that_we_do_not_know_is_refused_by_name_and_a_time_that_is_none_in_one_sentence(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        for path, name in (
            ("/v1/runs?modle=gpt-5", "modle"),
            ("/v1/runs/x?settle=true", "settle"),
            ("/healthz?verbose", "verbose"),
        ):
            problem = is_problem(await running_store.api.get(path), 400, "unknown_parameter")
            assert repr(name) in problem["detail"]
            assert problem["known"] == sorted(problem["known"])
            if "runs?" in path:
                assert {"model", "since", "q", "cursor"} <= set(problem["known"])
                assert "model, operation" in problem["detail"]
        for text in ("garbage", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00", "\ud7ff", " "):
            problem = is_problem(
                await running_store.api.get("/v1/runs", params={"since": text}), 422, "invalid_request"
            )
            assert problem["detail"] == (
                f"invalid time since={text}: use a date and time with its offset, such as 2026-11-21T18:30:00Z"
            )


async def test_the_first_report_of_a_replay_has_all_that_later_ones_have(tmp_path: Path, database: Database) -> None:
    later = build_report(Tally(), replay="r", run="x", recorded=3, unused_steps=[], unused=3, allow_unused=False)
    async with open_store(tmp_path / "spool", database, mode="auto") as running_store:
        run = (await import_bundle(running_store))["id"]
        first = (await running_store.api.post("/v1/replays", json={"run": run, "id": "r"})).json()
        assert (await running_store.api.get("/v1/replays/r")).json() == first
        requested = first.pop("requested")  # the worker writes them with its own report
        assert (requested["overrides"], requested["fork"]) == ([], None)
        assert first == {name: later[name] for name in first} | {"run": run, "verdict": "unknown"}
        assert first.keys() >= CONTRACT


async def export_run(running_store: RunningStore, run: str) -> bytes:
    answer = await running_store.api.get(f"/v1/runs/{run}/bundle?proof=false")
    assert answer.status_code == 200
    return answer.content


async def test_a_bundle_that_was_imported_is_exported_as_the_same_bytes(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        run = (await import_bundle(running_store))["id"]
        for change in ({}, {"pinned": True, "labels": {"a": "b"}}, {"ended": True}, {"name": "the umbrella"}):
            assert (await running_store.api.patch(f"/v1/runs/{run}", json=change)).status_code == 200
            before = await export_run(running_store, run)
            assert (await running_store.api.delete(f"/v1/runs/{run}")).status_code == 200
            await import_bundle(running_store, before)
            assert await export_run(running_store, run) == before


async def test_what_only_a_run_says_of_itself_travels(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        run = (await import_bundle(running_store))["id"]
        bundle = read_bundle((await export_run(running_store, run)).splitlines(keepends=True))
        await running_store.api.delete(f"/v1/runs/{run}")
        began = "2026-11-21T22:00:00.000001Z"
        result = await import_bundle(
            running_store, told_otherwise(bundle, started_at=began, parent="first-try", forked_at=2)
        )
        assert (result["started_at"], result["parent"], result["forked_at"]) == (began, "first-try", 2)
        before = await export_run(running_store, run)
        await running_store.api.delete(f"/v1/runs/{run}")
        await import_bundle(running_store, before)
        assert await export_run(running_store, run) == before


async def test_what_cannot_be_is_not_believed(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        first = await import_bundle(running_store)
        bundle = read_bundle((await export_run(running_store, first["id"])).splitlines(keepends=True))
        for time in ("9999-01-01T00:00:00.000000Z", "soon", 7, "1969-01-01T00:00:00.000000Z"):
            await running_store.api.delete(f"/v1/runs/{first['id']}")
            run = await import_bundle(
                running_store, told_otherwise(bundle, started_at=time, ended_at=time, forked_at=-1, parent=7)
            )
            assert (run["started_at"], run["ended_at"]) == (first["started_at"], run["active_at"]), time
            assert (run["parent"], run["forked_at"]) == (None, None), time


def told_otherwise(bundle: Bundle, **options: Any) -> bytes:
    changed = Bundle(run={**bundle.run, **options}, profiles=bundle.profiles, entries=bundle.entries, gaps=bundle.gaps)
    return b"".join(bundle_lines(changed))


@given(st.integers(0, (1 << 63) - 1))
def test_a_time_is_read_as_it_was_written(ns: int) -> None:
    assert ns_of(rfc3339(ns)) == ns // 1000 * 1000


@given(st.text() | st.none() | st.integers() | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", fullmatch=True))
def test_any_text_is_a_time_or_none(text: Any) -> None:
    found_ns = ns_of(text)
    assert found_ns is None or rfc3339(found_ns) == text or found_ns < 0


async def test_the_page_for_people_is_styled_by_nothing_but_its_own_sheet(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        answer = await running_store.api.get("/docs")
        sheet = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
        assert sheet
        digest = base64.b64encode(hashlib.sha256(sheet[1].encode()).digest()).decode()
        policy = answer.headers["content-security-policy"]
        assert f"style-src 'sha256-{digest}'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert " style=" not in answer.text
        paths = json.loads((await running_store.api.get("/openapi.json")).content)["paths"]
        for path, methods in paths.items():
            for method in methods:
                assert f"<code>{method.upper()} {path}</code>" in answer.text
