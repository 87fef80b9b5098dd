"""The documents of a stored run are those that its exchanges alone give."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Exchange
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.pricing.prices import call_cost
from store.query.rest_shapes import ns_of
from store.timeline.conversation import make_conversation
from store.timeline.from_exchanges import read_facts
from store.timeline.timeline import make_timeline
from tests.store.agents import Agent, interleave
from tests.store.running_store import PROFILES, RunningStore, import_bundle, is_problem, open_store


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


def team() -> list[Exchange]:
    agents = [
        Agent(turns=3, actor="planner").run("one"),
        Agent(turns=3, actor="worker", offset=3, status=lambda turn: 400 if turn == 2 else 200).run("other"),
    ]
    made = [replace(each, run="team") for each in interleave(*agents)]
    assert made[0].response is not None
    failed = replace(
        made[0],
        id=made[0].id[:-1] + ("0" if made[0].id[-1] != "0" else "1"),
        started_at=made[0].started_at - 2_000_000_000,
        response=replace(made[0].response, status=503),
    )
    return [failed, *made]


async def store(running_store: RunningStore, exchanges: Sequence[Exchange]) -> None:
    entries = tuple(Entry(exchange=each) for each in exchanges)
    await import_bundle(
        running_store, b"".join(bundle_lines(Bundle(run={"id": "team"}, profiles=PROFILES.digest, entries=entries)))
    )


async def get(running_store: RunningStore, path: str, **query: Any) -> dict[str, Any]:
    response = await running_store.api.get(f"/v1/runs/team/{path}", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_stored_run_has_the_documents_that_its_exchanges_give(running_store: RunningStore) -> None:
    exchanges = team()
    await store(running_store, exchanges)
    pairs = [(one, derive_call(one, PROFILES)) for one in exchanges]
    facts = read_facts(pairs, lambda one, call: cost.usd if (cost := call_cost(one, call)) else None)
    timeline = await get(running_store, "timeline")
    assert timeline["failed"]["first"]["error"] == "try later"
    expected = make_timeline(timeline["run"], ns_of(timeline["run"]["started_at"]) or 0, facts.steps, [])
    for one, other in zip(timeline["steps"], expected["steps"], strict=True):
        assert one == {**other, "error": other["error"], "cost_so_far_usd": pytest.approx(other["cost_so_far_usd"])}
    assert {name: timeline[name] for name in ("lanes", "failed", "gaps", "duration_ms", "next")} == {
        name: expected[name] for name in ("lanes", "failed", "gaps", "duration_ms", "next")
    }
    conversation = await get(running_store, "conversation")
    assert conversation["items"] == make_conversation(facts.spoken, facts.links)
    assert conversation["next"] is None


async def test_pages_add_up_to_the_whole(running_store: RunningStore) -> None:
    await store(running_store, team())
    for path, name in (("timeline", "steps"), ("conversation", "items")):
        whole = (await get(running_store, path))[name]
        pages: list[Any] = []
        after: int | None = 0
        while after is not None:
            page = await get(running_store, path, after=after, limit=5)
            pages += page[name]
            after = page["next"]
        assert [one["step"] for one in pages] == [one["step"] for one in whole]
        if path == "conversation":
            assert pages == whole
        else:
            assert [one["cost_so_far_usd"] for one in pages] == [one["cost_so_far_usd"] for one in whole]
            assert [one["start_ms"] for one in pages] == [one["start_ms"] for one in whole]


async def test_bad_requests_are_refused(running_store: RunningStore) -> None:
    await store(running_store, team())
    for path in ("timeline", "conversation"):
        is_problem(await running_store.api.get(f"/v1/runs/unknown/{path}"), 404, "unknown_run")
        for query in ("limit=0", "limit=9999", "after=-1", "after=x"):
            is_problem(await running_store.api.get(f"/v1/runs/team/{path}?{query}"), 422)
    assert (await get(running_store, "conversation", after=999))["items"] == []
