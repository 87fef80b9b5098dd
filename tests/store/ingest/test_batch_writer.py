"""The batch writer stores each exchange once and completely, also when Postgres fails or is killed."""

import asyncio
import datetime as dt
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.events import Gap
from calls.model import Exchange
from store.database import tables
from store.database.blobs import part_hash, unpack
from store.database.connection import Database, DatabaseUnavailable
from store.database.rows import encode_head, read_exchange
from store.embedded.postgres import EmbeddedServer, ensure_server
from store.ingest.array_text import columns_of, parameter_type
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.ingest.dedup_cache import DedupCache
from store.ingest.insert_rows import exchange_row, gap_id
from store.ingest.partitions import Partitions, day_of, first_id_of
from store.query.call_reader import CallReader
from store.query.runs import Runs
from tests.store import samples
from tests.store.exchanges import exchanges
from tests.store.samples import NOON, SECOND, call, exchange, model_call, tool_exchange, uuid7
from tests.support.postgres import run as run_program
from tests.support.postgres import url

DAY = 24 * 3600 * SECOND
TODAY = dt.date(2026, 11, 21)


async def load_exchanges(database: Database, run: str = "night-run") -> list[Exchange]:
    """Read back the exchanges of a run."""
    return [one async for one in CallReader(database, call).exchanges(run)]


async def counts(database: Database) -> dict[str, int]:
    async with database.connection() as connection:
        return {
            table: await connection.fetchval(f"SELECT count(*) FROM {table}")
            for table in ("runs", "exchanges", "calls", "parts", "gaps", "replays")
        }


PACKED = ("head", "request_body", "response_body", "salt", "offloaded")
COLUMNS = [column.name for column in tables.exchanges.columns if column.name not in PACKED]


# Counts of more than 64 bits are quarantined.
@given(exchanges.filter(lambda one: abs(one.step or 0) < 1 << 63))
def test_every_exchange_comes_back_from_its_row(one: Exchange) -> None:
    row: dict[str, Any] = dict(zip(COLUMNS, exchange_row(one, "default"), strict=True))
    answer = one.response.body.data if one.response else b""
    bodies = {"request_body": b"\0" + one.request.body.data, "response_body": b"\0" + answer}
    assert read_exchange({**row, "head": b"\0" + encode_head(one), **bodies}, {}) == one


async def test_exchanges_of_every_kind_come_back_from_postgres(database: Database) -> None:
    whole = exchange(0, pieces=7)
    assert whole.response
    odd = [
        whole,
        replace(exchange(1), response=None, first_byte_at=None, ended_at=None, outcome="server_closed", error="reset"),
        exchange(2, request=b"", response=b""),
        exchange(3, request=bytes(range(256)) * 40, response=b"\0" * 100_000),
        exchange(4, url="https://host/\0nul/\x7f\xff", actor="planner", step=7, redactions=3),
        replace(exchange(5), run_evidence=(("header", "night-run"), ("baggage", "x"))),
        replace(
            exchange(6), request=replace(whole.request, headers=(("X", "\xff\0"), ("x", "")), trailers=(("t", "1"),))
        ),
    ]
    await BatchWriter(database).write_batch([DerivedExchange(one, None) for one in odd])
    assert await load_exchanges(database) == odd


async def test_storing_a_batch_twice_stores_it_once(database: Database) -> None:
    batch = [DerivedExchange(one, model_call(one)) for one in samples.conversation("night-run", 5)]
    gaps = [
        Gap("night-run", NOON, "the spool was full"),
        Gap("night-run", NOON, "the spool was full", batch[0].exchange.id),
    ]
    await BatchWriter(database).write_batch(batch, gaps)
    once = await counts(database)
    again = BatchWriter(database)
    await again.write_batch(batch, gaps)
    await again.write_batch(batch[2:], gaps[:1])
    later = await counts(database)
    assert (
        {**later, "parts": 0}
        == {**once, "parts": 0}
        == {"runs": 1, "exchanges": 5, "calls": 5, "gaps": 2, "replays": 0, "parts": 0}
    )
    assert await load_exchanges(database) == [one.exchange for one in batch]


async def test_two_store_servers_may_store_the_same_at_once(database: Database) -> None:
    batch = [tool_exchange(n, run=f"run-{n % 7}") for n in range(80)]
    await asyncio.gather(*(BatchWriter(database).write_batch(part) for part in (batch, batch[::-1], batch[20:])))
    assert (await counts(database))["exchanges"] == 80


async def test_a_conversation_takes_at_most_fifteen_percent_of_its_bytes(database: Database) -> None:
    talks = [list(samples.conversation(f"talk-{n}")) for n in range(40)]
    ingest = BatchWriter(database)
    await ingest.create_upcoming_partitions(TODAY)
    empty = await size(database)
    batch = [DerivedExchange(one, model_call(one)) for talk in talks for one in talk]
    for begin in range(0, len(batch), 200):
        await ingest.write_batch(batch[begin : begin + 200])
    raw = sum(
        len(one.exchange.request.body.data) + len(one.exchange.response.body.data)
        for one in batch
        if one.exchange.response
    )
    assert await size(database) - empty < 0.15 * raw
    assert await load_exchanges(database, "talk-7") == talks[7]


async def size(database: Database) -> int:
    """Bytes of all tables with their indexes."""
    async with database.connection() as connection:
        return int(
            await connection.fetchval(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            )
        )


async def test_a_conversation_goes_on_over_midnight_and_over_a_restart(database: Database) -> None:
    talk = [replace(one, id=uuid7(NOON + n * DAY // 8, n)) for n, one in enumerate(samples.conversation("talk", 10))]
    first, second = BatchWriter(database), BatchWriter(database)
    for one in talk[:7]:
        await first.write_batch([DerivedExchange(one, None)])
    for one in talk[7:]:
        await second.write_batch([DerivedExchange(one, None)])
    assert await load_exchanges(database, "talk") == talk


BAD = {
    "an id that is none": replace(exchange(1), id="nonsense"),
    "an id without a time": replace(exchange(1), id=str(uuid.uuid4())),
    "an id of the far future": replace(exchange(1), id="ffffffff-ffff-7000-8000-000000000000"),
    "a time that no column holds": exchange(1, at=1 << 64, id=uuid7(NOON, 1)),
    "a duration that no column holds": replace(exchange(1), ended_at=1 << 63),
    "text that is none": replace(exchange(1), error="\ud800"),
    "a status that no column holds": exchange(1, status=1 << 40),
    "a run without a name": replace(exchange(1), run=""),
    "a run with a name of a book's length": replace(exchange(1), run="x" * 3000),
    "a run with a NUL": replace(exchange(1), run="a\0b"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_what_postgres_cannot_hold_becomes_a_gap_with_its_evidence_and_the_rest_is_stored(
    database: Database, bad: Exchange
) -> None:
    good = [tool_exchange(n) for n in range(2, 9)]
    done = await BatchWriter(database).write_batch(
        [*good[:3], DerivedExchange(bad, None, ("worker-1 before 77",)), *good[3:]]
    )
    assert done.exchanges == 7
    assert len(done.quarantined) == 1
    assert "could not be stored" in done.quarantined[0].reason
    assert "worker-1 before 77" in done.quarantined[0].reason
    assert await load_exchanges(database) == [one.exchange for one in good]
    async with database.connection() as connection:
        evidence = unpack(await connection.fetchval("SELECT evidence FROM gaps"))
    if bad.error or bad.started_at >= 1 << 64:
        assert b"Exchange(id=" in evidence
    else:
        assert msgspec.msgpack.decode(evidence, type=Exchange) == bad


async def test_a_bad_call_does_not_keep_its_neighbours_from_being_stored(database: Database) -> None:
    bad = tool_exchange(1)
    assert bad.call
    done = await BatchWriter(database).write_batch(
        [tool_exchange(0), replace(bad, call=replace(bad.call, key="nonsense")), tool_exchange(2)]
    )
    assert (done.exchanges, [gap.exchange for gap in done.quarantined]) == (2, [bad.exchange.id])


async def test_a_conversation_whose_first_turn_is_refused_is_whole_without_it(database: Database) -> None:
    talk = list(samples.conversation("talk", 6))
    await Runs(database).put("talk", NOON)
    await BatchWriter(database).write_batch(
        [DerivedExchange(replace(talk[0], redactions=1 << 40), None), *(DerivedExchange(one, None) for one in talk[1:])]
    )
    assert await load_exchanges(database, "talk") == talk[1:]


async def test_odd_values_of_a_call_are_made_to_fit(database: Database) -> None:
    made = exchange(0, url="https://" + "h" * 5000 + "/")
    names = ["x" * 9000, 'a "b" c\\', "{d,e}", "NULL", "", " \n", "ß"]
    odd = model_call(made, tokens=1 << 70, model_requested="m" * 5000, model_returned="\0\ud800", tools=names)
    assert (await BatchWriter(database).write_batch([DerivedExchange(made, odd)])).quarantined == ()
    shape = await CallReader(database, lambda _: odd).call(made.id)
    assert shape is not None
    assert shape["usage"]["output_tokens"] is None
    assert len(shape["model_requested"]) == 200
    assert len(shape["host"]) == 200
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT tools FROM calls") == ["x" * 200, *names[1:]]


async def test_postgres_reads_the_columns_of_a_batch(database: Database) -> None:
    texts = ["", "NULL", "null", None, 'a"b', "\\", "{x,y}", " é\n,", "'", "\\N", 'ends with \\"']
    arrays = [["a,b", 'c"d', "", "\\"], None, [], ["NULL"], ["{}"], ["x"] * 3, ["é"], ["a"], ["b"], ["c"], ["d"]]
    rows = [
        ("default", one, array, n, b"\0", n % 2 == 0) for n, (one, array) in enumerate(zip(texts, arrays, strict=True))
    ]
    columns = {"one": "text", "tools": "text[]", "number": "bigint", "data": "bytea", "is_even": "boolean"}
    values = ", ".join(f"${n}::{parameter_type(kind)}" for n, kind in enumerate(columns.values(), 1))
    statement = f"SELECT one, tools::text[], number, data, is_even FROM unnest({values}) AS new (one, tools, number, data, is_even)"
    async with database.connection() as connection:
        for some in (rows, rows[:1], rows[3:4] * 3):
            found = await connection.fetch(statement, *columns_of(some, columns))
            assert [tuple(row.values()) for row in found] == [row[1:] for row in some]


async def test_a_gap_without_a_run_or_of_odd_text_is_kept(database: Database) -> None:
    await BatchWriter(database).write_batch([], [Gap("", NOON, "\0 and \ud800", "\0"), Gap("r" * 9000, 0, "x" * 9000)])
    assert (await counts(database))["gaps"] == 2


def test_the_same_gap_has_the_same_id_and_another_another() -> None:
    gap = Gap("run", NOON, "reason")
    assert gap_id(gap) == gap_id(Gap("run", NOON, "reason"))
    assert gap_id(gap).version == 7
    assert len({gap_id(one) for one in (gap, Gap("run", NOON + 1, "reason"), Gap("run", NOON, "reason", "x"))}) == 3


FAILS_TWICE = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'try again' USING ERRCODE = '{code}'; END IF;
    RETURN new;
END $$;
CREATE TRIGGER fail BEFORE INSERT ON runs FOR EACH STATEMENT EXECUTE FUNCTION fail()
"""


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_write_that_was_in_anothers_way_is_tried_again(database: Database, code: str) -> None:
    async with database.connection() as connection:
        await connection.execute(FAILS_TWICE.format(times=2, code=code))
    await BatchWriter(database).write_batch([tool_exchange(0)])
    assert (await counts(database))["exchanges"] == 1


async def test_a_write_that_is_in_the_way_for_ever_is_unavailable_and_nothing_is_quarantined(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.database.conflicts.RETRY_PAUSES", (0, 0))
    async with database.connection() as connection:
        await connection.execute(FAILS_TWICE.format(times=99, code="40001"))
    with pytest.raises(DatabaseUnavailable):
        await BatchWriter(database).write_batch([tool_exchange(0), tool_exchange(1)])
    assert (await counts(database))["gaps"] == 0


@pytest.mark.parametrize("code", ["53100", "57P03", "58030"])
async def test_a_full_disk_is_no_fault_of_the_rows(database: Database, code: str) -> None:
    async with database.connection() as connection:
        await connection.execute(FAILS_TWICE.format(times=1, code=code))
    ingest = BatchWriter(database)
    with pytest.raises(DatabaseUnavailable):
        await ingest.write_batch([tool_exchange(0)])
    await ingest.write_batch([tool_exchange(0)])
    assert (await counts(database)) == {"runs": 1, "exchanges": 1, "calls": 1, "parts": 0, "gaps": 0, "replays": 0}


async def test_a_cut_connection_is_unavailable_and_the_next_try_succeeds(database: Database) -> None:
    ingest = BatchWriter(database)
    talk = [DerivedExchange(one, None) for one in samples.conversation("talk", 6)]
    await ingest.write_batch(talk[:3])
    async with database.connection() as connection, database.connection() as other:
        pid = await other.fetchval("SELECT pg_backend_pid()")
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(DatabaseUnavailable):
            async with database.connection() as third:
                await third.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    await ingest.write_batch(talk)
    assert await load_exchanges(database, "talk") == [one.exchange for one in talk]


async def test_an_aborted_transaction_teaches_nothing(database: Database) -> None:
    talk = [DerivedExchange(one, None) for one in samples.conversation("talk", 4)]
    async with database.connection() as connection:
        await connection.execute(FAILS_TWICE.format(times=1, code="53100").replace("ON runs", "ON calls"))
    # The run exists already, so that the next attempt has the same incarnation.
    await Runs(database).put("talk", NOON)
    ingest = BatchWriter(database)
    first = talk[0].exchange
    with pytest.raises(DatabaseUnavailable):
        await ingest.write_batch([DerivedExchange(first, model_call(first))])
    await ingest.write_batch(talk[1:])
    assert await load_exchanges(database, "talk") == [one.exchange for one in talk[1:]]


async def test_partitions_are_made_ahead_and_for_whatever_comes_late(database: Database) -> None:
    ingest = BatchWriter(database)
    await ingest.create_upcoming_partitions(TODAY)
    late = exchange(1, at=NOON - 400 * DAY)
    await ingest.write_batch([tool_exchange(0), DerivedExchange(late, None)])
    async with database.connection() as connection:
        made = await connection.fetch(
            "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'exchanges'::regclass"
        )
    days = sorted(row["name"].removeprefix("exchanges_") for row in made)
    assert days == ["20251017", *(f"202611{day}" for day in range(20, 29))]


async def test_processes_may_make_the_same_partitions_at_once(database: Database) -> None:
    await asyncio.gather(*(Partitions(database).create_upcoming(TODAY) for _ in range(4)))


@given(st.dates(dt.date(2000, 1, 1), dt.date(2099, 12, 30)), st.integers(0, DAY // 1_000_000 - 1))
def test_the_bounds_of_a_day_hold_its_ids_and_no_other(day: dt.date, millisecond: int) -> None:
    begin = int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()) * 1000
    made = uuid.UUID(uuid7((begin + millisecond) * 1_000_000))
    assert day_of(str(made)) == day
    assert first_id_of(day) <= made < first_id_of(day + dt.timedelta(days=1))


def test_only_a_uuidv7_has_a_day_however_it_is_written() -> None:
    name = uuid7(NOON)
    assert {day_of(form) for form in (name, name.upper(), name.replace("-", ""))} == {day_of(name)}
    for other in (f"{name[:14]}4{name[15:]}", f"{name[:19]}c{name[20:]}", name[:-1], f"{name}\n"):
        with pytest.raises(ValueError, match=r"uuidv7|UUID"):
            day_of(other)


def test_what_is_known_is_bounded_and_forgets_the_quietest() -> None:
    known, life = DedupCache(limit=10), uuid.uuid4()
    places = {part_hash(bytes([n])): exchange_place(n) for n in range(4)}
    for run in ("a", "b"):
        known.remember(("default", run, TODAY), life, places)
    known.stored_content(("default", "a", TODAY), life)
    known.remember(("default", "c", TODAY), life, places)
    assert [known.stored_content(("default", run, TODAY), life).is_stored for run in ("a", "b", "c")] == [
        True,
        False,
        True,
    ]


def exchange_place(number: int) -> Any:
    return (part_hash(b"part"), number, 1, b"")


def test_what_was_known_of_an_earlier_life_is_not_true_of_the_next() -> None:
    known, first, second = DedupCache(), uuid.uuid4(), uuid.uuid4()
    known.remember(("default", "a", TODAY), first, {b"x": exchange_place(1)})
    assert not known.stored_content(("default", "a", TODAY), second).is_stored
    known.remember(("default", "a", TODAY), second, {b"y": exchange_place(2)})
    assert list(known.stored_content(("default", "a", TODAY), second).places) == [b"y"]


@pytest.fixture
def durable() -> Iterator[tuple[EmbeddedServer, Path]]:
    """A server that syncs its files, and its directory."""
    parent = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    parent.chmod(0o711)
    with ensure_server(parent / "pg") as server:
        yield server, parent / "pg"
    shutil.rmtree(parent)


async def test_nothing_is_lost_or_doubled_when_the_postmaster_is_killed_again_and_again(
    durable: tuple[EmbeddedServer, Path],
) -> None:
    server, base = durable
    run_program(server, "createdb", "calls")
    database = Database(url(server, "calls"))
    await database.prepare()
    batches = [
        [DerivedExchange(one, model_call(one)) for one in samples.conversation(f"talk-{n}", 12)] for n in range(30)
    ]
    async with asyncio.TaskGroup() as group:
        killer = group.create_task(asyncio.to_thread(kill_repeatedly, base, 4))
        refusals = await drain(BatchWriter(database), batches, server, killer)
    assert refusals
    assert await counts(database) == {
        "runs": 30,
        "exchanges": 360,
        "calls": 360,
        "gaps": 0,
        "replays": 0,
        "parts": (await counts(database))["parts"],
    }
    for n, batch in enumerate(batches):
        assert await load_exchanges(database, f"talk-{n}") == [one.exchange for one in batch]
    await database.close()


async def drain(
    ingest: BatchWriter,
    batches: Sequence[Sequence[DerivedExchange]],
    server: EmbeddedServer,
    killer: asyncio.Task[None],
) -> int:
    """Store the batches repeatedly until the killing ends; return how often Postgres was unavailable."""
    refusals = 0
    while True:
        for batch in batches:
            while True:
                try:
                    await ingest.write_batch(batch)
                    break
                except DatabaseUnavailable:
                    refusals += 1
                    await asyncio.to_thread(server.revive)
        if killer.done():
            return refusals


def kill_repeatedly(base: Path, times: int) -> None:
    """Kill each new postmaster once it accepts connections, some at once and some later."""
    killed = {0}
    for n in range(times):
        while (pid := postmaster(base)) in killed:
            time.sleep(0.02)
        time.sleep(0.05 + 0.1 * n)
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)


def postmaster(base: Path) -> int:
    """The pid of a server that accepts connections; 0 without one."""
    try:
        lines = (base / "data" / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return int(lines[0]) if len(lines) > 7 and lines[7].strip() == "ready" else 0
