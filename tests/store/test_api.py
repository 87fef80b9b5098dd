"""The REST API over real HTTP and a real Postgres: its answers and errors."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from calls.redaction.redactor import Redactor
from store.bundle.bundle import load_bundle
from store.database.connection import Database
from store.erasure import disk_traces
from store.query.call_reader import CallReader
from tests.store.running_store import EXAMPLE, RUN, import_bundle, is_problem, open_store

# Runs


async def test_a_run_is_made_named_labelled_pinned_ended_and_deleted(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        made = (
            await running_store.api.put("/v1/runs/night", json={"name": "Night", "labels": {"a": "1", "b": "2"}})
        ).json()
        assert (made["id"], made["name"], made["labels"], made["ended_at"]) == (
            "night",
            "Night",
            {"a": "1", "b": "2"},
            None,
        )
        changes = {"labels": {"a": None, "c": "3"}, "pinned": True, "ended": True}
        changed = (await running_store.api.patch("/v1/runs/night", json=changes)).json()
        assert (changed["labels"], changed["pinned"]) == ({"b": "2", "c": "3"}, True)
        assert changed["ended_at"] is not None
        assert (await running_store.api.put("/v1/runs/night")).json()["ended_at"] is None, (
            "a later request opens it again"
        )
        assert (await running_store.api.delete("/v1/runs/night")).status_code == 200
        is_problem(await running_store.api.get("/v1/runs/night"), 404, "unknown_run")
        is_problem(await running_store.api.delete("/v1/runs/night"), 404, "unknown_run")


async def test_runs_are_listed_newest_first_page_by_page(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        for n in range(5):
            await running_store.api.put(f"/v1/runs/run-{n}")
        seen, cursor = [], None
        while True:
            page = (
                await running_store.api.get("/v1/runs", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
            ).json()
            seen += [run["id"] for run in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == ["run-4", "run-3", "run-2", "run-1", "run-0"]


NARROWED = {
    "model=gpt-4o-mini": True,
    "model=gpt-5": False,
    "host=weather.example.com": True,
    "tool=weather": True,
    "provider=openai&status=200": True,
    "status=4xx": False,
    "label=branch=main": True,
    "label=branch": True,
    "label=branch=other": False,
    "label=!branch=other": True,
    "label=!other": True,
    "label=!branch=main": False,
    "label=!branch": False,
    "since=2026-11-21T22:30:00Z&until=2026-11-21T22:31:00Z": True,
    "until=2026-11-21T22:30:00Z": False,
    "since=2026-11-22T00:30:00%2B02:00": True,
    "since=2026-11-22T00:31:00%2B02:00": False,
    "since=2026-11-21T23:30:00+01:00": True,
    "since=9999-12-31T23:59:59Z": False,
    "since=0001-01-01T00:00:00Z": True,
    "until=1600-01-01T00:00:00Z": False,
    "incomplete=false": True,
    "q=4b1e": True,
    "q=nowhere": False,
}


async def test_lists_are_narrowed_by_the_contract_s_filters(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        for query, found in NARROWED.items():
            for noun in ("runs", "calls"):
                answer = await running_store.api.get(f"/v1/{noun}?{query}")
                assert answer.status_code == 200, answer.text
                assert bool(answer.json()["items"]) == found, (noun, query)


# Calls and exchanges


async def test_a_run_s_calls_come_in_the_order_of_their_steps(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        answer = (await running_store.api.get(f"/v1/runs/{RUN}/calls?settled=true&fields=*")).json()
        assert [call["step"] for call in answer["items"]] == [1, 2, 3]
        assert (answer["settled"], answer["next"]) == (True, None)
        last = answer["items"][2]
        assert last["answer"]["choices"][0]["message"]["content"] == last["text"]
        assert (await running_store.api.get(f"/v1/calls/{last['id']}")).json() == last


async def test_a_stored_body_comes_back_exactly_and_no_browser_acts_on_it(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        for exchange in load_bundle(EXAMPLE).exchanges:
            assert exchange.response is not None
            for side, body in (("request", exchange.request.body), ("response", exchange.response.body)):
                answer = await running_store.api.get(f"/v1/exchanges/{exchange.id}/{side}")
                assert answer.content == body.data
                assert "content-encoding" not in answer.headers
                assert answer.headers["content-type"] == "application/octet-stream"
                assert answer.headers["content-disposition"].startswith("attachment")
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "sandbox" in answer.headers["content-security-policy"]
                assert answer.headers["cache-control"] == "no-store"
        gzipped = await running_store.api.get(f"/v1/exchanges/{load_bundle(EXAMPLE).exchanges[1].id}/response")
        assert gzipped.headers["playhead-content-encoding"] == "gzip"
        assert gzipped.headers["playhead-content-type"] == "application/json"


async def test_an_exchange_and_its_chunks_have_the_form_of_the_contract(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        streamed = load_bundle(EXAMPLE).exchanges[2]
        answer = (await running_store.api.get(f"/v1/exchanges/{streamed.id}")).json()
        assert (answer["run"], answer["step"], answer["method"], answer["status"], answer["chunks"]) == (
            RUN,
            3,
            "POST",
            200,
            3,
        )
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", answer["started_at"])
        chunks = (await running_store.api.get(f"/v1/exchanges/{streamed.id}/chunks")).json()["items"]
        assert streamed.response is not None
        assert [(one["at_ns"], one["offset"], one["size"]) for one in chunks if one["side"] == "response"] == [
            (chunk.at, chunk.offset, chunk.size) for chunk in streamed.response.body.chunks
        ]


async def test_a_call_is_explained(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        exchange = (await running_store.api.get(f"/v1/calls/{load_bundle(EXAMPLE).exchanges[2].id}/explain")).json()
        assert exchange["key"] == exchange["stored_key"]
        assert exchange["selected"]["path"] == "/v1/chat/completions"


async def test_a_run_deleted_while_it_is_read_is_not_found(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, opened_up = CallReader._rows_by_id, CallReader._needed_parts

    async def between(self: CallReader, *what: Any) -> Any:
        await running_store.api.delete(f"/v1/runs/{RUN}")
        return await opened_up(self, *what)

    async def too_late(self: CallReader, ids: Iterable[str]) -> Any:
        await running_store.api.delete(f"/v1/runs/{RUN}")
        return await fetched(self, ids)

    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        call = (await running_store.api.get(f"/v1/runs/{RUN}/calls")).json()["items"][0]["id"]
        monkeypatch.setattr(CallReader, "_rows_by_id", too_late)
        is_problem(await running_store.api.get(f"/v1/calls/{call}"), 404, "unknown_call")
        monkeypatch.undo()
        await import_bundle(running_store)
        monkeypatch.setattr(CallReader, "_rows_by_id", too_late)
        # Summaries need no exchanges.
        assert (await running_store.api.get(f"/v1/runs/{RUN}/calls?fields=*")).json()["items"] == []
        monkeypatch.undo()
        await import_bundle(running_store)
        monkeypatch.setattr(CallReader, "_needed_parts", between)
        # Before the deletion removes what is left in the files it waits for older transactions: here, for that of the answer.
        monkeypatch.setattr(disk_traces, "SNAPSHOT_TRIES", 1)
        assert (await running_store.api.get(f"/v1/exchanges/{call}/response")).status_code == 200


async def test_what_a_client_says_of_a_run_is_redacted(tmp_path: Path, database: Database) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    said, labels = f"connected to https://x:{secret}@10.0.0.1", {f"key {secret}": "v", "plain": f"is {secret}"}
    labels["db_password"] = named = "a9 of the vault"
    clean = Redactor(key=b"k" * 32).redact_text
    async with open_store(tmp_path / "spool", database, clean=clean, mode="auto") as running_store:
        sent = (
            ("PUT", "r", {"name": said, "labels": labels}),
            ("PATCH", "r", {"name": said, "labels": labels}),
            ("POST", "r/gaps", {"gaps": [{"reason": said}]}),
        )
        answers = [
            await running_store.api.request(method, f"/v1/runs/{path}", json=body) for method, path, body in sent
        ]
        answers += [await running_store.api.get(f"/v1/runs{path}") for path in ("", "/r", "/r/gaps", "/r/bundle")]
    assert {answer.status_code for answer in answers} == {200, 201}
    assert not [answer.text for answer in answers if secret in answer.text or named in answer.text]
    assert "connected to" in answers[-1].text
    assert answers[-3].json()["labels"]["plain"].startswith("is PLAYHEAD_")


async def test_whoever_watches_a_command_adds_gaps_to_its_run(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await running_store.api.put("/v1/runs/r1", json={})
        gaps = [{"reason": "a connection to 10.0.0.1:443", "count": 3}]
        assert (await running_store.api.post("/v1/runs/r1/gaps", json={"gaps": gaps})).status_code == 201
        found = (await running_store.api.get("/v1/runs/r1/gaps")).json()["items"]
        run = (await running_store.api.get("/v1/runs/r1")).json()
        none = await running_store.api.post("/v1/runs/r1/gaps", json={"gaps": []})
        nobody = await running_store.api.post("/v1/runs/r2/gaps", json={"gaps": gaps})
    assert "10.0.0.1:443" in found[0]["reason"]
    assert (run["complete"], run["gaps"] >= 1) == (False, True)
    assert (none.status_code, nobody.status_code) == (422, 404)
