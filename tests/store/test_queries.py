"""What is read: runs, calls, exchanges and their order, in the shapes of the contract."""

import asyncio
import datetime as dt
import hashlib
import random
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from calls.events import Gap, ReplayReported
from calls.model import Body, Call, Exchange
from store.database.blobs import CorruptData
from store.database.connection import Database
from store.feed.entries import IDLE
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import Cost
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.pages import BadCursor
from store.query.rest_shapes import rfc3339
from store.query.runs import Runs
from store.search.lookup import TextLookup
from tests.store import samples
from tests.store.samples import NOON, SECOND, call, exchange, model_call, tool_exchange, uuid7

LATER = NOON + 3600 * SECOND


def derive(of: Exchange) -> Call:
    """Stands in for `calls.derive`: says back what it was given."""
    return call(of, text=of.request.body.data.decode("latin-1"), answer={"status": of.outcome})


@pytest.fixture
def ingest(database: Database) -> BatchWriter:
    return BatchWriter(database, profile="sha256:profiles")


@pytest.fixture
def runs(database: Database) -> Runs:
    return Runs(database)


@pytest.fixture
def queries(database: Database) -> CallReader:
    return CallReader(database, derive)


def steps(items: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(item["step"], item["nth"]) for item in items]


async def test_a_run_counts_what_was_recorded_of_it(database: Database, ingest: BatchWriter, runs: Runs) -> None:
    first, second = exchange(0), exchange(1)
    third = replace(exchange(2), response=None, outcome="client_closed")
    await ingest.write_batch(
        [DerivedExchange(first, model_call(first)), DerivedExchange(second, call(second)), DerivedExchange(third, None)]
    )
    found = await runs.get("night-run", NOON + 3 * SECOND)
    async with database.connection() as connection:
        [chain] = await connection.fetch("SELECT server, size, head FROM chains")
    chains = chain["server"].bytes + chain["size"].to_bytes(8, "big") + chain["head"]
    assert found == {
        "id": "night-run",
        "name": None,
        "labels": {},
        "started_at": "2026-11-21T12:00:00.000000Z",
        "active_at": "2026-11-21T12:00:02.478901Z",
        "ended_at": None,
        "calls": 2,
        "exchanges": 3,
        "gaps": 0,
        "complete": True,
        "pinned": False,
        "parent": None,
        "forked_at": None,
        "models": ["gpt-5"],
        "tokens": {"input_tokens": 100, "output_tokens": 10, "cached_tokens": None, "reasoning_tokens": None},
        "cost_usd": None,
        "known_cost_usd": None,
        "unpriced": 1,
        "profile": "sha256:profiles",
        "attribution": "given",
        "isolation": "none",
        "head": f"sha256:{hashlib.sha256(chains).hexdigest()}",
    }


async def test_a_run_that_was_never_recorded_is_none(runs: Runs, queries: CallReader) -> None:
    assert await runs.get("never", LATER) is None
    assert not await runs.patch("never", name="x")
    assert not await runs.delete("never")
    assert (await queries.run_calls("never")).items == []
    assert [one async for one in queries.exchanges("never")] == []


@pytest.mark.parametrize(
    "lacking",
    [
        replace(exchange(1), ended_at=None),
        replace(exchange(1), request=replace(exchange(1).request, body=Body(data=b"{", size=9, truncated=True))),
        exchange(1, outcome="server_closed", request=b"cut"),
        exchange(1, outcome="timed_out", request=b"cut"),
    ],
    ids=["an end", "bytes", "an answer's end", "an answer's end in time"],
)
async def test_a_run_that_lacks_something_is_incomplete(ingest: BatchWriter, runs: Runs, lacking: Exchange) -> None:
    made = call(lacking, complete=False)
    await ingest.write_batch(
        [tool_exchange(0), tool_exchange(0, run="whole", at=NOON + 1), DerivedExchange(lacking, made)]
    )
    found = await runs.page(Filters(incomplete=True), LATER)
    assert [(run["id"], run["complete"]) for run in found.items] == [("night-run", False)]
    found = await runs.page(Filters(incomplete=False), LATER)
    assert [(run["id"], run["complete"]) for run in found.items] == [("whole", True)]


async def test_a_run_lacks_nothing_where_a_client_left_or_nothing_came_or_it_came_whole_when_tried_again(
    ingest: BatchWriter, runs: Runs
) -> None:
    broken = [
        exchange(0, outcome="client_closed", request=b"left"),
        replace(exchange(1, outcome="server_closed", request=b"never reached"), response=None),
        exchange(2, outcome="server_closed", request=b"tried again"),
    ]
    heard, again = exchange(3, outcome="server_closed", request=b"heard"), exchange(4, request=b"tried again")
    puts = [DerivedExchange(each, call(each, complete=False)) for each in broken]
    await ingest.write_batch(
        [*puts, DerivedExchange(heard, call(heard, complete=False, streamed=True)), DerivedExchange(again, call(again))]
    )
    found = await runs.page(Filters(incomplete=False), LATER)
    assert [(run["id"], run["complete"]) for run in found.items] == [("night-run", True)]
    assert (await runs.page(Filters(incomplete=True), LATER)).items == []


async def test_a_gap_makes_a_run_incomplete_even_where_nothing_else_is_known_of_it(
    ingest: BatchWriter, runs: Runs
) -> None:
    gap = Gap("lost-run", NOON, "the spool was full")
    await ingest.write_batch([], [gap])
    found = await runs.get("lost-run", NOON)
    assert found is not None
    assert (found["gaps"], found["complete"], found["exchanges"]) == (1, False, 0)
    assert await runs.gaps("lost-run") == [gap]


async def test_a_run_ends_when_it_has_been_idle_and_not_before(ingest: BatchWriter, runs: Runs) -> None:
    await ingest.write_batch([tool_exchange(0, ended_at=SECOND)])
    last = NOON + SECOND
    assert (await runs.get("night-run", last + IDLE - 1) or {})["ended_at"] is None
    assert (await runs.get("night-run", last + IDLE) or {})["ended_at"] == rfc3339(last)


async def test_a_later_request_opens_an_ended_run_and_one_that_was_under_way_does_not(
    ingest: BatchWriter, runs: Runs
) -> None:
    await ingest.write_batch([tool_exchange(0)])
    assert await runs.patch("night-run", ended_at=NOON + 5 * SECOND)
    await ingest.write_batch([tool_exchange(4, ended_at=60 * SECOND)])
    assert (await runs.get("night-run", NOON) or {})["ended_at"] == rfc3339(NOON + 5 * SECOND)
    await ingest.write_batch([tool_exchange(6)])
    assert (await runs.get("night-run", NOON) or {})["ended_at"] is None


async def test_calls_come_in_step_order_whatever_order_they_were_stored_in(
    ingest: BatchWriter, queries: CallReader
) -> None:
    made = [exchange(n, request=b"%d" % (n % 2)) for n in range(6)]
    batch = [DerivedExchange(one, call(one)) for one in made]
    random.Random(7).shuffle(batch)
    for one in batch:
        await ingest.write_batch([one])
    page = await queries.run_calls("night-run")
    assert [item["id"] for item in page.items] == [one.id for one in made]
    assert steps(page.items) == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
    assert [one async for one in queries.exchanges("night-run")] == made


async def test_exchanges_that_began_in_the_same_nanosecond_are_ordered_by_id(
    ingest: BatchWriter, queries: CallReader
) -> None:
    made = [exchange(n, at=NOON) for n in range(5)]
    await ingest.write_batch([DerivedExchange(one, call(one)) for one in made])
    page = await queries.run_calls("night-run")
    assert [item["id"] for item in page.items] == sorted(one.id for one in made)


async def test_an_exchange_without_a_call_takes_a_step_all_the_same(ingest: BatchWriter, queries: CallReader) -> None:
    await ingest.write_batch([tool_exchange(0), DerivedExchange(exchange(1), None), tool_exchange(2)])
    assert [item["step"] for item in (await queries.run_calls("night-run")).items] == [1, 3]


async def test_pages_join_without_a_seam_in_both_orders(ingest: BatchWriter, queries: CallReader, runs: Runs) -> None:
    await ingest.write_batch([tool_exchange(n, run=f"run-{n % 3}", at=NOON + n // 2 * SECOND) for n in range(25)])
    newest = await walk(partial(queries.calls, Filters()))
    assert [item["id"] for item in newest] == [
        one["id"] for one in sorted(newest, key=lambda item: (item["started_at"], item["id"]), reverse=True)
    ]
    assert len({item["id"] for item in newest}) == 25
    in_order = await walk(partial(queries.run_calls, "run-1"))
    assert [item["step"] for item in in_order] == list(range(1, len(in_order) + 1))
    assert sorted(run["id"] for run in await walk(partial(runs.page, Filters(), LATER))) == ["run-0", "run-1", "run-2"]


async def walk(fetch: Any) -> list[dict[str, Any]]:
    """All items of a list, two at a time."""
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await fetch(limit=2, cursor=cursor)
        items += page.items
        if (cursor := page.next) is None:
            return items


@pytest.mark.parametrize("cursor", ["x", "bm90IGpzb24=", "WzEsInh5eiJd", "WzEsMl0=", "é"])
async def test_a_cursor_that_no_list_gave_is_refused(queries: CallReader, cursor: str) -> None:
    with pytest.raises(BadCursor, match="request the first page"):
        await queries.calls(Filters(), cursor=cursor)


FILTERS = {
    "model": Filters(models=("gpt-5",)),
    "returned model": Filters(models=("gpt-5-2026",)),
    "provider": Filters(providers=("openai",)),
    "tool": Filters(tools=("refund",)),
    "host": Filters(hosts=("api.openai.com",)),
    "status": Filters(statuses=(range(429, 430),)),
    "status class": Filters(statuses=(range(400, 500),)),
    "one of two models": Filters(models=("absent", "gpt-5")),
    "one of two tools": Filters(tools=("absent", "refund")),
    "one of two statuses": Filters(statuses=(range(500, 600), range(429, 430))),
    "kind": Filters(kinds=("model",)),
    "dialect": Filters(dialects=("openai_chat",)),
    "operation": Filters(operations=("chat",)),
    "actor": Filters(actors=("planner",)),
    "key": Filters(keys=(hashlib.sha256(b"wanted").digest(), bytes(32))),
    "cost": Filters(min_cost=Decimal("0.25")),
    "duration": Filters(min_duration=2 * SECOND),
    "an error": Filters(error=True),
    "parent": Filters(parent="first"),
    "label": Filters(labels={"team": "blue"}),
    "any label": Filters(labels={"team": None}),
    "since": Filters(since=NOON + SECOND),
    "part of the run's name": Filters(q="NIGHT%"),
    "all of them": Filters(
        models=("gpt-5",),
        providers=("openai",),
        tools=("refund",),
        hosts=("api.openai.com",),
        labels={"team": "blue"},
        since=NOON + 1,
    ),
}


async def test_each_filter_finds_the_run_and_the_call_that_it_should_and_no_other(
    database: Database, ingest: BatchWriter, runs: Runs, queries: CallReader
) -> None:
    other = exchange(0, run="other", url="https://tickets.example.com:8443/v2", actor="writer")
    wanted = exchange(
        1,
        run="wanted",
        url="https://api.openai.com/v1/chat/completions",
        status=429,
        request=b"wanted",
        actor="planner",
        ended_at=2 * SECOND,
    )
    cost = Cost(usd=Decimal("0.25"), prices="test")
    await ingest.write_batch(
        [
            DerivedExchange(other, call(other)),
            DerivedExchange(wanted, model_call(wanted, tools=["refund", "reply"]), cost=cost),
        ]
    )
    await add_totals(database, "other", cost=None, duration=SECOND)
    await add_totals(database, "wanted", cost=cost.usd, duration=2 * SECOND)
    await runs.put("wanted", NOON + SECOND, "night% shift", {"team": "blue", "tier": "1"}, parent="first")
    await runs.put("other", NOON, "nights", {"tier": "1"})
    for name, given in FILTERS.items():
        filters = await TextLookup(database, "default").resolve(given)
        assert [run["id"] for run in (await runs.page(filters, LATER)).items] == ["wanted"], name
        assert [item["run"] for item in (await queries.calls(filters)).items] == ["wanted"], name


async def add_totals(database: Database, run: str, *, cost: Decimal | None, duration: int, tokens: int = 0) -> None:
    """Write the sums of a run, which the store server makes a moment after its calls."""
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO run_totals (project, run, started_at, calls, errors, tokens, cost_usd, duration)"
            " VALUES ('default', $1, $2, 1, 0, $3, $4, $5)",
            *(run, NOON, tokens, cost, duration),
        )


@pytest.mark.parametrize(
    ("filters", "others"),
    [(Filters(error=False), ["other"]), (Filters(incomplete=False), ["wanted", "other"]), (Filters(parent="x"), [])],
)
async def test_a_filter_can_ask_for_what_has_no_error_and_for_what_does_not_exist(
    ingest: BatchWriter, runs: Runs, queries: CallReader, filters: Filters, others: list[str]
) -> None:
    await ingest.write_batch([tool_exchange(0, run="other"), tool_exchange(1, run="wanted", status=500)])
    assert [run["id"] for run in (await runs.page(filters, LATER)).items] == others
    assert [item["run"] for item in (await queries.calls(filters)).items] == others


async def test_until_is_exclusive_and_since_inclusive(ingest: BatchWriter, queries: CallReader) -> None:
    await ingest.write_batch([tool_exchange(n) for n in range(4)])
    page = await queries.calls(Filters(since=NOON + SECOND, until=NOON + 3 * SECOND))
    assert [item["started_at"] for item in page.items] == [rfc3339(NOON + 2 * SECOND), rfc3339(NOON + SECOND)]


async def test_a_tool_is_found_by_its_host_as_well(ingest: BatchWriter, queries: CallReader) -> None:
    made = exchange(0)
    await ingest.write_batch(
        [DerivedExchange(made, call(made)), tool_exchange(1, url="https://elsewhere.example.com/")]
    )
    assert len((await queries.calls(Filters(tools=("tickets.example.com",)))).items) == 1


async def test_a_call_shows_its_columns_and_what_is_derived_again(ingest: BatchWriter, queries: CallReader) -> None:
    made = exchange(0, request=b"what?", actor="planner")
    await ingest.write_batch(
        [DerivedExchange(made, model_call(made, tools=["refund"], finish_reason="stop", streamed=True))]
    )
    found = await queries.call(made.id)
    assert found is not None
    assert {name: found[name] for name in ("kind", "provider", "model_returned", "finish_reason", "streamed")} == {
        "kind": "model",
        "provider": "openai",
        "model_returned": "gpt-5-2026",
        "finish_reason": "stop",
        "streamed": True,
    }
    assert (found["text"], found["answer"]) == ("what?", {"status": "completed"})
    assert (found["actor"], found["method"], found["path"]) == ("planner", "POST", "/v2/search")
    assert (found["first_byte_ms"], found["duration_ms"]) == (412.345678, 478.901234)
    assert (found["attempts"], found["exchanges"]) == (1, [made.id])
    assert found["key"].startswith("sha256:")


async def test_an_exchange_shows_its_wire(ingest: BatchWriter, queries: CallReader) -> None:
    made = exchange(3, pieces=4, step=9)
    await ingest.write_batch([tool_exchange(0), DerivedExchange(made, call(made))])
    found = await queries.exchange_shape(made.id)
    assert found is not None
    assert (found["step"], found["client_step"], found["chunks"]) == (2, 9, 4)
    assert found["request_headers"][0] == ["Host", "api.openai.com"]
    assert found["first_byte_at"] == "2026-11-21T12:00:03.412345Z"
    assert (found["request_size"], found["response_size"]) == (20, 12)


@pytest.mark.parametrize("unknown", ["", "nonsense", uuid7(NOON, 77), "00000000-0000-4000-8000-000000000000"])
async def test_an_id_that_is_not_here_is_none(queries: CallReader, unknown: str) -> None:
    assert await queries.call(unknown) is None
    assert await queries.exchange(unknown) is None
    assert await queries.exchange_shape(unknown) is None


async def test_names_and_labels_can_be_given_changed_and_taken_away(runs: Runs) -> None:
    await runs.put("fresh", NOON, "first", {"a": "1", "b": "nul \0 and \ud800"})
    await runs.put("fresh", LATER, None, {"c": "3"})
    assert await runs.patch("fresh", labels={"a": None, "c": "4"}, pinned=True)
    found = await runs.get("fresh", LATER) or {}
    assert (found["name"], found["labels"]) == ("first", {"b": "nul \N{REPLACEMENT CHARACTER} and ?", "c": "4"})
    assert (found["pinned"], found["started_at"]) == (True, rfc3339(NOON))


async def test_putting_a_run_opens_it_again(runs: Runs) -> None:
    await runs.put("fresh", NOON)
    await runs.patch("fresh", ended_at=NOON + 1)
    await runs.put("fresh", NOON + 2)
    assert (await runs.get("fresh", NOON + 2) or {})["ended_at"] is None


async def test_a_deleted_run_leaves_nothing_and_its_neighbour_everything(
    database: Database, ingest: BatchWriter, runs: Runs, queries: CallReader
) -> None:
    talk, other = list(samples.conversation("talk", 3)), list(samples.conversation("other", 3))
    await ingest.write_batch([DerivedExchange(one, model_call(one)) for one in talk + other], [Gap("talk", NOON, "x")])
    assert await runs.delete("talk")
    async with database.connection() as connection:
        for table in ("runs", "exchanges", "calls", "parts", "gaps"):
            column = "id" if table == "runs" else "run"
            assert await connection.fetchval(f"SELECT count(*) FROM {table} WHERE {column} = 'talk'") == 0
    assert [one async for one in queries.exchanges("other")] == other


async def test_a_run_that_was_deleted_while_it_ran_is_whole_from_then_on(
    ingest: BatchWriter, runs: Runs, queries: CallReader
) -> None:
    talk = list(samples.conversation("talk", 6))
    await ingest.write_batch([DerivedExchange(one, model_call(one)) for one in talk[:4]])
    await runs.delete("talk")
    await ingest.write_batch([DerivedExchange(one, model_call(one)) for one in talk[4:]])
    assert [one async for one in queries.exchanges("talk")] == talk[4:]


async def test_a_body_whose_part_is_gone_or_changed_is_never_served(database: Database, ingest: BatchWriter) -> None:
    talk = list(samples.conversation("talk", 2))
    await ingest.write_batch([DerivedExchange(one, None) for one in talk])
    recorded = CallReader(database, derive)
    async with database.connection() as connection:
        await connection.execute("UPDATE parts SET body = '\\x00'::bytea || substr(body, 2)")
    with pytest.raises(CorruptData):
        await recorded.exchange(talk[0].id)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM parts")
    with pytest.raises(CorruptData, match="is missing"):
        await recorded.exchange(talk[0].id)


async def test_projects_do_not_see_each_other(database: Database, ingest: BatchWriter) -> None:
    await BatchWriter(database, project="theirs").write_batch([tool_exchange(0), tool_exchange(1, run="theirs")])
    await ingest.write_batch([tool_exchange(0)])
    assert await Runs(database).get("theirs", NOON) is None
    assert (await Runs(database, "theirs").get("theirs", NOON) or {})["exchanges"] == 1
    await Runs(database, "theirs").delete("night-run")
    assert (await Runs(database).get("night-run", NOON) or {})["exchanges"] == 1


async def test_the_last_report_of_a_replay_wins(ingest: BatchWriter, runs: Runs) -> None:
    await ingest.write_batch(
        [], [], [ReplayReported("r", b'{"served": 1}'), ReplayReported("r", b'{"served": 2, "x": "\\u0000"}')]
    )
    assert await runs.replay("r") == b'{"served": 2, "x": "\\u0000"}'
    assert await runs.replay("other") is None


async def test_a_run_of_many_pages_and_days_is_read_whole(ingest: BatchWriter, queries: CallReader) -> None:
    day = 24 * 3600 * SECOND
    made = [exchange(n, at=NOON + n * day // 60) for n in range(230)]
    await ingest.write_batch([DerivedExchange(one, None) for one in made])
    assert [one async for one in queries.exchanges("night-run")] == made


async def test_lists_do_not_wait_for_one_another(ingest: BatchWriter, queries: CallReader, runs: Runs) -> None:
    await ingest.write_batch([tool_exchange(n) for n in range(50)])
    pages = await asyncio.gather(*(queries.calls(Filters()) for _ in range(8)), runs.page(Filters(), LATER))
    assert [len(page.items) for page in pages] == [50] * 8 + [1]


def test_times_are_written_in_utc_with_microseconds() -> None:
    assert rfc3339(NOON + 1_999) == "2026-11-21T12:00:00.000001Z"
    assert dt.datetime.fromisoformat(rfc3339(0)) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
