"""`/v1/runs/{a}/diff/{b}` over a real database gives the same result as a comparison in memory."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.api.routes import compare
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.diff.diff import compare_runs
from store.diff.steps import StepReader
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, RunningStore, import_bundle, is_problem, open_store

READING = StepReader(profiles=PROFILES, clean=str)


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        yield running_store


async def import_agent(running_store: RunningStore, name: str, agent: Agent) -> None:
    bundle = Bundle(
        run={"id": name}, profiles=PROFILES.digest, entries=tuple(Entry(exchange=each) for each in agent.run(name))
    )
    await import_bundle(running_store, b"".join(bundle_lines(bundle)))


async def test_two_runs_of_the_store_differ_as_they_do_in_memory(running_store: RunningStore) -> None:
    good, bad = Agent(), Agent(finds=lambda turn: {"found": "nothing" if turn == 1 else f"alpha {turn} beta"})
    await import_agent(running_store, "good", good)
    await import_agent(running_store, "bad", bad)
    difference = (await running_store.api.get("/v1/runs/good/diff/bad", params={"settled": "true"})).json()
    assert difference.pop("settled") is True
    assert difference == compare_runs(("good", good.run("good")), ("bad", bad.run("bad")), READING)
    assert difference["cause"]["words"].startswith(
        "step 4 (POST tools.example.com/search): a tool or service answered the same request"
    )


async def test_a_run_is_the_same_as_itself(running_store: RunningStore) -> None:
    await import_agent(running_store, "good", Agent())
    difference = (await running_store.api.get("/v1/runs/good/diff/good")).json()
    assert difference["same"] is True
    assert difference["cause"] is None
    assert difference["pairs"] == []


async def test_a_run_that_was_never_recorded_is_a_problem(running_store: RunningStore) -> None:
    await import_agent(running_store, "good", Agent())
    is_problem(await running_store.api.get("/v1/runs/good/diff/none"), 404, "unknown_run")
    is_problem(await running_store.api.get("/v1/runs/no%20name/diff/good"), 422, "invalid_request")


async def test_runs_that_are_too_long_together_are_refused_with_what_to_do(
    running_store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await import_agent(running_store, "good", Agent())
    count = len(Agent().run("good"))
    monkeypatch.setattr(compare, "MOST_COMPARED", 2 * count)
    assert (await running_store.api.get("/v1/runs/good/diff/good")).status_code == 200
    monkeypatch.setattr(compare, "MOST_COMPARED", 2 * count - 1)
    problem = await running_store.api.get("/v1/runs/good/diff/good")
    is_problem(problem, 507, "too_large")
    assert f"run good has {count} and run good has {count} requests" in problem.json()["detail"]
    assert "playhead export RUN -o FILE" in problem.json()["detail"]


async def test_a_comparison_ends_when_its_client_has_left(
    running_store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await import_agent(running_store, "good", Agent())
    gists: list[str] = []

    async def leave(_: object) -> bool:
        return True

    monkeypatch.setattr(compare, "_BATCH", 1)
    monkeypatch.setattr(compare, "make_gist", lambda exchange, _: gists.append(exchange.id))
    monkeypatch.setattr("starlette.requests.Request.is_disconnected", leave)
    assert (await running_store.api.get("/v1/runs/good/diff/good")).status_code == 499
    assert len(gists) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_thousand_calls_are_compared_within_the_patience_of_a_person(running_store: RunningStore) -> None:
    await import_agent(running_store, "good", Agent(turns=500, grows=False))
    await import_agent(
        running_store, "bad", Agent(turns=500, grows=False, finds=lambda turn: {"found": f"alpha {turn % 7} beta"})
    )
    # CPU time, the server's included, which runs here: wall-clock time would include other processes.
    began = time.process_time()
    difference = (await running_store.api.get("/v1/runs/good/diff/bad", timeout=100)).json()
    assert time.process_time() - began < 7.5
    assert difference["a"]["calls"] + difference["b"]["calls"] == 2000
    assert difference["equal_prefix"] == 15
