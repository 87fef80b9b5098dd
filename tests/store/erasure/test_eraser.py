"""After an erasure nobody finds the bytes again: not in the API, the tables, the spools, nor in any file on disk."""

import asyncio
import json
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from calls.events import Gap, ReplayReported
from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.recording.exchange_recording import ExchangeRecording
from proxy.recording.recorder import Recorder
from store.api.routes.keep import erasures
from store.bundle.rows_bundle import MAGIC
from store.database import blobs
from store.database.connection import Database
from store.embedded.postgres import ensure_server
from store.erasure import disk_traces, matching
from store.erasure.eraser import Eraser, SearchPlace
from store.erasure.matching import parse_match
from store.feed.signal import FeedSignal
from store.followers import Followers
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.runs import Runs
from store.retention.partition_swap import erased_days
from store.retention.rules import RetentionPolicy
from store.retention.runner import RetentionRunner
from store.spool import Spool
from tests.store.running_store import RunningStore, is_problem, make_ingester, open_store, running
from tests.store.samples import NOON, SECOND, exchange
from tests.store.sums.test_run_sums import derive

CANARY = "canarybirdnumberseven"
"""A word: the index of words has it in a form of its own."""


def conversation(run: str, secret: str, turns: int = 4) -> list[Exchange]:
    """Calls that each repeat what was said before, so that they share parts. The secret is in the second one only."""
    messages: list[dict[str, str]] = []
    made = []
    for turn in range(turns):
        said = f"{secret} " * 30 if turn == 1 else f"turn {turn} of {run} " * 30
        messages = [one for one in messages if secret not in one["content"]]
        messages.append({"role": "user", "content": said})
        body = json.dumps({"model": "gpt-5", "messages": messages, "filler": "x" * 3000}).encode()
        answer = {"choices": [{"message": {"role": "assistant", "content": f"re {said}"}}]}
        made.append(
            exchange(
                turn,
                run=run,
                at=NOON + uuid.uuid5(uuid.NAMESPACE_URL, run).int % 1000 * SECOND + turn * SECOND,
                url="https://api.openai.com/v1/chat/completions",
                request=body,
                response=json.dumps(answer).encode(),
            )
        )
    return made


async def store(database: Database, exchanges: list[Exchange], writer: BatchWriter | None = None) -> None:
    for one in exchanges:
        await (writer or BatchWriter(database)).write_batch([DerivedExchange(one, derive(one))])


async def index(database: Database) -> None:
    from asyncio import create_task  # noqa: TID251 - cancelled below

    followers = Followers(database, FeedSignal(), derive)
    running = create_task(followers.run())
    try:
        await followers.wait_until_caught_up()
    finally:
        running.cancel()


async def exchanges_of(database: Database, run: str) -> list[Exchange]:
    return [one async for one in CallReader(database, derive).exchanges(run)]


def eraser(database: Database, data: Path | None = None) -> Eraser:
    return Eraser(database=database, derive=derive, project="default", data=data, now=lambda: NOON)


async def test_a_call_goes_and_all_others_of_its_run_are_as_they_were(database: Database) -> None:
    writer = BatchWriter(database)
    made = conversation("night", CANARY)
    await store(database, made, writer)
    gap = Gap("night", NOON, "odd", made[1].id, 1)
    await writer.write_batch((), [gap])
    report = await eraser(database).erase_exchanges({"night": [made[1].id]})
    assert report is not None
    assert report.exchanges == [made[1].id]
    assert {"exchanges": 1, "calls": 1, "gaps": 1}.items() <= report.rows.items()
    assert await exchanges_of(database, "night") == [made[0], *made[2:]]
    # The writer's cache of parts does not refer to those that are gone.
    more = conversation("night", CANARY, turns=6)[4:]
    await store(database, more, writer)
    assert await exchanges_of(database, "night") == [made[0], *made[2:], *more]
    assert await eraser(database).erase_exchanges({"night": [made[1].id]}) is None


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import tempfile

    base = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    base.chmod(0o711)
    with ensure_server(base / "pg", {"fsync": "off"}) as server:
        yield server
    shutil.rmtree(base, ignore_errors=True)


def files_with(directory: Path, needle: bytes) -> list[str]:
    return [str(file) for file in sorted(directory.rglob("*")) if file.is_file() and needle in file.read_bytes()]


async def test_no_file_has_the_erased_bytes(own_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the bytes can be found where they are stored.
    monkeypatch.setattr(blobs, "MIN_COMPRESSED_SIZE", 1 << 40)
    directory = Path(own_server.dsn.partition("host=")[2].partition("&")[0]).parent
    database = Database(own_server.dsn, uuid.uuid4())
    await database.prepare()
    try:
        others = conversation("other", "harmless")
        await store(database, [*conversation("night", CANARY), *others])
        await store(database, conversation("day", CANARY))
        await index(database)
        async with database.connection() as connection:
            await connection.execute("ANALYZE")
            await connection.execute("CHECKPOINT")
        places = files_with(directory, CANARY.encode())
        assert any("pg_wal" in place for place in places)
        assert any("base" in place for place in places)
        secret = conversation("night", CANARY)[1].id
        report = await eraser(database).erase_exchanges({"night": [secret]})
        assert report is not None
        assert report.remains == []
        assert files_with(directory, CANARY.encode())
        # A server that renames old files of its log has such files ready.
        log = next(directory.rglob("pg_wal"))
        newest = max(file for file in log.iterdir() if len(file.name) == 24)
        for ahead in (2, 3):
            old = newest.with_name(f"{newest.name[:16]}{int(newest.name[16:], 16) + ahead:08X}")
            old.write_bytes((b"old " + CANARY.encode()).ljust(16 << 20, b"\0"))
            shutil.chown(old, newest.stat().st_uid, newest.stat().st_gid)
        report = await eraser(database).erase_run("day")
        assert report is not None
        assert report.remains == []
        assert files_with(directory, CANARY.encode()) == []
        assert await exchanges_of(database, "other") == others
        monkeypatch.setattr(disk_traces, "SNAPSHOT_TRIES", 1)
        await _erase_beside_an_open_transaction(database, directory)
    finally:
        await database.close()


async def _erase_beside_an_open_transaction(database: Database, directory: Path) -> None:
    """While somebody may still see deleted rows, Postgres copies them when it writes a table anew."""
    await store(database, conversation("labelled", "harmless"))
    await Runs(database).patch("labelled", labels={"person": CANARY})
    async with database.connection() as reader, reader.transaction(isolation="repeatable_read"):
        await reader.fetch("SELECT count(*) FROM feed_positions")
        report = await eraser(database).erase_run("labelled")
    assert report is not None
    assert "began before the erasure" in report.remains[0]
    await store(database, conversation("last", "harmless"))
    again = await eraser(database).erase_run("last")
    assert again is not None
    assert again.remains == []
    assert files_with(directory, CANARY.encode()) == []


async def test_a_run_whose_id_is_part_of_other_texts_takes_only_its_own_replays(
    database: Database, tmp_path: Path
) -> None:
    reports = {
        "of-1": {"id": "of-1", "run": "1", "misses": []},
        "1": {"id": "1", "run": "night", "misses": []},
        "fork-1": {"id": "fork-1", "run": "night-1", "first_divergence": {"step": 1, "detail": "in run 1 and night-1"}},
    }
    for name, report in reports.items():
        await BatchWriter(database).write_batch([], replays=[ReplayReported(name, json.dumps(report).encode())])
    replays = tmp_path / "replays"
    files = {
        "a.begun": b'{"id": "1", "run": "night"}',
        "b.begun": b'{"id": "web/1", "run": "1"}',
        "c.take": b'{"id":"x","run":"1","candidate":"1:live-2","project":"web"}',
        "d.take": b'{"id":"x","run":"1","candidate":"1:live-2","project":"default"}',
        "e.begun": b'{"id": "fork-1", "run": "night-1"}',
        "f.jsonl": b'{"format": 1, "run": {"id": "1"}}\n{"exchange": {}}\n',
        "g.jsonl": b'{"format": 1, "run": {"id": "11"}}\n{"exchange": {}}\n',
        "h.jsonl": MAGIC + msgspec.msgpack.encode(["s", {"id": "1"}, "p"]),
        "i.jsonl": MAGIC + msgspec.msgpack.encode(["s", {"id": "n-1"}, "p"]),
        "j.mode": b"auto",
    }
    for directory in (replays, tmp_path / "spool"):
        directory.mkdir()
    for file, content in files.items():
        (replays / file).write_bytes(content)
    await store(database, conversation("1", "harmless", 1))
    report = await eraser(database, tmp_path).erase_run("1")
    assert report is not None
    assert report.rows["replays"] == 2
    assert sorted(path.name[0] for path in replays.iterdir()) == ["b", "c", "e", "g", "i", "j"]
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT array_agg(id) FROM replays") == ["fork-1"]


async def test_a_match_finds_a_person_over_all_runs(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        people = [
            exchange(number, run=f"run-{number}", request=json.dumps({"user": {"id": 7 if number < 2 else 8}}).encode())
            for number in range(3)
        ]
        answered = exchange(9, run="run-9", response=b'{"found": [{"user": {"id": 7}}]}')
        await store(database, [*people, answered])
        plan = await post(running_store, {"match": "$..user.id=7", "dry_run": True})
        assert (plan["looked_at"], plan["next"]) == (4, None)
        assert (plan["erased"], plan["runs"], len(plan["exchanges"])) == (False, ["run-0", "run-1", "run-9"], 3)
        done = await post(running_store, {"match": "$..user.id=7"})
        assert (done["erased"], sorted(done["exchanges"])) == (True, plan["exchanges"])
        assert done["rows"]["exchanges"] == 3
        rest = await post(running_store, {"match": "$..user.id=7", "after": done["next"]})
        assert (rest["exchanges"], rest["next"], rest["remains"]) == ([], None, [])
        assert (await post(running_store, {"match": "$..user.id=7"}))["exchanges"] == []
        assert len(await exchanges_of(database, "run-2")) == 1
        for match, words in (
            ("$.a", "there is no ="),
            ("$[=1", "write JSONPATH=VALUE"),
            ("a=b", "write JSONPATH=VALUE"),
        ):
            problem = is_problem(await running_store.api.post("/v1/erasures", json={"match": match}), 422, "bad_match")
            assert words in problem["detail"]
        for wrong in ({}, {"run": "a", "call": "b"}):
            is_problem(await running_store.api.post("/v1/erasures", json=wrong), 422, "invalid_request")
        is_problem(await running_store.api.post("/v1/erasures", json={"run": "unknown"}), 404, "unknown_run")
        run = await running_store.api.delete("/v1/runs/run-2")
        assert run.json()["rows"]["runs"] == 1
        is_problem(await running_store.api.delete("/v1/runs/run-2"), 404, "unknown_run")
        is_problem(await running_store.api.delete(f"/v1/calls/{people[0].id}"), 404, "unknown_call")


async def test_a_match_takes_the_reports_that_quote_a_request_which_was_missed(
    tmp_path: Path, database: Database
) -> None:
    def report(name: str, said: str, project: str = "default") -> bytes:
        misses = [{"detail": f'it differs at /body (now "mail {said}@example.com")'}]
        return json.dumps({"id": name, "project": project, "misses": misses}).encode()

    async def erase(value: str) -> tuple[dict[str, int], int, list[str], list[str]]:
        match = parse_match(f"$..email={value}")
        done = await eraser(database, tmp_path).erase_matching(match, SearchPlace(), 1.0)
        async with database.connection() as connection:
            stored = await connection.fetchval("SELECT array_agg(id ORDER BY id) FROM replays")
        return dict(done.rows), done.files.replay_files, stored, sorted(path.stem for path in replays.iterdir())

    replays = tmp_path / "replays"
    replays.mkdir()
    for name, said in (("replay-1", "anna"), ("replay-2", "ben")):
        await BatchWriter(database).write_batch([], replays=[ReplayReported(name, report(name, said))])
        (replays / f"{name}.json").write_bytes(report(name, said))
    (replays / "other.json").write_bytes(report("other/replay-3", "anna", "other"))
    quotes = await eraser(database, tmp_path).find_quotes(parse_match("$..email=anna@example.com"), SearchPlace())
    assert ([file.stem for file in quotes.files], quotes.replays) == (["replay-1"], ["replay-1"])
    assert await erase("ann") == ({}, 0, ["replay-1", "replay-2"], ["other", "replay-1", "replay-2"])
    assert await erase("anna@example.com") == ({"replays": 1}, 1, ["replay-2"], ["other", "replay-2"])


async def test_a_match_is_looked_for_in_steps_and_what_one_leaves_is_done_by_the_next(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "STEP", 0.0)
    monkeypatch.setattr(matching, "BATCH", 4)
    async with open_store(tmp_path / "spool", database) as running_store:
        made = [
            exchange(number, run=f"run-{number % 3}", request=json.dumps({"user": number % 2}).encode())
            for number in range(10)
        ]
        await store(database, made)
        async with database.connection() as connection:
            await connection.execute(
                "UPDATE exchanges SET request_digest = decode(repeat('00', 32), 'hex') WHERE id = $1", made[9].id
            )
        plan = await post(running_store, {"match": "$.user=1", "dry_run": True})
        assert (plan["looked_at"], len(plan["exchanges"]), plan["erased"]) == (4, 2, False)
        first = await post(running_store, {"match": "$.user=1"})
        assert (first["looked_at"], first["rows"]["exchanges"], first["next"]) == (4, 2, made[3].id)
        # It is killed here: the days that have erased rows in their files are known, and the same begun anew finds the rest.
        assert await erased_days(database) != []
        again = await post(running_store, {"match": "$.user=1"})
        found = len(again["exchanges"])
        remains = [*again["remains"]]
        while again["next"] is not None:
            again = await post(running_store, {"match": "$.user=1", "after": again["next"]})
            found += len(again["exchanges"])
            remains += again["remains"]
        # One that cannot be read does not end the search, and is named.
        assert found == 2
        assert [text for text in remains if made[9].id in text] == remains
        assert await erased_days(database) == []
        # What an erasure that was killed has left, retention rewrites.
        await eraser(database).erase_matching(parse_match("$.user=0"), SearchPlace(), 0.0)
        assert await erased_days(database) != []
        await RetentionRunner(database, RetentionPolicy(rules=())).run_once()
        assert await erased_days(database) == []
        wrong = await running_store.api.post("/v1/erasures", json={"match": "$.a=1", "after": "day:x"})
        is_problem(wrong, 422, "bad_cursor")
        is_problem(
            await running_store.api.post("/v1/erasures", json={"run": "a", "after": "x"}), 422, "invalid_request"
        )


async def post(running_store: RunningStore, body: dict[str, Any]) -> dict[str, Any]:
    response: httpx2.Response = await running_store.api.post("/v1/erasures", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_erasures_at_once_harm_nothing_else(database: Database, tmp_path: Path) -> None:
    runs = {name: conversation(name, CANARY) for name in ("one", "two", "three")}
    writer = BatchWriter(database)
    for made in runs.values():
        await store(database, made, writer)
    async with asyncio.TaskGroup() as group:
        of_one = [
            group.create_task(eraser(database).erase_exchanges({"one": [runs["one"][turn].id]})) for turn in (1, 1, 2)
        ]
        of_two = group.create_task(eraser(database).erase_run("two"))
        # What is stored meanwhile, in the same run too, is not lost.
        group.create_task(store(database, conversation("four", "harmless"), writer))
    reports = [one.result() for one in of_one]
    # Two of them are about one call: one erases it, the other finds nothing.
    assert sorted(len(report.exchanges) for report in reports if report) == [1, 1]
    assert reports.count(None) == 1
    assert (report := of_two.result()) is not None
    assert report.runs == ["two"]
    assert await exchanges_of(database, "one") == [runs["one"][0], runs["one"][3]]
    assert await exchanges_of(database, "two") == []
    assert await exchanges_of(database, "three") == runs["three"]
    assert await exchanges_of(database, "four") == conversation("four", "harmless")


def record(spool: Spool, run: str, *, is_ended: bool) -> ExchangeRecording:
    """Record an exchange with the canary by the real recorder."""
    recorder = Recorder(spool, Redactor(key=b"key"), now=time.time_ns)
    recording = recorder.begin(
        run=run,
        run_evidence=(("credentials", run),),
        step=None,
        actor=None,
        method="POST",
        url="https://tools.example.com/search",
        http_version="HTTP/1.1",
        headers=(("Host", "tools.example.com"),),
    )
    recording.record_data("request", CANARY.encode() * 20, 1000)
    recording.record_end("request", 2000)
    if is_ended:
        recording.record_response_head(3000, 200, "OK", "HTTP/1.1", (("Content-Type", "text/plain"),))
        recording.record_data("response", CANARY.encode() * 20, 4000)
        recording.record_end("response", 5000)
        recording.record_close(6000, "completed")
    return recording


async def test_spools_and_replay_files_are_erased_and_what_is_open_is_named(database: Database, tmp_path: Path) -> None:
    spools, replays = tmp_path / "spool", tmp_path / "replays"
    replays.mkdir()
    (replays / "of-night.jsonl").write_bytes(b'{"run": "night"}')
    (replays / "of-other.jsonl").write_bytes(b'{"run": "other"}')
    with Spool(spools / "worker-1", max_bytes=1 << 20, durability="process") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            assert await record(spool, "night", is_ended=True).wait_until_recorded()
            assert await store_server.wait_until_settled(30)
            assert files_with(spools, CANARY.encode())
            report = await eraser(database, tmp_path).erase_run("night")
            assert report is not None
            assert files_with(spools, CANARY.encode()) == []
            assert report.files.spool_bytes > 0
            assert (report.files.replay_files, files_with(replays, b"other")) == (1, [str(replays / "of-other.jsonl")])
            # What has not ended is in the spool, is named, and is erased when it has ended.
            assert await record(spool, "open", is_ended=True).wait_until_recorded()
            recording = record(spool, "open", is_ended=False)
            assert await recording.wait_until_recorded()
            await store_server.wait_until_settled(5)
            report = await eraser(database, tmp_path).erase_run("open")
            assert report is not None
            assert "has exchanges that have not ended" in " ".join(report.remains)
            recording.record_close(7000, "client_closed")
            assert await recording.wait_until_recorded()
            assert await store_server.wait_until_settled(30)
            report = await eraser(database, tmp_path).erase_run("open")
            assert report is not None
            assert files_with(spools, CANARY.encode()) == []
