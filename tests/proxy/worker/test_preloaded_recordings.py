"""A run that is loaded ahead answers only as long as it is as it was."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from calls.events import EffectBatch, ReplayReported
from calls.keys.key import make_key
from calls.redaction.redactor import Redactor
from proxy.worker import preloaded_recordings, run_versions
from proxy.worker.preloaded_recordings import PreloadedRecordings
from proxy.worker.recordings import FoundRecording
from proxy.worker.run_versions import SharedVersions, StoredVersions, VersionReader
from proxy.worker.stored_recordings import preloader, run_lister, store_loader
from replay.replay_options import ReplayOptions
from replay.replays import LoadSource, Replays, ReplaySource
from store.api.routes import replays as replays_route
from store.bundle.rows_bundle import PRELOAD_HEADER
from store.database.connection import Database
from store.database.run_versions import NAMES, RunVersions
from store.feed import stored_versions
from store.feed.entries import RunChanged
from store.feed.feed import append_entries
from store.feed.stored_versions import serve_versions
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from tests.store.running_store import PROFILES, RunningStore, is_problem, open_store
from tests.store.samples import NOON, call, exchange, tool_exchange
from tests.support.service import Service, running

SECRET = "of this up"
PATIENCE = 60.0

type Change = Callable[[RunningStore, BatchWriter], Awaitable[object]]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a worker waits, which would fetch the run: no test here is about that."""
    monkeypatch.setattr(run_versions, "ANSWER_TIMEOUT", PATIENCE)
    monkeypatch.setattr(stored_versions, "READ_TIMEOUT", PATIENCE)


@asynccontextmanager
async def preloading(
    tmp_path: Path, database: Database, socket: Path | None = None, *, mode: str = "replay", follows: bool = True
) -> AsyncIterator[tuple[PreloadedRecordings, RunningStore]]:
    """A store server with the run `night`, and what loads its runs ahead. Versions are in shared memory or, with a socket, in the database."""
    announcements, shared = RunVersions.create(tmp_path / "versions"), SharedVersions(tmp_path / "versions")
    versions: VersionReader = (
        StoredVersions(socket, "default", shared.announced_replays) if socket is not None else shared
    )
    if socket is None:
        database.run_versions = announcements
    await BatchWriter(database, profile=PROFILES.digest).write_batch([tool_exchange(0, run="night")])
    async with (
        serve_versions(database, socket) if socket else nullcontext(),
        open_store(
            tmp_path / "spools",
            database,
            mode=mode,
            preload_secret=SECRET,
            announcements=announcements,
            follows=follows,
        ) as running_store,
    ):
        url = str(running_store.api.base_url)
        (tmp_path / "replays").mkdir()
        with closing(versions):
            yield (
                PreloadedRecordings(
                    fetch=store_loader(url, None),
                    fetch_many=preloader(url, None, SECRET),
                    list_runs=run_lister(url, None, "default"),
                    profiles=PROFILES,
                    versions=versions,
                    replays_directory=tmp_path / "replays",
                ),
                running_store,
            )


async def write_effects(_: RunningStore, writer: BatchWriter) -> None:
    batch = EffectBatch(
        id="01890000-0000-7000-8000-000000000001",
        run="night",
        process="p",
        observed_at=NOON,
        number=0,
        count=0,
        items=b"",
    )
    await writer.write_batch((), effects=[batch])


async def move_exchange(_: RunningStore, writer: BatchWriter) -> None:
    await writer.write_batch([replace(tool_exchange(1, run="day"), previous_run="night")])


CHANGES: dict[str, Change] = {
    "another exchange": lambda _, writer: writer.write_batch([tool_exchange(1, run="night")]),
    "that exchange turns out to be another run's": move_exchange,
    "labels": lambda running_store, _: running_store.api.patch("/v1/runs/night", json={"labels": {"a": "b"}}),
    "a replay of its name": lambda _, writer: writer.write_batch((), replays=[ReplayReported("night", b"{}")]),
    "effects": write_effects,
    "the deletion of a call": lambda running_store, _: running_store.api.delete(
        f"/v1/calls/{tool_exchange(0).exchange.id}"
    ),
    "its deletion": lambda running_store, _: running_store.api.delete("/v1/runs/night"),
}


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_changes_a_run_makes_what_was_loaded_ahead_worthless(
    tmp_path: Path, database: Database, data: Path, is_stored: bool
) -> None:
    async with preloading(tmp_path, database, data if is_stored else None) as (preloaded, running_store):
        writer = BatchWriter(database, profile=PROFILES.digest)
        for what, change in CHANGES.items():
            assert await preloaded.load_newest()
            found = await preloaded.take("night")
            assert found is not None, what
            assert found.recording is not None
            assert await preloaded.take("night") is None, "a recording is taken once"
            assert await preloaded.load_newest()
            done = await change(running_store, writer)
            assert not isinstance(done, httpx2.Response) or done.is_success, (what, done)
            assert await preloaded.take("night") is None, what


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_is_loaded_before_a_transaction_ends_is_worthless_after_it(
    tmp_path: Path, database: Database, data: Path, is_stored: bool
) -> None:
    async with preloading(tmp_path, database, data if is_stored else None) as (preloaded, _):
        async with database.connection() as connection, connection.transaction():
            await connection.execute("UPDATE runs SET encoding = gen_random_uuid() WHERE id = 'night'")
            await append_entries(connection, "default", [RunChanged("night", NOON)])
            assert await preloaded.load_newest()
        assert await preloaded.take("night") is None


async def test_a_run_is_fetched_while_the_store_server_does_not_say_its_version(
    tmp_path: Path, database: Database, data: Path
) -> None:
    async with preloading(tmp_path, database, data) as (preloaded, running_store):
        assert await preloaded.load_newest()
        os.rename(data, away := data.with_suffix(".away"))
        assert await preloaded.take("night") is not None, "the connection is there"
        assert await preloaded.load_newest()
        preloaded.versions.close()
        assert await preloaded.versions.state() is None
        assert await preloaded.take("night") is None, "nobody says that it is unchanged"
        os.rename(away, data)
        assert await preloaded.versions.state() is not None
        assert await preloaded.load_newest()
        database.obstacle, pool, database._pool = "The database is away.", database._pool, None
        assert await preloaded.take("night") is None, "the database does not say it either"
        database._pool = pool
        assert await preloaded.load_newest()
        async with database.connection() as connection:
            await connection.execute("UPDATE runs SET bodies_erased_at = 1 WHERE id = 'night'")
        assert await preloaded.take("night") is None, "its bodies go from now on"
        assert await preloaded.versions.read(["night", "unknown"]) == (None, None)
        assert (await running_store.api.get("/v1/runs/night")).is_success


async def test_a_store_server_that_cannot_say_versions_serves_without(database: Database, data: Path) -> None:
    path = data.with_name("x" * 200)
    async with serve_versions(database, path):
        assert await StoredVersions(path, "default").state() is None


async def until_loaded(preloaded: PreloadedRecordings) -> None:
    """Load what is expected."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        loading = group.create_task(preloaded.load_expected())
        await asyncio.gather(*(one.wait() for one in list(preloaded._loading.values())))
        loading.cancel()


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_run_that_is_expected_is_loaded_and_used_as_long_as_it_is_unchanged(
    tmp_path: Path, database: Database, data: Path, is_stored: bool
) -> None:
    async with preloading(tmp_path, database, data if is_stored else None, follows=False) as (preloaded, running_store):
        fetch, fetched = preloaded.fetch, []

        async def fetch_and_note(name: str) -> FoundRecording:
            fetched.append(name)
            return await fetch(name)

        preloaded.fetch = fetch_and_note
        preloaded.expect("night")
        preloaded.expect("night")
        preloaded.expect("other/night")
        await until_loaded(preloaded)
        found = await preloaded.fetch_or_take("night")
        assert found.recording is not None
        assert fetched == (["night"] if is_stored else ["night", "other/night"]), (
            "a socket says versions of its project"
        )
        preloaded.expect("night")
        await until_loaded(preloaded)
        await BatchWriter(database, profile=PROFILES.digest).write_batch([tool_exchange(1, run="night")])
        found = await preloaded.fetch_or_take("night")
        assert found.bundle is not None
        assert len(found.bundle.entries) == 2
        assert (await running_store.api.get("/v1/runs/night")).is_success


async def test_the_version_is_asked_for_when_the_head_of_a_request_has_come(
    tmp_path: Path, database: Database, data: Path
) -> None:
    async with preloading(tmp_path, database, data) as (preloaded, _):
        writer = BatchWriter(database, profile=PROFILES.digest)
        assert await preloaded.load_newest()
        preloaded.expect("night")
        versions = preloaded.versions
        assert isinstance(versions, StoredVersions)
        assert len(versions._questions) == 1
        await versions._questions[0].answer
        found = await preloaded.fetch_or_take("night")
        assert found.recording is not None
        assert not versions._questions

        assert await preloaded.load_newest()
        preloaded.expect("night")
        await versions._questions[0].answer  # the client of this request leaves
        await writer.write_batch([tool_exchange(1, run="night")])
        preloaded.expect("night")
        found = await preloaded.fetch_or_take("night")
        assert found.bundle is not None
        assert len(found.bundle.entries) == 2, "it was written before the second request came"


async def test_a_recording_is_made_by_the_thread_that_fetches_it_unless_it_is_edited(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with preloading(tmp_path, database, follows=False) as (preloaded, running_store):
        preloaded.fetch = fetch = store_loader(str(running_store.api.base_url), None, PROFILES)
        edited = {"run": "night", "id": "edited", "overrides": [{"step": 1, "text": "another"}]}
        assert (await running_store.api.post("/v1/replays", json=edited)).status_code == 201
        assert (await fetch("edited")).recording is None
        found = await fetch("night")
        assert found.recording is not None
        monkeypatch.setattr(preloaded_recordings, "build_recording", None)  # it is not made once more
        preloaded.expect("night")
        await until_loaded(preloaded)
        assert await preloaded.take("night") is not None


async def test_a_request_waits_for_a_run_that_is_being_loaded(tmp_path: Path, database: Database) -> None:
    async with preloading(tmp_path, database, follows=False) as (preloaded, _):
        fetch, fetched, go_on = preloaded.fetch, [], asyncio.Event()

        async def fetch_slowly(name: str) -> FoundRecording:
            fetched.append(name)
            await go_on.wait()
            return await fetch(name)

        preloaded.fetch = fetch_slowly
        preloaded.expect("night")
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(until_loaded(preloaded))
            asking = group.create_task(_result_of(preloaded.fetch_or_take("night")))
            await asyncio.sleep(0)
            go_on.set()
            await loading
        assert asking.result().recording is not None
        assert fetched == ["night"]
        for number in range(2 * preloaded_recordings.MOST_EXPECTED):
            preloaded.expect(f"night-{number}")
        assert len(preloaded._loading) == preloaded_recordings.MOST_EXPECTED


async def _result_of(found: Awaitable[FoundRecording]) -> FoundRecording:
    return await found


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_replay_that_was_created_over_rest_is_expected_with_its_options(
    tmp_path: Path, database: Database, data: Path, is_stored: bool
) -> None:
    async with preloading(tmp_path, database, data if is_stored else None, follows=False) as (preloaded, running_store):
        writer = BatchWriter(database, profile=PROFILES.digest)
        created = {"run": "night", "id": "again", "after_last": "cycle"}
        edited = {"run": "night", "id": "edited", "overrides": [{"step": 1, "text": "another"}]}
        for options in (created, edited):
            answer = await running_store.api.post("/v1/replays", json=options)
            assert answer.status_code == 201, answer.text
        preloaded.expect("edited")
        await until_loaded(preloaded)
        found = await preloaded.take("edited")
        assert found is not None
        assert found.recording is None, "its options say what is made of it"
        for change in (None, CHANGES["another exchange"]):
            preloaded.expect("again")
            await until_loaded(preloaded)
            if change is not None:
                await change(running_store, writer)
            found = await preloaded.take("again")
            if change is None:
                assert found is not None
                assert found.is_replay
                assert found.replay_options["options"]["after_last"] == "cycle"
                assert found.recording is not None
            else:
                assert found is None


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("is_fork", [False, True])
async def test_a_replay_or_fork_is_loaded_when_it_is_created(
    tmp_path: Path, database: Database, data: Path, is_stored: bool, is_fork: bool
) -> None:
    socket = data if is_stored else None
    async with (
        preloading(tmp_path, database, socket, mode="auto", follows=False) as (preloaded, running_store),
        asyncio.TaskGroup() as group,
    ):
        fetch, fetched, has_begun = preloaded.fetch, [], asyncio.Event()

        async def fetch_and_note(name: str) -> FoundRecording:
            fetched.append(name)
            has_begun.set()
            return await fetch(name)

        preloaded.fetch = fetch_and_note
        tasks = [group.create_task(work) for work in (preloaded.load_expected(), preloaded.load_announced())]
        await asyncio.sleep(0)  # what was created before is not loaded
        path, options = ("/v1/runs/night/forks", {"from": 1}) if is_fork else ("/v1/replays", {"run": "night"})
        answer = await running_store.api.post(path, json={**options, "id": "again"})
        assert answer.status_code == 201, answer.text
        async with asyncio.timeout(60):
            await has_begun.wait()
            await preloaded._loading["again"].wait()
        assert await preloaded.load_newest(), "it is kept although it is none of the newest runs"
        fetched_before = len(fetched)
        found = await preloaded.fetch_or_take("again")
        assert found.bundle is not None
        assert found.is_edited == is_fork
        assert (found.recording is None) == is_fork, "a fork's options say what is made of it"
        assert fetched_before == len(fetched)
        for task in tasks:
            task.cancel()


def test_of_many_replays_that_were_created_the_last_ones_are_announced(tmp_path: Path) -> None:
    written = RunVersions.create(tmp_path / "versions")
    written.announce_replay("before")
    read = SharedVersions(tmp_path / "versions")
    position, names = read.announced_replays(None)
    assert names == []
    assert read.announced_replays(position) == (position, [])
    before = written.version(["night"]), written.content()
    created = [f"p/{number:0128}" for number in range(NAMES + 3)]
    for number, name in enumerate(created):
        written.announce_replay(name)
        if number == 1:
            position, names = read.announced_replays(position)
            assert names == created[:2]
    assert read.announced_replays(position)[1] == created[3:]
    assert (written.version(["night"]), written.content()) == before, "it changes no version"
    assert SharedVersions(tmp_path / "none").announced_replays(None) == (None, [])


async def test_of_what_is_expected_the_newest_is_kept(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloaded_recordings, "MOST_BYTES", 1)
    await BatchWriter(database, profile=PROFILES.digest).write_batch([tool_exchange(1, run="day")])
    async with preloading(tmp_path, database, follows=False) as (preloaded, _):
        for name in ("day", "night"):
            preloaded.expect(name)
            await until_loaded(preloaded)
        assert await preloaded.take("night") is not None
        assert await preloaded.take("day") is None


async def test_limits_and_what_else_a_name_may_mean(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with preloading(tmp_path, database) as (preloaded, _):
        for name, limit in (("MOST_EXCHANGES", 0), ("MOST_BYTES", 100), ("MOST_RUNS", 0)):
            with monkeypatch.context() as patched:
                patched.setattr(preloaded_recordings, name, limit)
                assert await preloaded.load_newest()
                assert await preloaded.take("night") is None, name
        assert await preloaded.load_newest()
        RunVersions.create(tmp_path / "versions")
        assert await preloaded.take("night") is None, "an earlier store server may have changed it last"
        assert await preloaded.load_newest()
        (tmp_path / "replays/night.json").write_text("{}")
        assert await preloaded.take("night") is None, "the report of a command's replay says what its name means"


async def test_runs_are_loaded_together_and_noted_as_what_nobody_asked_for(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BatchWriter(database, profile=PROFILES.digest)
    names = [f"run-{number}" for number in range(5)]
    for number, name in enumerate(names, 1):
        await writer.write_batch([tool_exchange(number, run=name)])
    async with preloading(tmp_path, database) as (preloaded, running_store):
        # A run with effects is read alone.
        await write_effects(running_store, writer)
        assert await preloaded.load_newest()
        for name in ("night", *names):
            found = await preloaded.take(name)
            assert found is not None, name
            assert found.bundle is not None
            assert {one.run for one in found.bundle.exchanges} == {name}
            alone = await preloaded.fetch(name)
            assert alone.bundle is not None
            assert list(found.bundle.exchanges) == list(alone.bundle.exchanges)
        noted = (await running_store.api.get("/v1/audit", params={"action": "preload"})).json()["items"]
        assert len(noted) == 1
        assert all(f"run={name}" in noted[0]["path"] for name in ("night", *names))
        exports = (await running_store.api.get("/v1/audit", params={"action": "export"})).json()["items"]
        assert sum("night" in one["path"] for one in exports) == 2, "ahead because of its effects, and by this test"
        assert len(exports) == 2 + len(names)
        for headers in ({}, {PRELOAD_HEADER: "guessed"}):
            is_problem(await running_store.api.get("/v1/preload?run=night", headers=headers), 404, "not_found")
        # An answer holds so much that the next run fits no more: it is first of the next one.
        monkeypatch.setattr(replays_route, "PRELOADED_BYTES", 1)
        assert await preloaded.load_newest()
        assert None not in [await preloaded.take(name) for name in names]


async def test_the_first_request_of_a_replay_asks_no_store_server(tmp_path: Path, database: Database) -> None:
    async with preloading(tmp_path, database) as (preloaded, _):
        assert await preloaded.load_newest()

        async def fetch(name: str) -> None:
            raise AssertionError(name)

        preloaded.fetch = fetch  # type: ignore[assignment]
        replays = Replays(
            redactor=Redactor(key=b"k" * 32),
            profiles=PROFILES,
            options=ReplayOptions(),
            load=_loader(preloaded),
            on_change=lambda _: None,
        )
        preloaded.is_replaying = replays.has_begun
        request = tool_exchange(0).exchange.request
        answer = await replays.answer(request, run="night", owner="")
        assert answer is not None
        assert answer.status == 200
        assert await preloaded.load_newest(), "a run that is being replayed is not loaded again"


def _loader(preloaded: PreloadedRecordings) -> LoadSource:
    async def load(name: str) -> ReplaySource:
        found = await preloaded.fetch_or_take(name)
        assert found.bundle is not None
        return ReplaySource(replay=name, bundle=found.bundle, recording=found.recording)

    return load


async def test_an_up_loads_runs_ahead_from_a_database_that_others_write_to(database: Database, data: Path) -> None:
    writer, nights = BatchWriter(database, profile=PROFILES.digest), [f"night-{number}" for number in range(30)]
    for number, run in enumerate(("day", *nights)):
        await writer.write_batch([keyed_exchange(number, run=run, response=b"{}")])
    async with (
        running(data, "--mode", "replay", "--database-url", database.url) as up,
        httpx2.AsyncClient(base_url=up.api, headers=up.headers, trust_env=False, verify=False) as api,
    ):
        async with asyncio.timeout(60):
            while not await audit_entries(api, "preload"):
                pass
        await writer.write_batch([keyed_exchange(40, run="day", request=b'{"new": 1}', response=b'{"new": 2}')])
        assert await replayed_answer(up, "day", b'{"new": 1}') == b'{"new": 2}', "another store server has added it"
        assert len(await audit_entries(api, "export")) == 1
        for run in nights:
            assert await replayed_answer(up, run, b'{"query": "refunds"}') == b"{}"
        # The worker may have loaded the first ones only after it was asked.
        assert len(await audit_entries(api, "export")) < len(nights), "the last ones were loaded ahead"


async def audit_entries(api: httpx2.AsyncClient, action: str) -> list[object]:
    found: list[object] = (await api.get("/v1/audit", params={"action": action})).json()["items"]
    return found


async def replayed_answer(up: Service, run: str, body: bytes) -> bytes:
    proxy = up.proxy.replace("//", f"//{run}:@")
    async with httpx2.AsyncClient(proxy=proxy, trust_env=False, verify=False) as client:
        return (await client.post("https://tickets.example.com/v2/search", content=body)).content


def keyed_exchange(number: int, **more: Any) -> DerivedExchange:
    """An exchange with the key that an equal request of another client has."""
    made = exchange(number, **more)
    return DerivedExchange(made, call(made, key=make_key(made.request, PROFILES).key))
