"""Rekeying stored calls under changed profiles: the report, the result, and what clients see of it."""

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from calls.derive import derive_call
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.model import Body, Chunk, Exchange, Request, Response
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from store.active_profiles import load_profiles
from store.api.app import create_app
from store.api.deps import Deps
from store.api.server import run_server
from store.bundle.bundle import Bundle, Entry, bundle_lines, read_bundle
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.ingest.ingester import Ingester
from store.ingest.insert_rows import DerivedExchange
from store.query.call_reader import CallReader
from store.query.rekey import Rekeyer
from tests.store.running_store import is_problem

URL = "https://tickets.example.com/v2/search"

PLAIN = load_profiles(None)
CHANGED = """
[[profile]]
name = "tickets/1"
extends = "rest/1"
match = { host = "tickets.example.com" }
transient = ["$.ref"]
"""
STRICTER = """
[[profile]]
name = "tickets/2"
match = { host = "tickets.example.com" }
key = ["$"]
headers = { key = ["x-tenant"] }
"""


def body(value: Any) -> Body:
    data = json.dumps(value).encode()
    return Body(data=data, size=len(data), chunks=(Chunk(0, 0, len(data)),))


def exchange(number: int, asked: Any, answer: Any, run: str = "run-1", **headers: str) -> Exchange:
    started = 1_795_311_000_000_000_000 + number * 1_000_000
    moment = f"{started // 1_000_000:012x}"
    return Exchange(
        id=f"{moment[:8]}-{moment[8:]}-7000-8000-{number:012x}",
        run=run,
        request=Request(method="POST", url=URL, headers=tuple(headers.items()), body=body(asked)),
        response=Response(status=200, headers=(("content-type", "application/json"),), body=body(answer)),
        outcome="completed",
        started_at=started,
        first_byte_at=1,
        ended_at=2,
    )


@asynccontextmanager
async def running_store(spools: Path, database: Database, profiles: Profiles) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the REST API over the stored runs under these profiles."""
    derived = partial(derive_call, profiles=profiles)
    store_server = Ingester(spools, BatchWriter(database, profile=profiles.digest), derived)
    desk = Deps(store_server=store_server, database=database, profiles=profiles, clean=str)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        async with run_server(create_app(desk, {}), port):
            url = f"http://127.0.0.1:{port.getsockname()[1]}"
            async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30) as client:
                yield client


async def store_exchanges(database: Database, exchanges: Sequence[Exchange], profiles: Profiles = PLAIN) -> None:
    kept = [DerivedExchange(one, derive_call(one, profiles)) for one in exchanges]
    await BatchWriter(database, profile=profiles.digest).write_batch(kept)


async def rekey(api: httpx2.AsyncClient, **wanted: Any) -> list[dict[str, Any]]:
    answer = await api.post("/v1/rekey", json=wanted)
    assert answer.status_code == 200, answer.text
    return [line for line in map(json.loads, answer.text.splitlines()) if "done" not in line]


async def bundle(api: httpx2.AsyncClient, run: str = "run-1") -> Bundle:
    lines = (await api.get(f"/v1/runs/{run}/bundle?settled=false")).content.splitlines(keepends=True)
    return read_bundle(lines)


def keys(found: Bundle) -> list[str]:
    return [str(entry.call["key"]) for entry in found.entries if entry.call]


MEETING = [
    exchange(1, {"q": "a", "ref": 1}, {"found": 1}),
    exchange(2, {"q": "b", "ref": 2}, {"found": 2}),
    exchange(3, {"q": "a", "ref": 3}, {"found": 3}),
    exchange(4, {"q": "b", "ref": 4}, {"found": 2}),
]


async def test_rekey_a_run_and_list_the_calls_that_now_match(tmp_path: Path, database: Database) -> None:
    await store_exchanges(database, MEETING)
    changed = load_profiles(CHANGED)
    async with running_store(tmp_path, database, changed) as api:
        run, end = await rekey(api, runs=["run-1"])
        assert run["counts"] == {"runs": 1, "calls": 4, "changed": 4, "unchanged": 0, "collide": 1, "part": 0}
        # Steps 2 and 4 share a key now as well, but have the same answer.
        assert [one["steps"] for one in run["collide"]] == [[1, 3]]
        assert (end["end"], end["changed"], end["profiles"]) == (True, 4, changed.digest)
        answer = (await api.get("/v1/runs/run-1/calls")).json()["items"]
        assert [call["nth"] for call in answer] == [0, 0, 1, 1]
        assert {call["profile"] for call in answer} == {"tickets/1"}
        assert [call["key"] for call in answer] == [make_key(one.request, changed).key for one in MEETING]
        assert (await api.get("/v1/runs/run-1")).json()["profile"] == changed.digest


async def test_keyed_twice_is_keyed_once(tmp_path: Path, database: Database) -> None:
    await store_exchanges(database, MEETING)
    async with running_store(tmp_path, database, load_profiles(CHANGED)) as api:
        await rekey(api)
        [run, end] = await rekey(api)
    assert (run["counts"]["changed"], run["counts"]["unchanged"], run["collide"], end["runs"]) == (0, 4, [], 1)


async def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path, database: Database) -> None:
    await store_exchanges(database, MEETING)
    async with running_store(tmp_path, database, load_profiles(CHANGED)) as api:
        before = (await api.get("/v1/runs/run-1/calls")).json()["items"]
        [run, end] = await rekey(api, dry_run=True)
        assert (run["counts"]["changed"], end["dry_run"]) == (4, True)
        assert (await api.get("/v1/runs/run-1/calls")).json()["items"] == before
        assert (await api.get("/v1/runs/run-1")).json()["profile"] == PLAIN.digest


async def test_calls_whose_keys_now_differ_are_listed_by_step(tmp_path: Path, database: Database) -> None:
    tenants = ("a", "b", "a")
    await store_exchanges(
        database, [exchange(n, {"q": 1}, {}, **{"x-tenant": name}) for n, name in enumerate(tenants, 1)]
    )
    async with running_store(tmp_path, database, load_profiles(STRICTER)) as api:
        [run, _] = await rekey(api)
    assert [one["steps"] for one in run["part"]] == [[[1, 3], [2]]]
    assert run["counts"]["collide"] == 0


async def test_all_runs_or_those_that_are_named(tmp_path: Path, database: Database) -> None:
    for run in ("run-1", "run-2", "run-3"):
        await store_exchanges(database, [exchange(int(run[-1]), {"ref": 1}, {}, run)])
    async with running_store(tmp_path, database, load_profiles(CHANGED)) as api:
        *some, end = await rekey(api, runs=["run-2", "run-1", "run-2"])
        assert [one["run"] for one in some] == ["run-2", "run-1"]
        assert end["runs"] == 2
        *every, end = await rekey(api)
        assert {one["run"]: one["counts"]["changed"] for one in every} == {"run-1": 0, "run-2": 0, "run-3": 1}
        is_problem(await api.post("/v1/rekey", json={"runs": ["run-1", "nobody"]}), 404, "unknown_run")
        is_problem(await api.post("/v1/rekey", json={"runs": ["no/run"]}), 422)


async def test_other_rules_than_the_store_server_s_are_refused(tmp_path: Path, database: Database) -> None:
    async with running_store(tmp_path, database, PLAIN) as api:
        wanted = {"profiles": load_profiles(CHANGED).digest}
        problem = is_problem(await api.post("/v1/rekey", json=wanted), 409, "other_rules")
        assert "restart `playhead up`" in problem["detail"]


async def test_a_bundle_has_the_keys_of_its_recording_until_it_is_keyed_again(
    tmp_path: Path, database: Database
) -> None:
    await store_exchanges(database, MEETING)
    changed = load_profiles(CHANGED)
    async with running_store(tmp_path, database, changed) as api:
        before = await bundle(api)
        assert before.profiles == PLAIN.digest
        assert keys(before) == [make_key(one.request, PLAIN).key for one in MEETING]
        await rekey(api)
        after = await bundle(api)
        assert after.profiles == changed.digest
        assert keys(after) == [make_key(one.request, changed).key for one in MEETING]


async def test_a_replay_of_a_run_that_was_recorded_under_other_rules_says_so(
    tmp_path: Path, database: Database
) -> None:
    await store_exchanges(database, [exchange(1, {"q": "a"}, {"found": 1}, **{"x-tenant": "one"})])
    stricter = load_profiles(STRICTER)
    async with running_store(tmp_path, database, stricter) as api:
        made = build_recording(await bundle(api), stricter)
    assert made.is_rekeyed
    now = exchange(1, {"q": "a"}, {}, **{"x-tenant": "other"}).request
    assert make_key(now, PLAIN).key == made.index.entries[0].recorded_key
    answer = await Session("replay-1", made, ReplayOptions(), lambda _: None).answer(now)
    assert answer is not None
    assert json.loads(answer.body)["playhead"]["reason"] == "profile_changed"


async def test_a_run_is_written_whole_or_not_at_all(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_exchanges(database, MEETING)
    changed = load_profiles(CHANGED)
    work = Rekeyer(database, CallReader(database, partial(derive_call, profiles=changed)), changed)
    monkeypatch.setattr("store.query.rekey.WRITE_BATCH", 1)
    seen = 0
    stream = work.rekey_run("run-1", dry=False)
    async for _ in stream:
        seen += 1
        if seen == 3:  # two of the four rows are changed
            break
    await stream.aclose()
    async with running_store(tmp_path, database, changed) as api:
        calls = (await api.get("/v1/runs/run-1/calls")).json()["items"]
        assert {call["profile"] for call in calls} == {"rest/1"}
        assert (await api.get("/v1/runs/run-1")).json()["profile"] == PLAIN.digest


async def test_a_run_whose_evidence_is_damaged_is_named_and_the_others_go_on(
    tmp_path: Path, database: Database
) -> None:
    await store_exchanges(database, [exchange(1, {"ref": 1}, {}, "run-1")])
    await store_exchanges(database, [exchange(2, {"ref": 2}, {}, "run-2")])
    async with database.connection() as connection:
        await connection.execute("UPDATE exchanges SET request_digest = $1 WHERE run = 'run-2'", bytes(32))
    async with running_store(tmp_path, database, load_profiles(CHANGED)) as api:
        damaged, whole, end = await rekey(api)
    assert (damaged["run"], whole["run"], whole["counts"]["changed"]) == ("run-2", "run-1", 1)
    assert "digest" in damaged["failed"]
    assert end["failed"] == 1


@pytest.mark.parametrize("call", [None, {}, {"kind": "tool"}])
def test_a_line_of_a_bundle_that_tells_no_key_is_keyed_as_it_is_loaded(call: dict[str, Any] | None) -> None:
    one = exchange(1, {"q": "a"}, {"found": 1})
    made = build_recording(
        Bundle(run={"id": "run-1"}, profiles=PLAIN.digest, entries=(Entry(exchange=one, call=call),)), PLAIN
    )
    [entry] = made.index.entries
    assert (entry.key, entry.recorded_key) == (make_key(one.request, PLAIN).key, None)
    again = read_bundle(
        bundle_lines(Bundle(run={"id": "run-1"}, profiles=PLAIN.digest, entries=(Entry(exchange=one, call=call),)))
    )
    assert build_recording(again, PLAIN).index.entries[0].key == entry.key
