"""The client that queries all runs and calls, against the real API."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import playhead
import pytest
from playhead.filters import Filters, ListFilters, encode_query
from playhead.rest import fetch_json

from calls.derive import derive_call
from store.api.app import create_app
from store.api.openapi.document import openapi_document
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, RUN, import_bundle, open_store

TOKEN = "correct-horse-battery-staple"


@asynccontextmanager
async def _api(directory: Path, database: Database) -> AsyncIterator[str]:
    """The API with the example and some runs of an agent; its address."""
    async with open_store(directory / "spool", database, tokens=(TOKEN,)) as running_store:
        running_store.api.headers["authorization"] = f"Bearer {TOKEN}"
        await import_bundle(running_store)
        writer = BatchWriter(database, profile=PROFILES.digest)
        for number in range(5):
            made = Agent(turns=2, offset=10 * number).run(f"agent-{number}")
            await writer.write_batch([DerivedExchange(one, derive_call(one, profiles=PROFILES)) for one in made])
        # The index of words and the sums follow what is stored by a moment.
        for path in ("/v1/search?q=details&settled=true", "/v1/stats?group_by=run&settled=true"):
            assert (await running_store.api.get(path)).json()["settled"]
        yield str(running_store.api.base_url)


async def test_runs_calls_and_stats_are_read(tmp_path: Path, database: Database) -> None:
    def query(client: playhead.Client, url: str) -> None:
        assert [run.id for run in client.runs(model="gpt-4o-mini")] == [RUN]
        assert {run.id for run in client.runs()} == {RUN, *(f"agent-{number}" for number in range(5))}
        run = client.run(RUN)
        assert run == next(client.runs(model="gpt-4o-mini"))
        assert (run.complete, run.models) == (True, ("gpt-4o-mini",))
        models = list(client.calls(kind="model", provider="openai"))
        assert {call.kind for call in models} == {"model"}
        assert [call.step for call in client.calls(run="agent-1")] == [1, 2, 3, 4]
        whole = client.call(models[0].id)
        assert whole.id == models[0].id
        assert whole.raw["request"] is not None
        stats = client.stats("run", kind="model")
        assert {one.group["run"]: one.calls for one in stats}["agent-3"] == 2
        assert stats.total.calls == len(models)
        assert list(playhead.Client(url, TOKEN, project="another").runs()) == []
        assert [step["step"] for step in client.cost("agent-1", limit=2)["steps"]] == [1, 2]
        captured = client.envelope("agent-1")
        assert (captured["steps"], captured["code"]["labels"]) == (4, {})
        assert "sampling" in captured
        best = client.stats("run", sort="name", limit=1)
        assert [one.group["run"] for one in best] == [RUN]
        assert best.total.calls == client.stats("run").total.calls
        found = client.search('"subject-0 details"')
        assert {one.run for one in found} == {f"agent-{number}" for number in range(5)}
        assert {found[0].snippet[slice(*place)] for place in found[0].highlights} == {"subject-0 details"}
        assert {one.call for one in found} >= {call.id for call in client.calls(q='"subject-0 details"', kind="model")}

    async with _api(tmp_path, database) as url:
        await asyncio.to_thread(query, playhead.Client(url, TOKEN), url)


async def test_what_was_just_stored_is_found_by_a_client_that_waits(tmp_path: Path, database: Database) -> None:
    def query(client: playhead.Client) -> None:
        assert {one.run for one in client.search('"subject-0 details"', settled=True)} == {"agent-0"}
        assert client.stats("run", settled=True).total.calls == 4
        assert [run.calls for run in client.runs(settled=True, sort="tokens")] == [4]
        assert len(list(client.calls(q="details", settled=True))) > 0
        assert [call.step for call in client.calls(run="agent-0", settled=True)] == [1, 2, 3, 4]
        assert client.run("agent-0", settled=True).calls == 4
        assert client.cost("agent-0", settled=True)["settled"] is True
        assert client.envelope("agent-0", settled=True)["steps"] == 4
        assert client.diff("agent-0", "agent-0", settled=True)["settled"] is True
        assert client.get("/v1/drift", settled=True)["settled"] is True

    async with open_store(tmp_path / "spool", database, tokens=(TOKEN,)) as running_store:
        made = Agent(turns=2).run("agent-0")
        derived = [DerivedExchange(one, derive_call(one, profiles=PROFILES)) for one in made]
        await BatchWriter(database, profile=PROFILES.digest).write_batch(derived)
        await asyncio.to_thread(query, playhead.Client(str(running_store.api.base_url), TOKEN))


def test_a_wait_that_ends_in_vain_is_not_taken_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: dict[str, object] = {"items": [], "next": None, "total": {}, "settled": False}
    monkeypatch.setattr("playhead.client.fetch_json", lambda *_: answer)
    client = playhead.Client("http://127.0.0.1:9", "x")
    assert client.search("refund") == []
    for ask in (lambda: client.search("refund", settled=True), lambda: client.stats("run", settled=True)):
        with pytest.raises(TimeoutError, match="not everything that was recorded is stored yet"):
            ask()


async def test_a_search_has_as_many_texts_as_were_asked_for(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("playhead.client.MAX_PAGE", 2)
    async with _api(tmp_path, database) as url:
        client = playhead.Client(url, TOKEN)
        found = await asyncio.to_thread(lambda: [client.search("details", limit=limit) for limit in (1, 3, 5)])
    assert [len(texts) for texts in found] == [1, 3, 5]
    assert found[2][:3] == found[1]


async def test_pages_are_fetched_when_they_are_needed(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def count(path: str, *rest: object) -> dict[str, object]:
        fetched.append(path)
        return fetch_json(path, *rest)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr("playhead.client.fetch_json", count)
    monkeypatch.setattr("playhead.client.PAGE", 2)

    def query(client: playhead.Client) -> None:
        runs = client.runs()
        assert fetched == []
        assert len(list(islice(runs, 3))) == 3
        assert len(fetched) == 2
        assert len(list(runs)) == 3
        assert len(fetched) == 3

    async with _api(tmp_path, database) as url:
        await asyncio.to_thread(query, playhead.Client(url, TOKEN))


async def test_a_refusal_is_a_problem_with_its_type(tmp_path: Path, database: Database) -> None:
    def query(url: str) -> Iterator[playhead.Problem]:
        client = playhead.Client(url, TOKEN)
        asked: list[Callable[[], object]] = [
            lambda: client.run("nothing"),
            lambda: next(client.runs(status="9999")),
            lambda: playhead.Client(url, "wrong").stats("model"),
        ]
        for ask in asked:
            with pytest.raises(playhead.Problem) as caught:
                ask()
            yield caught.value

    async with _api(tmp_path, database) as url:
        problems = await asyncio.to_thread(lambda: list(query(url)))
    assert [(one.status, one.type.rpartition(":")[2]) for one in problems] == [
        (404, "unknown_run"),
        (422, "invalid_request"),
        (401, "token_required"),
    ]
    assert problems[0].title == "Not Found"
    assert str(problems[0]) == problems[0].detail
    assert problems[1].members["faults"]
    assert pickle.loads(pickle.dumps(problems[1])).detail == problems[1].detail


async def test_the_address_and_token_are_those_of_the_environment(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.delenv("PLAYHEAD_API_TOKEN", raising=False)
    monkeypatch.setenv("PLAYHEAD_API_TOKEN_FILE", str(tmp_path / "token"))
    async with _api(tmp_path, database) as url:
        monkeypatch.setenv("PLAYHEAD_API", url)
        assert (await asyncio.to_thread(playhead.Client().run, RUN)).id == RUN


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(playhead.Unreachable, match=r"cannot reach Playhead at http://127\.0\.0\.1:9"):
        playhead.Client("http://127.0.0.1:9", "x").run("any")


def test_filters_are_written_as_the_api_reads_them() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    query = encode_query({"since": noon, "label": {"a": "b", "c": None}, "status": [429, "5xx"], "error": True})
    assert query == "since=2026-11-21T12%3A00%3A00%2B00%3A00&label=a%3Db&label=c&status=429&status=5xx&error=true"
    assert encode_query({"min_cost": 0.000001, "fields": ["id", "text"]}) == "min_cost=0.000001&fields=id%2Ctext"
    with pytest.raises(ValueError, match="has no time zone"):
        encode_query({"until": datetime(2026, 11, 21)})  # noqa: DTZ001 - on purpose


def test_the_client_has_every_filter_of_the_api() -> None:
    from unittest.mock import Mock

    document = openapi_document(create_app(Mock(), {}))

    def names(path: str) -> set[str]:
        # The project is the client's own.
        others = {"limit", "cursor", "project"}
        return {one["name"] for one in document["paths"][path]["get"]["parameters"]} - others

    listed = set(ListFilters.__annotations__) | set(Filters.__annotations__)
    assert names("/v1/runs") == names("/v1/calls") == listed
    assert names("/v1/stats") - {"group_by", "sort"} == set(Filters.__annotations__)
