"""From a worker's spool to Postgres to REST, with processes and the database failing at the worst moments."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from calls.events import EffectBatch, Gap, Record, ReplayReported, encode_records
from calls.model import Body, Call, Chunk, Exchange
from store.bundle.bundle import read_bundle
from store.bundle.rows_bundle import read_rows
from store.database.connection import Database, DatabaseUnavailable
from store.feed.signal import FeedSignal
from store.ingest import ingester
from store.ingest.batch_writer import BatchResult, BatchWriter, DerivedExchange
from store.ingest.drain import WORKER_DIED
from store.ingest.ingester import Ingester
from store.ingest.project_writers import ProjectWriters
from store.query.call_reader import CallReader
from store.query.runs import Runs
from store.spool import Spool
from tests.store import exchanges as made
from tests.store.exchanges import effect_batch
from tests.store.running_store import RunningStore, make_ingester, open_store, running
from tests.store.samples import NOON, uuid7
from tests.support.exchange_events import exchange_events

RUN = "night"


def conversation(turns: int, first: int = 0) -> list[Exchange]:
    """The turns of an agent, with distinct ids and times."""
    made_turns = enumerate(made.conversation(turns), first)
    return [replace(each, run=RUN, id=uuid7(NOON + n, n), started_at=NOON + n) for n, each in made_turns]


async def write_records(spool: Spool, records: Iterable[Record]) -> None:
    """Append records and wait until they are durable."""
    last = 0
    for record in records:
        last = spool.append(encode_records(record))
    if last:
        await spool.wait_until_durable(last)


async def load_exchanges(database: Database, run: str = RUN) -> list[Exchange]:
    recorded = CallReader(database, lambda _: pytest.fail("nothing is derived here"))
    return [exchange async for exchange in recorded.exchanges(run)]


async def gaps(database: Database, run: str = RUN) -> list[Gap]:
    return await Runs(database).gaps(run)


class Flaky(BatchWriter):
    """A batch writer whose database becomes unavailable, before or after it has committed."""

    def __init__(self, database: Database, faults: Sequence[str]) -> None:
        super().__init__(database)
        self.faults = list(faults)
        self.tried = asyncio.Event()
        self.sizes: list[int] = []
        """The number of exchanges in each batch."""

    async def write_batch(
        self,
        batch: Sequence[DerivedExchange],
        gaps: Sequence[Gap] = (),
        replays: Sequence[ReplayReported] = (),
        effects: Sequence[EffectBatch] = (),
    ) -> BatchResult:
        fault = self.faults.pop(0) if self.faults else None
        self.tried.set()
        self.sizes.append(len(batch))
        if fault == "before":
            raise DatabaseUnavailable("Postgres is not available: away.")
        done = await super().write_batch(batch, gaps, replays, effects)
        if fault == "after":
            raise DatabaseUnavailable("Postgres is not available: the answer to COMMIT was lost.")
        return done


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    """The spools of a data directory of the test's own: what is damaged is put beside them."""
    directory = tmp_path / "spool"
    directory.mkdir()
    return directory


async def test_what_a_worker_spools_comes_back_over_rest_byte_for_byte(spools: Path, database: Database) -> None:
    binary = replace(conversation(1)[0], id=uuid7(NOON + 9, 9), started_at=NOON + 9)
    assert binary.response is not None
    body = Body(data=bytes(range(256)), chunks=(Chunk(5, 0, 100), Chunk(9, 100, 156)), size=256)
    binary = replace(binary, response=replace(binary.response, body=body))
    sent = [*conversation(3), binary]
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            for exchange in sent:
                await write_records(spool, exchange_events(exchange))
            listed = (await running_store.api.get(f"/v1/runs/{RUN}/calls?settled=true")).json()
            assert listed["settled"]
            assert [call["id"] for call in listed["items"]] == [exchange.id for exchange in sent]
            bundle = await running_store.api.get(f"/v1/runs/{RUN}/bundle")
            assert read_bundle(bundle.content.splitlines(keepends=True)).exchanges == sent
            for exchange in sent:
                assert exchange.response is not None
                answer = await running_store.api.get(f"/v1/exchanges/{exchange.id}/response")
                assert answer.content == exchange.response.body.data
                asked = await running_store.api.get(f"/v1/exchanges/{exchange.id}/request")
                assert asked.content == exchange.request.body.data


async def test_effects_that_a_worker_spools_go_out_and_come_in_again_as_they_were(
    spools: Path, database: Database
) -> None:
    sent = [effect_batch(n, RUN) for n in range(3)]
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            await write_records(spool, [*exchange_events(conversation(1)[0]), *sent, sent[1]])
            assert (await running_store.api.get(f"/v1/runs/{RUN}?settled=true")).json()["settled"]
            content = (await running_store.api.get(f"/v1/runs/{RUN}/bundle?proof=false")).content
            assert read_bundle(content.splitlines(keepends=True)).effects == tuple(sent)
            assert (await running_store.api.get(f"/v1/runs/{RUN}/verify")).json()["findings"] == []
            await check_effects_are_shown(running_store)
            rows = read_rows((await running_store.api.get(f"/v1/runs/{RUN}/rows")).content)
            assert rows.effects == tuple(sent)
            await running_store.api.delete(f"/v1/runs/{RUN}")
            assert (await database_rows(database)) == 0
            assert (await running_store.api.post("/v1/import", content=content)).status_code == 201
            again = (await running_store.api.get(f"/v1/runs/{RUN}/bundle?proof=false")).content
            assert again == content


async def check_effects_are_shown(running_store: RunningStore) -> None:
    """Each with its time, in pages, and summed up between the calls."""
    path = f"/v1/runs/{RUN}/effects"
    first = (await running_store.api.get(path, params={"limit": 5})).json()
    rest = (await running_store.api.get(path, params={"limit": 5, "cursor": first["next"]})).json()
    clock, variable = first["items"][:2]
    assert (clock["kind"], clock["count"], clock["at"]) == ("time.time", 3, "agent.py:3")
    assert clock["happened_at"] == clock["text"].partition(" ")[0]
    assert (variable["args"], variable["results"], variable["count"]) == ({"name": "REGION"}, ["eu é", None], 5)
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (5, 1, None)
    of_kind = (await running_store.api.get(path, params={"kind": "os", "process": "0"})).json()["items"]
    assert {one["kind"] for one in of_kind} == {"os.environ"}
    assert len(of_kind) == 3
    sums = (await running_store.api.get(f"{path}/sums")).json()
    assert sum(group["count"] for group in sums["items"]) == 3 * 8
    assert sums["items"][0]["kinds"][0]["kind"] == "time.time"
    assert (await running_store.api.get(path, params={"cursor": "nowhere.0"})).json()[
        "type"
    ] == "urn:playhead:problem:bad_cursor"


async def database_rows(database: Database) -> int:
    """How many batches of effects are stored."""
    async with database.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM effects"))


async def test_an_exchange_whose_answer_was_seen_to_end_is_waited_for(spools: Path, database: Database) -> None:
    *events, last = exchange_events(conversation(1)[0])
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            await write_records(spool, events)
            assert not await running_store.store_server.wait_until_settled(0.3), (
                "the agent has seen its answer end, so it must be in"
            )
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(running_store.api.get(f"/v1/runs/{RUN}?settled=true"))
                await write_records(spool, [last])
            assert asking.result().json()["calls"] == 1


async def test_a_batch_that_waits_for_a_lock_makes_unready_until_it_is_stored(
    spools: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database answers all the while: what asks it only whether it is there finds nothing wrong."""
    monkeypatch.setattr(ingester, "LATE_AFTER", 0.05)
    async with open_store(spools, database) as running_store:

        async def wait_until_ready(status: int) -> str:
            async with asyncio.timeout(30):
                while (answer := await running_store.api.get("/readyz")).status_code != status:  # noqa: ASYNC110 - it sends no events
                    await asyncio.sleep(0.02)
            return answer.text

        with Spool(spools / "worker") as spool:
            async with database.connection() as other, other.transaction():
                await other.execute("LOCK TABLE exchanges IN ACCESS EXCLUSIVE MODE")
                await write_records(spool, exchange_events(conversation(1)[0]))
                assert "perhaps because it waits for a lock" in await wait_until_ready(503)
            await wait_until_ready(200)
            assert (await running_store.api.get(f"/v1/runs/{RUN}?settled=true")).json()["calls"] == 1


async def test_an_exchange_in_flight_is_not_waited_for(spools: Path, database: Database) -> None:
    one, other = conversation(2)
    async with open_store(spools, database) as running_store:
        with Spool(spools / "worker") as spool:
            await write_records(spool, [*list(exchange_events(one))[:3], *exchange_events(other)])
            run = (await running_store.api.get(f"/v1/runs/{RUN}?settled=true")).json()
            assert (run["settled"], run["calls"]) == (True, 1)


async def test_several_workers_are_drained_side_by_side(spools: Path, database: Database) -> None:
    sent = conversation(6)
    async with open_store(spools, database) as running_store:
        with Spool(spools / "one") as one, Spool(spools / "two") as two:
            for n, exchange in enumerate(sent):
                await write_records(two if n % 2 else one, exchange_events(exchange))
            assert await running_store.store_server.wait_until_settled(10)
    assert await load_exchanges(database) == sent


async def test_what_a_dead_worker_left_open_is_stored_as_cut_with_a_gap(spools: Path, database: Database) -> None:
    whole, torn = conversation(2)
    with Spool(spools / "worker") as spool:
        await write_records(spool, [*exchange_events(whole), *list(exchange_events(torn))[:-2]])
    async with running(make_ingester(spools, database)) as store_server:
        await until(lambda: not (spools / "worker").exists())
        assert await store_server.wait_until_settled(5)
    first, second = await load_exchanges(database)
    assert first == whole
    assert (second.id, second.outcome, second.ended_at) == (torn.id, "server_closed", None)
    assert second.request == torn.request
    (gap,) = await gaps(database)
    assert (gap.exchange, gap.reason) == (torn.id, WORKER_DIED)


async def test_a_dead_worker_s_open_exchange_waits_for_the_database(
    spools: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.ingest.ingester.MAX_OPEN_WEIGHT", 0)  # so that it is parked as well
    torn = conversation(1)[0]
    store_server = make_ingester(spools, database)
    async with running(store_server):
        with Spool(spools / "worker") as spool:
            await write_records(spool, list(exchange_events(torn))[:-2])
            await store_server.wait_until_settled(0.5)
        away = replace_writer(store_server, Flaky(database, ["before"] * 1000))
        await away.tried.wait()
    assert await load_exchanges(database) == []
    async with running(make_ingester(spools, database)):
        await until(lambda: not (spools / "worker").exists())
    assert [each.request for each in await load_exchanges(database)] == [torn.request]
    assert len(await gaps(database)) == 1


def replace_writer(store_server: Ingester, writer: Flaky) -> Flaky:
    store_server._projects = ProjectWriters(writer, store_server._derive_in_project)
    return writer


async def until(met: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition on disk is met."""
    async with asyncio.timeout(seconds):
        while not met():  # noqa: ASYNC110 - the file system sends no event
            await asyncio.sleep(0.02)


async def test_a_living_worker_s_spool_is_left_alone(spools: Path, database: Database) -> None:
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            await write_records(spool, exchange_events(conversation(1)[0]))
            assert await store_server.wait_until_settled(10)
        assert (spools / "worker").is_dir()
    assert await gaps(database) == []


async def test_what_comes_after_a_batch_is_stored_together_unless_somebody_waits(
    spools: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingester, "BATCH_PAUSES", (600, 600))
    store_server = make_ingester(spools, database)
    writer = replace_writer(store_server, Flaky(database, []))
    first, *later = conversation(4)
    with Spool(spools / "worker") as spool:
        async with running(store_server):
            await write_records(spool, exchange_events(first))
            await until(lambda: store_server.counts.exchanges == 1, 30)
            for exchange in later:
                await write_records(spool, exchange_events(exchange))
            assert await store_server.wait_until_settled(30)
    assert [size for size in writer.sizes if size] == [1, 3]
    assert await load_exchanges(database) == [first, *later]


async def test_the_pause_after_a_batch_grows_while_nobody_reads(
    spools: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal, stream, idle = FeedSignal(), "a stream begins", "nothing to store"
    events = deque([*["batch"] * 6, stream, "batch", "batch", "the stream ends", "batch", "batch", idle, "batch"])
    store_server = make_ingester(spools, database)
    monkeypatch.setattr(store_server, "_is_read", signal.is_read)
    pauses: list[float] = []

    async def drain_each() -> bool:
        while (event := events.popleft()) in (stream, "the stream ends"):
            signal.streams = event == stream
        if not events:
            store_server.stop()
        return event == "batch"

    async def note_pause(_: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(store_server, "_drain_each", drain_each)
    monkeypatch.setattr(ingester, "_wait_for", note_pause)
    monkeypatch.setattr(store_server, "_drain_before_stop", stop_at_once)
    await store_server._drain()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1, 1, 0.1, 0.1, 0.2, 0.4, 0.02, 0.1]


async def stop_at_once() -> None:
    """Drain nothing more."""


async def test_gaps_and_replay_reports_go_through(spools: Path, database: Database) -> None:
    gap = Gap(RUN, NOON, "the spool was full", None)
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            await write_records(
                spool, [gap, ReplayReported("r", b'{"served":1}'), ReplayReported("r", b'{"served":2}')]
            )
            assert await store_server.wait_until_settled(10)
    assert await gaps(database) == [gap]
    assert await Runs(database).replay("r") == b'{"served":2}'


@pytest.mark.parametrize("faults", [["before"], ["after"], ["after", "before", "after"]])
async def test_a_database_that_goes_away_loses_nothing_and_doubles_nothing(
    faults: list[str], spools: Path, database: Database
) -> None:
    store_server = make_ingester(spools, database)
    replace_writer(store_server, Flaky(database, faults))
    with Spool(spools / "worker") as spool:
        async with running(store_server):
            await write_records(spool, [each for exchange in conversation(3) for each in exchange_events(exchange)])
            assert await store_server.wait_until_settled(10)
            assert "database" not in store_server.troubles
    assert await load_exchanges(database) == conversation(3)
    assert store_server.counts.retries == len(faults)


async def test_a_store_server_that_is_stopped_while_the_database_is_away_forgets_nothing(
    spools: Path, database: Database
) -> None:
    with Spool(spools / "worker") as spool:
        await write_records(spool, [each for exchange in conversation(3) for each in exchange_events(exchange)])
        first = make_ingester(spools, database)
        away = replace_writer(first, Flaky(database, ["before"] * 1000))
        async with running(first):
            await away.tried.wait()
            assert not await first.wait_until_settled(0.2)
            assert "away" in first.troubles["database"]
        assert await load_exchanges(database) == []
        async with running(make_ingester(spools, database)) as second:
            assert await second.wait_until_settled(10)
    assert await load_exchanges(database) == conversation(3)


@pytest.mark.parametrize("cut", range(0, 22, 3))
async def test_a_store_server_may_die_after_any_event(cut: int, spools: Path, database: Database) -> None:
    """Interleave exchanges, so that there is always an open one at the cursor."""
    one, two, three = (list(exchange_events(exchange)) for exchange in conversation(3))
    mixed = [event for group in zip(one, two, three, strict=True) for event in group]
    with Spool(spools / "worker") as spool:
        await write_records(spool, mixed[:cut])
        async with running(make_ingester(spools, database)) as store_server:
            # Not always, because an answer may have ended whose exchange is not closed.
            await store_server.wait_until_settled(1)
        await write_records(spool, mixed[cut:])
        async with running(make_ingester(spools, database)) as store_server:
            assert await store_server.wait_until_settled(10)
    assert await load_exchanges(database) == conversation(3)
    assert await gaps(database) == []


POISON = (
    b"\xc1",
    b"\x93\xa5hello\x01\x02",
    encode_records(next(iter(exchange_events(conversation(1)[0]))))[:-5],
    b"\x93\xa3gap\xa1\xff\x01",
    b"\x91" * 100_000,
)


@pytest.mark.parametrize("poison", POISON)
async def test_an_event_that_nobody_understands_is_set_aside_and_the_rest_goes_on(
    poison: bytes, spools: Path, database: Database
) -> None:
    one, two = conversation(2)
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            await write_records(spool, exchange_events(one))
            spool.append(poison)
            await write_records(spool, exchange_events(two))
            assert await store_server.wait_until_settled(10)
        assert [path.read_bytes() for path in (spools / "worker" / "damaged").iterdir()] == [poison]
    assert await load_exchanges(database) == [one, two]
    (gap,) = await gaps(database)
    assert "unknown to this Playhead" in gap.reason


async def test_damage_in_a_spool_is_a_gap_and_its_bytes_outlive_the_spool(spools: Path, database: Database) -> None:
    one, two = conversation(2)
    with Spool(spools / "worker") as spool:
        await write_records(spool, exchange_events(one))
        size = next((spools / "worker").glob("*.seg")).stat().st_size
        await write_records(spool, exchange_events(two))
    segment = next((spools / "worker").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[size + 20] ^= 1
    segment.write_bytes(data)
    async with running(make_ingester(spools, database)):
        await until(lambda: not (spools / "worker").exists())
    assert (await load_exchanges(database))[0] == one
    assert any("cannot be read" in gap.reason for gap in await gaps(database))
    assert list((spools.parent / "damaged" / "worker").iterdir())


async def test_a_call_that_cannot_be_derived_costs_no_evidence(
    spools: Path, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_to_derive(exchange: Exchange) -> Call:
        raise ZeroDivisionError

    store_server = make_ingester(spools, database, fail_to_derive)
    with Spool(spools / "worker") as spool:
        async with running(store_server):
            await write_records(spool, exchange_events(conversation(1)[0]))
            assert await store_server.wait_until_settled(10)
    assert await load_exchanges(database) == conversation(1)
    assert store_server.counts.underived == 1
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "mistaken", ["store.attribution.grouping.RunGrouping.group_batch", "store.ingest.batch_writer.call_row"]
)
async def test_no_mistake_in_what_is_derived_keeps_the_evidence_from_being_stored(
    mistaken: str, spools: Path, database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_derive(*_: object, **_named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(mistaken, fail_to_derive)
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            await write_records(spool, exchange_events(conversation(1)[0]))
            assert await store_server.wait_until_settled(10)
    assert await load_exchanges(database) == conversation(1)
    assert "ZeroDivisionError" in caplog.text


async def test_a_spool_that_cannot_be_read_is_named_and_the_others_go_on(spools: Path, database: Database) -> None:
    (spools / "bad" / "cursor").mkdir(parents=True)
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            await write_records(spool, exchange_events(conversation(1)[0]))
            assert not await store_server.wait_until_settled(10), "nobody knows what is in there"
            assert list(store_server.troubles) == ["bad"]
    assert await load_exchanges(database) == conversation(1)


async def test_what_is_no_spool_is_no_trouble(spools: Path, database: Database) -> None:
    (spools / ".DS_Store").write_bytes(b"stray")
    (spools / "lost+found").mkdir()
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            await write_records(spool, exchange_events(conversation(1)[0]))
            assert await store_server.wait_until_settled(10)
            assert store_server.troubles == {}
    assert [path.name for path in (spools / "lost+found").iterdir()] == []


async def test_an_idle_store_server_forgets_what_it_has_stored(spools: Path, database: Database) -> None:
    with Spool(spools / "worker", max_bytes=64 << 10) as spool:
        async with running(make_ingester(spools, database)) as store_server:
            for n in range(12):
                await write_records(
                    spool, [each for exchange in conversation(1, n) for each in exchange_events(exchange)]
                )
                assert await store_server.wait_until_settled(10)
            await until(lambda: (spools / "worker" / "cursor").exists())
            await until(lambda: len(list((spools / "worker").glob("*.seg"))) == 1)
            await until(lambda: store_server.bytes_pending() == 0)
    assert len(await load_exchanges(database)) == 12


async def test_what_a_worker_recorded_is_stored_in_the_projects_of_its_full_names(
    spools: Path, database: Database
) -> None:
    here, there = conversation(2)[:2]
    there = replace(there, run=f"web/{RUN}")
    with Spool(spools / "worker") as spool:
        async with running(make_ingester(spools, database)) as store_server:
            records = [*exchange_events(here), *exchange_events(there), Gap(f"web/{RUN}", NOON, "the disk was full")]
            await write_records(spool, [*records, ReplayReported("web/again", b"{}")])
            assert await store_server.wait_until_settled(10)
    assert [one.id for one in await load_exchanges(database)] == [here.id]
    web = CallReader(database, lambda _: pytest.fail("nothing is derived here"), "web")
    assert [(one.id, one.run) async for one in web.exchanges(RUN)] == [(there.id, RUN)]
    assert await gaps(database) == []
    assert [gap.reason for gap in await Runs(database, "web").gaps(RUN)] == ["the disk was full"]
    assert await Runs(database).replay("again") is None
    assert await Runs(database, "web").replay("again") == b"{}"
