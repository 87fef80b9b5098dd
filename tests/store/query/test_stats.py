"""What a run cost, which model was slow, which tool was called how often: sums of calls in groups."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.query.filters import Filters
from store.query.stats.groupings import Grouping
from store.query.stats.stats import Stats
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, RunningStore, import_bundle, is_problem, open_store
from tests.store.samples import NOON, SECOND, exchange

HOUR = 3600


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def record(running_store: RunningStore, name: str, **agent: Any) -> None:
    """Store a run of two turns: two calls of a model and two of a tool."""
    exchanges = Agent(turns=2, **agent).run(name)
    bundle = Bundle(
        run={"id": name}, profiles=PROFILES.digest, entries=tuple(Entry(exchange=each) for each in exchanges)
    )
    await import_bundle(running_store, b"".join(bundle_lines(bundle)))


async def stats(running_store: RunningStore, *, settled: bool = True, **query: Any) -> dict[str, Any]:
    """The answer, of all that is stored. `settled=False`: do not wait for the sums, where nothing makes any."""
    response = await running_store.api.get("/v1/stats", params={"settled": str(settled).lower()} | query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_groups_add_up_to_the_total(running_store: RunningStore) -> None:
    await record(running_store, "a")
    await record(running_store, "b", offset=HOUR, status=lambda turn: 500 if turn else 200)
    for grouping in ("run", "model", "provider", "host", "kind", "dialect", "operation", "status", "day", "hour"):
        found = await stats(running_store, group_by=grouping)
        for name in ("calls", "exchanges", "errors"):
            assert sum(item[name] for item in found["items"]) == found["total"][name], grouping
        assert found["total"]["calls"] == 8
        assert found["total"]["errors"] == 1
        assert found["settled"] is True


async def test_tokens_and_costs_are_those_of_the_runs(running_store: RunningStore) -> None:
    await record(running_store, "a")
    await record(running_store, "b", offset=HOUR)
    by_run = {item["group"]["run"]: item for item in (await stats(running_store, group_by="run"))["items"]}
    for name in ("a", "b"):
        run = (await running_store.api.get(f"/v1/runs/{name}")).json()
        assert by_run[name]["usage"] == run["tokens"]
        assert by_run[name]["cost_usd"] == run["cost_usd"]
        assert by_run[name]["calls"] == run["calls"]


async def test_counts_are_whole_numbers_also_where_they_are_round(running_store: RunningStore) -> None:
    await record(running_store, "a", tokens=lambda _: 30_000)
    await record(running_store, "b", offset=HOUR, tokens=lambda _: 5_000)
    for grouping in ("run", "model", "day"):
        found = await stats(running_store, group_by=grouping)
        for sums in (*found["items"], found["total"]):
            counts = [count for count in sums["usage"].values() if count is not None]
            assert {type(count) for count in (*counts, sums["calls"], sums["calls_without_price"])} == {int}, sums
    assert (await stats(running_store, group_by="run"))["total"]["usage"]["input_tokens"] == 70_000


async def test_a_tool_counts_where_a_model_requests_it_and_where_it_is_called(running_store: RunningStore) -> None:
    await record(running_store, "a")
    found = await stats(running_store, group_by="tool")
    assert {item["group"]["tool"]: item["calls"] for item in found["items"]} == {"search": 2, "tools.example.com": 2}


@pytest.mark.parametrize("has_sums", [False, True])
async def test_a_tool_of_an_mcp_server_counts_by_its_name(
    tmp_path: Path, database: Database, *, has_sums: bool
) -> None:
    exchanges = [
        exchange(
            number,
            run="tools",
            url="https://mcp.example.com/mcp",
            request=json.dumps(
                {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}
            ).encode(),
            response=json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": []}}).encode(),
        )
        for number, name in enumerate(("look_up", "look_up", "delete_record"), 1)
    ]
    bundle = Bundle(
        run={"id": "tools"}, profiles=PROFILES.digest, entries=tuple(Entry(exchange=each) for each in exchanges)
    )
    async with open_store(tmp_path / "spool", database, follows=has_sums) as running_store:
        await import_bundle(running_store, b"".join(bundle_lines(bundle)))
        found = await stats(running_store, settled=has_sums, group_by="tool")
        assert {item["group"]["tool"]: item["calls"] for item in found["items"]} == {"look_up": 2, "delete_record": 1}
        patterns = (("delete_*", 1),) if has_sums else ()
        for tool, count in (("look_up", 2), ("mcp.example.com", 3), ("other", 0), *patterns):
            found = await stats(running_store, settled=has_sums, group_by="run", tool=tool)
            assert found["total"]["calls"] == count, tool
        calls = (await running_store.api.get("/v1/calls", params={"tool": "look_up"})).json()["items"]
        assert len(calls) == 2
        assert await stored_sums(database) is has_sums


async def stored_sums(database: Database) -> bool:
    async with database.connection() as connection:
        return bool(await connection.fetchval("SELECT count(*) FROM call_sums"))


async def test_filters_and_several_groupings_combine(running_store: RunningStore) -> None:
    await record(running_store, "a")
    await record(running_store, "b", offset=HOUR, model="gpt-5-2026-09-09")
    await running_store.api.patch("/v1/runs/b", json={"labels": {"team": "support"}})
    found = await stats(running_store, group_by=["label:team", "model"], model="gpt-5")
    groups = [item["group"] for item in found["items"]]
    assert sorted(groups, key=str) == [
        {"label:team": "support", "model": "gpt-5"},
        {"label:team": None, "model": "gpt-5"},
    ]
    assert (await stats(running_store, group_by="model", label="team=support"))["total"]["calls"] == 4
    every = (await stats(running_store, group_by="model"))["total"]["calls"]
    assert (await stats(running_store, group_by="model", label="!team=support"))["total"]["calls"] == every - 4
    assert (await stats(running_store, group_by="model", model="no-such-model"))["items"] == []


async def test_latencies_are_percentiles(running_store: RunningStore) -> None:
    await record(running_store, "a")
    total = (await stats(running_store, group_by="run"))["total"]
    assert set(total["duration_ms"]) == {"p50", "p90", "p99"}
    assert total["duration_ms"]["p50"] <= total["duration_ms"]["p90"] <= total["duration_ms"]["p99"]


async def test_an_unknown_grouping_is_refused_with_those_that_exist_and_so_are_too_many_and_none(
    running_store: RunningStore,
) -> None:
    for grouping in ("nothing", "label:", "id; drop table calls", ""):
        problem = is_problem(
            await running_store.api.get("/v1/stats", params={"group_by": grouping}), 422, "unknown_group"
        )
        assert "label:NAME" in problem["detail"], grouping
    is_problem(await running_store.api.get("/v1/stats"), 422)
    is_problem(await running_store.api.get("/v1/stats", params={"group_by": ["run", "model", "day", "hour"]}), 422)


async def test_groups_are_sorted_and_limited_and_the_total_is_of_all(running_store: RunningStore) -> None:
    await record(running_store, "a")
    await record(running_store, "b", offset=HOUR, status=lambda turn: 500)
    await record(running_store, "c", offset=2 * HOUR, repeated=frozenset((0, 1)))
    first = {"cost": "c", "tokens": "c", "calls": "c", "errors": "b", "name": "a"}
    whole = await stats(running_store, group_by="run")
    for sort, name in first.items():
        found = await stats(running_store, group_by="run", sort=sort, limit=1)
        assert [item["group"]["run"] for item in found["items"]] == [name], sort
        assert found["total"] == whole["total"]
    days = await stats(running_store, group_by="hour", sort="name")
    assert [item["group"] for item in days["items"]] == sorted((item["group"] for item in days["items"]), key=str)
    for wrong in ("sort=duration", "sort=", "limit=0", "limit=1001", "limit=all"):
        problem = is_problem(await running_store.api.get(f"/v1/stats?group_by=run&{wrong}"), 422, "invalid_request")
        assert problem["faults"][0]["where"] == f"query.{wrong.partition('=')[0]}"


async def test_a_group_without_calls_is_left_out_but_each_status_of_their_tries_is_shown(
    running_store: RunningStore, database: Database
) -> None:
    """A call that was limited and then answered is no failure: its first attempt made a group of no calls."""
    attempts = {"retried": ((429, 0), (200, 2)), "failed": ((429, 0), (429, 2)), "lasting": ((500, 0),)}
    for place, (run, tries) in enumerate(attempts.items()):
        made: dict[str, Any] = {
            "run": run,
            "url": "https://api.openai.com/v1/chat/completions",
            "request": b'{"model":"%b","messages":[]}' % run.encode(),
        }
        entries = tuple(
            Entry(exchange=exchange(number, at=NOON + seconds * SECOND, status=status, **made))
            for number, (status, seconds) in enumerate(tries, 10 * place)
        )
        bundle = Bundle(run={"id": run}, profiles=PROFILES.digest, entries=entries)
        await import_bundle(running_store, b"".join(bundle_lines(bundle)))
    assert (await stats(running_store, group_by="run"))["settled"]

    for uses_sums in (True, False):
        query = Stats(database, uses_sums=uses_sums).load_stats
        for grouping in ("run", "model"):
            items, total = await query(Filters(error=True), [Grouping(grouping)])
            assert {item["group"][grouping]: item["calls"] for item in items} == {"failed": 1, "lasting": 1}
            assert (total["calls"], total["errors"]) == (2, 2)
            first, _ = await query(Filters(error=True), [Grouping(grouping)], "name", 1)
            assert [item["group"][grouping] for item in first] == ["failed"], "an empty group takes no place"
        items, _ = await query(Filters(), [Grouping("status")])
        assert {item["group"]["status"]: (item["calls"], item["exchanges"]) for item in items} == {
            200: (1, 1),
            429: (1, 3),
            500: (1, 1),
        }
        items, _ = await query(Filters(statuses=(range(429, 430),)), [Grouping("run")])
        assert {item["group"]["run"]: (item["calls"], item["exchanges"]) for item in items} == {
            "retried": (0, 1),
            "failed": (1, 2),
        }
        items, _ = await query(Filters(error=True), [Grouping("status")])
        assert {item["group"]["status"]: item["calls"] for item in items} == {429: 1, 500: 1}
