"""Large exchanges: parked by the drain, stored and read by helper processes within limits, and never lost."""

import asyncio
import gzip
import json
import os
import resource
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import Request
from msgspec.structs import replace
from starlette.types import Message

from calls.derive import derive_call
from calls.events import ExchangeClosed, encode_records
from calls.model import Body, Call, Chunk, Exchange
from store.access.grants import FULL_GRANT, GRANT
from store.active_profiles import load_profiles
from store.api import helper_answers as aside
from store.api.deps import Deps
from store.api.routes import imports
from store.api.spilled_answers import BODY
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.ingest.drain import WORKER_DIED, Drain
from store.ingest.ingester import Ingester
from store.large import queue as queue_module
from store.large.helper import Helper
from store.large.jobs import HelperConfig, HelperJob, RenderResult, Reply, StoringJob
from store.large.storing import LargeStore
from store.large.weight import LARGE_WEIGHT, is_large
from store.query.runs import Runs
from store.spool import Spool
from tests.store import exchanges as made
from tests.store.running_store import running, serving_api
from tests.store.samples import NOON, uuid7
from tests.support.exchange_events import exchange_events

RUN = "night"
PROFILES = load_profiles()


def exchange(number: int, body: bytes = b"{}", encoding: str | None = None) -> Exchange:
    """A chat whose answer has this body."""
    plain = made.conversation(1)[0]
    assert plain.response is not None
    headers = (("content-type", "application/json"), *([("content-encoding", encoding)] if encoding else []))
    answer = Body(data=body, chunks=(Chunk(5, 0, len(body)),), size=len(body))
    response = replace(plain.response, headers=headers, body=answer)
    return replace(plain, run=RUN, id=uuid7(NOON + number, number), started_at=NOON + number, response=response)


def chat(text: str) -> bytes:
    return json.dumps({"model": "m", "choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


LONG = chat("so it was. " * (LARGE_WEIGHT // 10))
MANY = json.dumps(dict.fromkeys(map(str, range(60_000)), 1)).encode()


async def write_spool(directory: Path, exchanges: Sequence[Exchange], *, together: bool = False) -> None:
    """Write exchanges to a spool as a proxy worker that then ends."""
    with Spool(directory) as spool:
        for one in exchanges:
            events = list(exchange_events(one))
            taken = [spool.append(encode_records(record)) for record in ([events] if together else events)]
            await spool.wait_until_durable(taken[-1])


@asynccontextmanager
async def serving(
    spools: Path, database: Database, url: str, **limits: float
) -> AsyncIterator[tuple[Ingester, httpx2.AsyncClient, Helper]]:
    """Run a store server with helper processes and an API."""
    config = HelperConfig(database_url=url, redaction_key=b"k" * 32, memory_limit=int(limits.get("memory", 512 << 20)))
    storing, reading = Helper(config, time_limit=limits.get("time", 60)), Helper(config)
    ingest = BatchWriter(database, profile=PROFILES.digest)
    store_server = Ingester(spools, ingest, lambda one: _derived_here(one), large=storing)
    async with running(store_server), serving_api(store_server, database, helper=reading) as api:
        yield store_server, api, storing
    await reading.close()


def _derived_here(one: Exchange) -> Call:
    assert not is_large(one), "the store server opened a large exchange"
    return derive_call(one, PROFILES)


@pytest.mark.parametrize(
    ("body", "encoding", "large"),
    [
        (b"{}", None, False),
        (chat("a" * 100_000), None, False),
        (LONG, None, True),
        (MANY, None, True),
        (gzip.compress(LONG), "gzip", True),
        (gzip.compress(b"{}"), "gzip", False),
    ],
    ids=["small", "medium", "long", "many values", "opens large", "opens small"],
)
@pytest.mark.parametrize("together", [False, True], ids=["event by event", "one payload"])
async def test_the_drain_hands_on_what_is_large_as_a_file(
    tmp_path: Path, body: bytes, encoding: str | None, large: bool, together: bool
) -> None:
    sent = exchange(1, body, encoding)
    assert is_large(sent) == large
    await write_spool(tmp_path, [sent], together=together)
    drain = Drain(tmp_path, now=lambda: NOON)
    found = drain.gather(1 << 30)
    assert ([one.id for one in found.large], found.exchanges) == (([sent.id], []) if large else ([], [sent]))
    assert drain.open_weight == 0
    drain.mark_stored()
    drain.commit()
    files = list((tmp_path / "open").glob("*"))
    assert len(files) == large, "the file of a large exchange stays until it is stored, also behind the cursor"
    drain.mark_large_stored(sent.id)
    drain.commit()
    assert not list((tmp_path / "open").glob("*"))
    drain.reader.close()


async def test_a_large_exchange_that_waits_is_found_again_after_a_crash(tmp_path: Path) -> None:
    sent = exchange(1, LONG)
    await write_spool(tmp_path, [sent])
    first = Drain(tmp_path, now=lambda: NOON)
    assert first.gather(1 << 30).large
    first.mark_stored()
    first.commit()
    first.reader.close()
    again = Drain(tmp_path, now=lambda: NOON)
    assert [one.id for one in again.gather(1 << 30).large] == [sent.id]
    again.reader.close()


async def test_large_exchanges_are_stored_and_read_by_helper_processes(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    sent = [exchange(1, LONG), exchange(2, chat("short")), exchange(3, MANY)]
    await write_spool(tmp_path / "spool" / "worker", sent)
    async with serving(tmp_path / "spool", database, database_url) as (store_server, api, _):
        assert await store_server.wait_until_settled(60)
        listed = (await api.get(f"/v1/runs/{RUN}/calls?settled=true")).json()
        assert listed["settled"]
        assert [call["id"] for call in listed["items"]] == [one.id for one in sent]
        first, short, _ = listed["items"]
        assert (len(first["text"]), short["text"]) == (500, "short")
        whole = (await api.get(f"/v1/calls/{first['id']}")).json()
        assert whole["answer"]["choices"][0]["message"]["content"] == whole["text"]
        assert whole | {"text": first["text"]} | dict.fromkeys(("request", "answer", "tool_results")) == first | (
            dict.fromkeys(("request", "answer", "tool_results"))
        )
        for one in sent:
            assert one.response is not None
            answer = await api.get(f"/v1/exchanges/{one.id}/response")
            assert answer.content == one.response.body.data
            assert answer.headers["content-disposition"].endswith('.response"')
        assert len((await api.get(f"/v1/runs/{RUN}/bundle")).content.splitlines()) == 2 + len(sent)
        assert [one["id"] for one in (await api.get("/v1/calls?settled=true&q=so it was")).json()["items"]] == [
            first["id"]
        ]


async def test_what_cannot_be_derived_within_the_limits_is_stored_as_evidence_with_the_reason(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    sent = exchange(1, json.dumps(dict.fromkeys(map(str, range(400_000)), 1)).encode())
    assert sent.response is not None
    await write_spool(tmp_path / "spool" / "worker", [sent])
    async with serving(tmp_path / "spool", database, database_url, memory=130 << 20) as (store_server, api, _):
        assert await store_server.wait_until_settled(60)
        call = (await api.get(f"/v1/runs/{RUN}/calls")).json()["items"][0]
        assert "no call was derived" in call["warnings"][-1]
        assert "memory" in call["warnings"][-1]
        assert (await api.get(f"/v1/calls/{call['id']}")).json()["warnings"] == call["warnings"]
        assert (await api.get(f"/v1/exchanges/{sent.id}/response")).content == sent.response.body.data
        assert store_server.counts.underived == 1


async def test_what_cannot_be_stored_is_a_gap_and_its_events_are_kept(tmp_path: Path, database: Database) -> None:
    class Failing:
        async def run(self, job: HelperJob) -> Reply:
            assert job.store
            return Reply(failed="it was ended")

        async def close(self) -> None:
            pass

    sent = exchange(1, LONG)
    await write_spool(tmp_path / "spool" / "worker", [sent])
    store_server = Ingester(
        tmp_path / "spool", BatchWriter(database), lambda one: derive_call(one, PROFILES), large=Failing()
    )
    async with running(store_server):
        assert await store_server.wait_until_settled(60)
        (gap,) = await Runs(database).gaps(RUN)
        assert (gap.exchange, "it was ended" in gap.reason) == (sent.id, True)
        assert "a later start of the store server tries again" in gap.reason
        assert (tmp_path / "damaged" / f"{sent.id}.parked").stat().st_size > len(LONG)


async def test_the_next_store_server_stores_what_could_not_be_stored(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    class Failing:
        async def run(self, job: HelperJob) -> Reply:
            return Reply(failed="its helper process ended with signal 9")

        async def close(self) -> None:
            pass

    spools, kept = tmp_path / "spool", tmp_path / "damaged"
    sent, cut = exchange(1, LONG), exchange(2, LONG)
    await write_spool(spools / "worker", [sent])
    with Spool(spools / "killed") as spool:
        taken = [spool.append(encode_records(event)) for event in list(exchange_events(cut))[:-1]]
        await spool.wait_until_durable(taken[-1])
    for large in (Failing(), Failing()):
        store_server = Ingester(spools, BatchWriter(database), lambda one: derive_call(one, PROFILES), large=large)
        async with running(store_server):
            assert await store_server.wait_until_settled(60)
            assert {one.name for one in kept.iterdir()} == {f"{sent.id}.parked", f"{cut.id}.parked"}
    async with serving(spools, database, database_url) as (store_server, api, _):
        async with asyncio.timeout(60):
            while list(kept.iterdir()):  # noqa: ASYNC110 - another process stores them
                await asyncio.sleep(0.02)
        calls = (await api.get(f"/v1/runs/{RUN}/calls?settled=true")).json()["items"]
        assert sorted(call["exchanges"][0] for call in calls) == sorted([sent.id, cut.id])
        reasons = [gap.reason for gap in await Runs(database).gaps(RUN) if gap.exchange == cut.id]
        assert WORKER_DIED in reasons
        assert WORKER_DIED not in [gap.reason for gap in await Runs(database).gaps(RUN) if gap.exchange == sent.id]


async def test_each_start_tries_those_that_were_tried_the_longest_time_ago(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "MAX_KEPT_FILES", 1)
    tries: list[str] = []

    class Failing:
        def __init__(self) -> None:
            self.has_tried = asyncio.Event()

        async def run(self, job: HelperJob) -> Reply:
            assert job.store
            if job.store.underived:
                self.has_tried.set()
            else:
                tries.append(Path(job.store.file).stem)
            return Reply(failed="there is no memory")

        async def close(self) -> None:
            pass

    kept = tmp_path / "damaged"
    kept.mkdir()
    names = [exchange(number).id for number in range(3)]
    for age, name in enumerate(names):
        (kept / f"{name}.parked").write_bytes(b"")
        os.utime(kept / f"{name}.parked", (1_000_000_000 + age, 1_000_000_000 + age))
    for _ in range(4):
        large = Failing()
        derive = partial(derive_call, profiles=PROFILES)
        async with running(Ingester(tmp_path / "spool", BatchWriter(database), derive, large=large)):
            async with asyncio.timeout(20):
                await large.has_tried.wait()
    assert tries == [*names, names[0]]


async def test_what_is_tried_again_does_not_end_the_store_server_where_no_process_can_be_started(
    tmp_path: Path, database: Database
) -> None:
    tries: list[str] = []
    are_tried = asyncio.Event()

    class Starting:
        async def run(self, job: HelperJob) -> Reply:
            assert job.store
            tries.append(job.store.file)
            if len(tries) == 2:
                are_tried.set()
            raise BlockingIOError("Resource temporarily unavailable")

        async def close(self) -> None:
            pass

    kept = tmp_path / "damaged"
    kept.mkdir()
    for number in range(2):
        (kept / f"{exchange(number).id}.parked").write_bytes(b"")
    derive = partial(derive_call, profiles=PROFILES)
    async with running(Ingester(tmp_path / "spool", BatchWriter(database), derive, large=Starting())):
        async with asyncio.timeout(20):
            await are_tried.wait()
    assert len(set(tries)) == len(list(kept.iterdir())) == 2


async def test_what_is_erased_while_it_is_tried_again_does_not_come_back(tmp_path: Path, database: Database) -> None:
    kept = tmp_path / "damaged" / f"{exchange(1).id}.parked"
    await write_spool(tmp_path / "spool" / "worker", [exchange(1, LONG)])
    drain = Drain(tmp_path / "spool" / "worker", now=lambda: NOON)
    drain.gather(1 << 30)
    drain.set_aside(exchange(1).id, kept.parent)

    def derive_while_erased(one: Exchange) -> Call:
        kept.unlink()
        return derive_call(one, PROFILES)

    store = LargeStore(BatchWriter(database), derive_while_erased, PROFILES)
    await store.store(StoringJob(file=str(kept), source="damaged", is_cut_off=None))
    assert not await Runs(database).exists(RUN)


async def test_an_exchange_that_takes_long_holds_up_no_other(tmp_path: Path, database: Database) -> None:
    release = asyncio.Event()

    class Slow:
        async def run(self, job: HelperJob) -> Reply:
            await release.wait()
            return Reply(failed="late")

        async def close(self) -> None:
            pass

    await write_spool(tmp_path / "spool" / "a", [exchange(1, LONG)])
    store_server = Ingester(
        tmp_path / "spool", BatchWriter(database), lambda one: derive_call(one, PROFILES), large=Slow()
    )
    async with running(store_server), serving_api(store_server, database) as api:
        await write_spool(tmp_path / "spool" / "b", [exchange(2)])
        async with asyncio.timeout(60):
            while not (await api.get("/v1/calls")).json()["items"]:  # noqa: ASYNC110 - another task stores it
                await asyncio.sleep(0.02)
        assert not await store_server.wait_until_settled(0.3), "what is acknowledged and not stored is not settled"
        release.set()
        assert await store_server.wait_until_settled(60)


async def test_a_large_exchange_whose_worker_died_is_stored_as_cut_off(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    sent = exchange(1, LONG)
    with Spool(tmp_path / "spool" / "worker") as spool:
        taken = [
            spool.append(encode_records(record))
            for record in exchange_events(sent)
            if not isinstance(record, ExchangeClosed)
        ]
        await spool.wait_until_durable(taken[-1])
    async with serving(tmp_path / "spool", database, database_url) as (store_server, _, _):
        assert await store_server.wait_until_settled(60)
        while not (gaps := await Runs(database).gaps(RUN)):  # noqa: ASYNC110 - the drain finds that there is no writer
            await asyncio.sleep(0.05)
    assert [gap.reason for gap in gaps] == [WORKER_DIED]


@pytest.mark.usefixtures("database")
async def test_a_job_that_takes_too_long_is_ended_and_the_next_one_done(tmp_path: Path, database_url: str) -> None:
    config = HelperConfig(database_url=database_url, redaction_key=b"k" * 32, memory_limit=512 << 20)
    helper = Helper(config, time_limit=0.01)
    job = HelperJob(store=StoringJob(file=str(tmp_path / "none"), source="here"))
    assert "took longer than" in ((await helper.run(job)).failed or "")
    helper = Helper(config)
    # A missing file was stored by an earlier attempt.
    assert await helper.run(job) == Reply(peak=helper.peak)
    # The reported peak includes the memory shared with this process before exec (getrusage(2)).
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert 0 < helper.peak < max(200 << 20, ours + (64 << 20))
    process = helper._process
    assert process
    process.kill()
    await process.wait()
    assert (await helper.run(job)).failed is None, "one that has ended is started again"
    await helper.close()


class Growing:
    """A helper process whose answer grows in steps; each step waits for an event, and the last may fail."""

    def __init__(self, failed: str | None) -> None:
        self.on = asyncio.Event()
        self.failed = failed

    async def run(self, job: HelperJob, further: Callable[[Reply], None] = lambda _: None) -> Reply:
        assert job.render
        rendering = RenderResult(status=200, headers=[("content-type", "text/plain")])
        with Path(job.render.to).open("ab", buffering=0) as file:  # noqa: ASYNC230 - a few bytes
            file.write(b"begun, ")
            further(Reply(rendering=rendering, is_over=False))
            await self.on.wait()
            file.write(b"done")
        return Reply(rendering=None if self.failed else rendering, failed=self.failed)


@pytest.mark.parametrize("failed", [None, "its memory ran out"])
async def test_an_answer_that_takes_long_is_sent_as_it_grows(
    failed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is streamed while it grows, so that its client does not time out; a failed one is cut off."""
    monkeypatch.setattr(aside, "WHOLE_WITHIN", 0.01)
    monkeypatch.setattr(aside, "POLL_INTERVAL", 0.01)
    helper, sent = Growing(failed), list[Message]()
    desk = Deps(store_server=Any, database=Any, profiles=PROFILES, clean=str, helper=helper)  # type: ignore[arg-type]
    app = SimpleNamespace(state=SimpleNamespace(deps=desk))
    request = {"type": "http", "method": "GET", "path": "/a", "query_string": b"", "headers": [], "app": app}
    scope: dict[str, Any] = request | {BODY: b"", GRANT: FULL_GRANT}

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("body") == b"begun, ":
            helper.on.set()  # otherwise it would wait for ever

    async with asyncio.timeout(60):
        answer = await aside.answer_in_helper(Request(scope), Exception())
        await answer(scope, lambda: asyncio.sleep(1), send)  # type: ignore[arg-type, return-value]
    assert sent[0]["status"] == 200
    assert b"content-length" not in dict(sent[0]["headers"])
    assert b"".join(one["body"] for one in sent[1:]) == (b"begun, " if failed else b"begun, done")
    assert sent[-1]["more_body"] is bool(failed)


class Refusing(Helper):
    """A helper process that never has what a job takes."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def run(self, job: HelperJob, on_progress: Callable[[Reply], None] = lambda _: None) -> Reply:
        return self._reply


@pytest.mark.parametrize(
    ("reply", "status", "what_to_do"),
    [
        (Reply(failed="it takes more memory than a helper process may have"), 507, "playhead replay FILE"),
        (Reply(failed="Postgres is not available.", is_unavailable=True), 503, "Try again later."),
    ],
)
async def test_an_import_that_fails_says_what_to_do_about_an_import(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, reply: Reply, status: int, what_to_do: str
) -> None:
    monkeypatch.setattr(imports, "IN_PROCESS_SIZE", 10)
    ingest = BatchWriter(database, profile=PROFILES.digest)
    store_server = Ingester(tmp_path / "spool", ingest, lambda one: _derived_here(one))
    async with running(store_server), serving_api(store_server, database, helper=Refusing(reply)) as api:
        answer = await api.post("/v1/import", content=b"a bundle that is large\n")
    assert answer.status_code == status
    detail = answer.json()["detail"]
    assert reply.failed is not None
    assert reply.failed in detail
    assert what_to_do in detail
    assert "limit" not in detail
