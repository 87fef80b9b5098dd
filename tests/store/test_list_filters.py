"""Each filter of lists over HTTP: it selects, it excludes, and it can be combined and repeated."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.look import list_options
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import Cost
from store.query.runs import Runs
from tests.store.running_store import PROFILES, RunningStore, is_problem, open_store
from tests.store.samples import NOON, SECOND, call, exchange, model_call

KEY = "sha256:" + "ab" * 32

CASES = {
    "since": ("2026-11-21T12:00:01Z", "2026-11-22T00:00:00Z"),
    "until": ("2026-11-22T00:00:00Z", "2026-11-21T00:00:00Z"),
    "label": ("team=blue", "team=red"),
    "model": ("gpt-5", "gpt-4"),
    "provider": ("openai", "anthropic"),
    "tool": ("refund", "search"),
    "host": ("api.openai.com", "api.anthropic.com"),
    "status": ("429", "404"),
    "kind": ("model", "retrieval"),
    "dialect": ("openai_chat", "anthropic"),
    "operation": ("chat", "embeddings"),
    "actor": ("planner", "reviewer"),
    "key": (KEY, "sha256:" + "00" * 32),
    "min_cost": ("0.25", "0.26"),
    "min_duration": ("2000", "2000.5"),
    "error": ("true", None),
    "parent": ("first", "second"),
    "incomplete": ("true", None),
    "q": ("night", "morning"),
}
"""By filter: a value that fits the wanted call and its run, and one that fits nothing."""

FITS_BOTH = {"until"}
"""Filters whose first value fits the other call, too."""


async def store_two(database: Database) -> None:
    """Store the call that every filter finds, and another."""
    other = exchange(0, run="other", actor="writer")
    wanted = exchange(
        1,
        run="wanted",
        url="https://api.openai.com/v1/chat/completions",
        status=429,
        actor="planner",
        ended_at=2 * SECOND,
        outcome="server_closed",
    )
    made = model_call(wanted, tools=["refund", "reply"], key=KEY, complete=False)
    cost = Cost(usd=Decimal("0.25"), prices="test")
    await BatchWriter(database, profile=PROFILES.digest).write_batch(
        [DerivedExchange(other, call(other)), DerivedExchange(wanted, made, cost=cost)]
    )
    await Runs(database).put("wanted", NOON + SECOND, "night shift", {"team": "blue"}, parent="first")


async def runs_of(running_store: RunningStore, path: str, query: Any) -> list[str]:
    answer = await running_store.api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    return [item["id" if path == "/v1/runs" else "run"] for item in items]


async def test_each_filter_selects_and_excludes(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_two(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        for path in ("/v1/runs", "/v1/calls"):
            # Waits for the sums of runs.
            assert (await running_store.api.get("/v1/runs?settled=true")).json()["settled"]
            assert await runs_of(running_store, path, {}) == ["wanted", "other"]
            for name, (fitting, absent) in CASES.items():
                found = await runs_of(running_store, path, {name: fitting})
                assert found == (["wanted", "other"] if name in FITS_BOTH else ["wanted"]), (path, name)
                if absent is not None:
                    assert await runs_of(running_store, path, {name: absent}) == [], (path, name)
            for name in ("error", "incomplete"):
                assert await runs_of(running_store, path, {name: "false"}) == ["other"], (path, name)
            begins = {"ref*": ["wanted"], "*": ["wanted", "other"], "ref": [], "xy*": [], "r_f*": []}
            for tool, fitting_runs in begins.items():
                assert await runs_of(running_store, path, {"tool": tool}) == fitting_runs, (path, tool)
            together = {name: fitting for name, (fitting, _) in CASES.items()}
            assert await runs_of(running_store, path, together) == ["wanted"]
            assert await runs_of(running_store, path, together | {"actor": "writer"}) == []
        # As where more runs fit than are looked up one by one.
        monkeypatch.setattr("store.query.call_reader.FEW_RUNS", 0)
        for name in ("label", "parent"):
            fitting, absent = CASES[name]
            assert await runs_of(running_store, "/v1/calls", {name: fitting}) == ["wanted"], name
            assert await runs_of(running_store, "/v1/calls", {name: absent}) == [], name


REPEATABLE = (
    *("model", "provider", "tool", "host", "status", "kind", "dialect", "operation", "actor", "key"),
    "label",
)


async def test_a_repeated_filter_fits_one_of_its_values_and_labels_all(tmp_path: Path, database: Database) -> None:
    await store_two(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        for path in ("/v1/runs", "/v1/calls"):
            for name, (fitting, absent) in CASES.items():
                if name in REPEATABLE and name != "label":
                    assert await runs_of(running_store, path, {name: [absent, fitting]}) == ["wanted"], (path, name)
                elif name != "label":
                    twice = await running_store.api.get(path, params={name: [fitting, absent or "false"]})
                    assert name in is_problem(twice, 400, "repeated_parameter")["detail"]
            both = {"host": ["api.openai.com", "tickets.example.com"]}
            assert await runs_of(running_store, path, both) == ["wanted", "other"]
            assert await runs_of(running_store, path, {"label": ["team", "team=blue"]}) == ["wanted"]
            assert await runs_of(running_store, path, {"label": ["team", "tier"]}) == []


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/calls"])
async def test_a_list_has_these_filters_and_the_commands_have_them_too(
    tmp_path: Path, database: Database, path: str
) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        known = is_problem(await running_store.api.get(path, params={"colour": "red"}), 400, "unknown_parameter")[
            "known"
        ]
    pages = {"cursor", "limit", "sort", "order", "fields", "settled"}
    assert set(known) - pages >= CASES.keys()
    assert set(list_options.FILTER_NAMES) == CASES.keys()


async def test_runs_have_the_same_filters_whether_their_sums_follow_or_not(tmp_path: Path, database: Database) -> None:
    """A list of runs is made from the sums of runs; of those that these lag behind, from the calls."""
    cases: list[dict[str, Any]] = [{name: fitting} for name, (fitting, _) in CASES.items()] + [
        {name: "false"} for name in ("error", "incomplete")
    ]
    cases += [{"model": ["gpt-5", "gpt-4"], "status": "4xx"}, {"tool": "refund", "error": "true"}, {"sort": "cost"}]
    cases += [{"host": "tickets.example.com", "status": "429"}, {"model": "gpt-5", "sort": "cost", "order": "asc"}, {}]
    await store_two(database)
    async with open_store(tmp_path / "spool", database) as running_store:
        assert (await running_store.api.get("/v1/runs?settled=true")).json()["settled"]

        async def answers() -> list[Any]:
            pages = [(await running_store.api.get("/v1/runs", params=case)).json()["items"] for case in cases]
            unsorted = [case for case in cases if "sort" not in case]
            return [
                *pages,
                [(await running_store.api.get("/v1/facets", params=case)).json()["runs"] for case in unsorted],
            ]

        followed = await answers()
        async with database.connection() as connection:
            # As if nothing had been summed since the first entry of the feed; then, as if everything was made anew.
            for statement in ("UPDATE feed_positions SET transaction = 0", "DELETE FROM feed_positions"):
                await connection.execute(statement)
                assert await answers() == followed, statement
