"""Events reach a client once and in order, however often it connects again."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calls.derive import derive_call
from store.database.connection import Database
from store.feed.entries import IDLE, ModelChanged, RunEnded
from store.feed.events import EventId, InvalidEventId
from store.feed.feed import BEGINNING, delete_old_entries, read_feed
from store.feed.idle_runs import IdleRunWatch
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, RunningStore, is_problem, open_store
from tests.store.samples import NOON

derive = partial(derive_call, profiles=PROFILES)


@dataclass(frozen=True)
class Event:
    """An event as a client reads it (WHATWG HTML 9.2.6)."""

    name: str
    id: str
    data: dict[str, Any]


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def store(database: Database, run: str, **agent: Any) -> None:
    calls = [(one, derive(one)) for one in Agent(turns=2, **agent).run(run)]
    await BatchWriter(database).write_batch([DerivedExchange(one, call) for one, call in calls])


async def read_events(
    running_store: RunningStore, count: int, connected: asyncio.Event | None = None, **request: Any
) -> list[Event]:
    """The next events of a stream, which is then left. `connected` is set when it begins."""
    events: list[Event] = []
    fields: dict[str, str] = {}
    async with asyncio.timeout(60), running_store.api.stream("GET", "/v1/events", **request) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if connected is not None:
                connected.set()
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "event" in fields:
                events.append(Event(fields["event"], fields.get("id", ""), json.loads(fields["data"])))
                fields = {}
                if len(events) == count:
                    return events
            else:
                fields = {}
    return events


START = "0-" + "0" * 32 + "-0"


async def read_all(running_store: RunningStore, count: int, after: str = START, **query: Any) -> list[Event]:
    return await read_events(running_store, count, headers={"Last-Event-ID": after}, params=query)


async def test_a_client_that_connects_again_after_each_event_misses_nothing(
    running_store: RunningStore, database: Database
) -> None:
    await store(database, "a")
    await store(database, "b")
    await running_store.api.patch("/v1/runs/a", json={"ended": True})
    whole = await read_all(running_store, 11)
    assert [event.name for event in whole] == [*["run.began", *["call"] * 4] * 2, "run.ended"]
    one_by_one: list[Event] = []
    for _ in whole:
        one_by_one += await read_all(running_store, 1, one_by_one[-1].id if one_by_one else START)
    assert one_by_one == whole
    assert len({event.id for event in whole}) == len(whole)


async def test_events_arrive_as_they_are_stored(running_store: RunningStore, database: Database) -> None:
    await store(database, "before")
    connected = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read_events(running_store, 5, connected))
        await connected.wait()
        await store(database, "after")
    assert [event.data["run"] for event in reading.result()] == ["after"] * 5


async def test_filters_select_events(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", actor="planner")
    await store(database, "b", offset=100, status=lambda turn: 500 if turn else 200)
    assert {event.data["run"] for event in await read_all(running_store, 5, run="b")} == {"b"}
    for query in ({"kind": "tool"}, {"tool": "tools.example.com"}, {"host": "tools.example.com"}):
        assert {event.data["kind"] for event in await read_all(running_store, 4, **query)} == {"tool"}
    [failed] = await read_all(running_store, 1, error="true")
    assert (failed.data["run"], failed.data["status"], failed.data["error"]) == ("b", 500, True)
    assert [event.data["status"] for event in await read_all(running_store, 1, status="5xx")] == [500]
    assert {event.data["actor"] for event in await read_all(running_store, 4, actor="planner")} == {"planner"}
    assert {event.name for event in await read_all(running_store, 2, type="run.began")} == {"run.began"}
    await running_store.api.patch("/v1/runs/b", json={"labels": {"team": "blue", "stage": "test"}})
    for label in (["team=blue"], ["stage", "team=blue"]):
        events = await read_all(running_store, 5, label=label)
        assert {event.data["run"] for event in events} == {"b"}, label
    assert {event.data["run"] for event in await read_all(running_store, 1, label="team", error="true")} == {"b"}
    for label in (["!team"], ["!team=blue", "!other"], ["!stage=test"]):
        assert {event.data["run"] for event in await read_all(running_store, 5, label=label)} == {"a"}, label
    is_problem(await running_store.api.get("/v1/events", params={"label": "=x"}), 422, "invalid_request")
    is_problem(await running_store.api.get("/v1/events", params={"modell": "gpt"}), 400, "unknown_parameter")
    is_problem(await running_store.api.get("/v1/events", params={"type": "calls"}), 422, "invalid_request")


async def test_a_call_has_what_a_list_of_calls_shows(running_store: RunningStore, database: Database) -> None:
    await store(database, "a")
    [event] = await read_all(running_store, 1, kind="model")
    [call, *_] = (await running_store.api.get("/v1/runs/a/calls")).json()["items"]
    for name in ("id", "kind", "provider", "dialect", "operation", "host", "status", "usage", "duration_ms", "actor"):
        assert event.data[name] == call[name], name
    assert event.data["at"] == call["started_at"]


async def test_an_id_whose_successors_are_gone_begins_with_a_reset(
    running_store: RunningStore, database: Database
) -> None:
    await store(database, "a")
    [first, *_] = await read_all(running_store, 1)
    await store(database, "b")
    async with database.connection() as connection:
        await delete_old_entries(connection, 1 << 62)
    await store(database, "c")
    reset, *rest = await read_all(running_store, 6, first.id)
    assert reset.name == "reset"
    assert {event.data["run"] for event in rest} == {"c"}


@pytest.mark.parametrize("words", ["", "x", "1-2-3", f"1-{'0' * 32}", f"{1 << 63}-{'0' * 32}-0", f"1-{'0' * 32}-٣"])
async def test_what_is_no_id_of_an_event_is_refused(running_store: RunningStore, words: str) -> None:
    with pytest.raises(InvalidEventId):
        EventId.parse(words)
    if words:
        is_problem(await running_store.api.get("/v1/events", params={"last_event_id": words}), 422, "bad_event_id")


async def test_no_more_streams_than_allowed(running_store: RunningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.api.routes.events.MOST_STREAMS", 0)
    is_problem(await running_store.api.get("/v1/events"), 503, "too_many_streams")


async def test_a_stream_ends_when_the_store_server_stops(running_store: RunningStore) -> None:
    async with asyncio.timeout(60), running_store.api.stream("GET", "/v1/events") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == ": connected"
        running_store.signal.close()
        assert all(line.startswith("retry:") or not line for line in [line async for line in lines])


async def test_a_run_that_falls_idle_ends_once_and_again_after_it_went_on(database: Database) -> None:
    async def ends() -> list[int]:
        async with database.connection() as connection:
            rows = await read_feed(connection, "default", BEGINNING)
        return [entry.at for row in rows for entry in row.entries if isinstance(entry, RunEnded)]

    await store(database, "a")
    now = NOON
    watches = [IdleRunWatch(database, lambda: now) for _ in range(2)]
    await asyncio.gather(*(watch.end_idle_runs() for watch in watches))
    assert await ends() == []
    now = NOON + IDLE + 3600 * 1_000_000_000
    await asyncio.gather(*(watch.end_idle_runs() for watch in watches))
    await watches[0].end_idle_runs()
    assert len(await ends()) == 1
    await store(database, "a", offset=7200)
    now += 2 * IDLE + 7200 * 1_000_000_000
    await asyncio.gather(*(watch.end_idle_runs() for watch in watches))
    assert len(await ends()) == 2


async def test_a_model_that_first_answers_to_a_name_is_announced_once(
    running_store: RunningStore, database: Database
) -> None:
    for number, fingerprint in enumerate(("fp_1", "fp_2", "fp_1", "fp_2", "fp_3")):
        await store(database, f"run-{number}", offset=number * 100, fingerprint=lambda _, mark=fingerprint: mark)
        await running_store.followers.wait_until_caught_up()
    found = await read_all(running_store, 2, type="drift")
    assert [(event.data["was_fingerprint"], event.data["fingerprint"]) for event in found] == [
        ("fp_1", "fp_2"),
        ("fp_2", "fp_3"),
    ]
    async with database.connection() as connection:
        rows = await read_feed(connection, "default", BEGINNING)
    assert sum(isinstance(entry, ModelChanged) for row in rows for entry in row.entries) == 2
