"""What lists show of a call is the same whether it is read from the stored summary or derived from the bodies."""

import json
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Exchange, ToolCall
from store.active_profiles import load_profiles
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.large.summary import encode_exact_summary, encode_summary
from store.pricing.prices import call_cost
from store.query.call_reader import CallReader
from store.query.call_summaries import MEMBERS, SUMMARY, Fields
from store.query.filters import Filters
from store.query.rest_shapes import Shape
from tests.store.samples import SECOND, body, conversation

derive = partial(derive_call, profiles=load_profiles(None))

LISTED = MEMBERS - {"request", "answer", "tool_results"}


@pytest.fixture
def queries(database: Database) -> CallReader:
    return CallReader(database, derive)


def refuse(one: Exchange) -> Exchange:
    """The same request, refused."""
    assert one.response is not None
    refusal = body(b'{"error": {"type": "rate_limit_error"}}')
    return replace(one, response=replace(one.response, status=429, body=refusal))


def with_answer(one: Exchange, message: object, **more: object) -> Exchange:
    """The exchange with another message as its answer."""
    assert one.response is not None
    answer = json.dumps({"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    return replace(one, response=replace(one.response, body=body(answer)), **more)


def mcp_request(one: Exchange) -> Exchange:
    """A call of a tool whose answer may arrive on another exchange."""
    assert one.response is not None
    asked = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "find", "arguments": {"q": "x"}}}
    return replace(
        one,
        request=replace(one.request, url="https://mcp.example.com/mcp", body=body(json.dumps(asked).encode())),
        response=replace(one.response, status=202, body=body(b"")),
    )


def exchanges() -> Iterator[Exchange]:
    """Calls whose summaries are whole, cut, or cannot be stored."""
    one, two, three, four, five, six, seven = conversation("talk", 7)
    yield one
    yield replace(refuse(two), id=two.id)
    # Tried again.
    yield replace(two, id=three.id, started_at=two.started_at + SECOND, request=two.request)
    tool = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "find", "arguments": '{"limit": 1.50, "words": "x"}'},
    }
    yield with_answer(four, {"role": "assistant", "content": "y" * 2000, "tool_calls": [tool]})
    long = {
        "id": "call_2",
        "type": "function",
        "function": {"name": "n" * 300, "arguments": json.dumps({"x": "z" * 5000})},
    }
    yield with_answer(five, {"role": "assistant", "content": "\ud800", "tool_calls": [long]}, actor="planner" * 50)
    yield mcp_request(six)
    yield replace(seven, response=None, outcome="client_closed")


async def list_calls(queries: CallReader, fields: Fields) -> list[Shape]:
    return (await queries.calls(Filters(), 50, None, fields)).items


async def test_a_list_shows_the_same_from_summaries_as_from_bodies(database: Database, queries: CallReader) -> None:
    calls = [(one, derive(one)) for one in exchanges()]
    await BatchWriter(database).write_batch(
        [DerivedExchange(one, call, cost=call_cost(one, call)) for one, call in calls]
    )
    every: list[Fields] = [SUMMARY, LISTED, *(frozenset((name,)) for name in sorted(LISTED))]
    summed = [await list_calls(queries, fields) for fields in every]
    run = [(await queries.run_calls(calls[0][0].run, fields=fields)).items for fields in every]
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM calls WHERE summary IS NOT NULL") == 5
        await connection.execute("UPDATE calls SET summary = NULL")
    assert summed == [await list_calls(queries, fields) for fields in every]
    assert run == [(await queries.run_calls(calls[0][0].run, fields=fields)).items for fields in every]
    assert len(summed[0]) == 6


def test_a_call_without_texts_has_the_same_summary_as_any_other() -> None:
    one = next(iter(conversation("talk", 1)))
    call = derive(one)
    bare = replace(call, text=None, params={}, tool_calls=(), warnings=())
    for actor in (None, "planner"):
        acted = replace(one, actor=actor)
        assert encode_exact_summary(acted, bare) == encode_summary(acted, bare)
        for more in (
            {"text": "x"},
            {"params": {"n": 1}},
            {"warnings": ("w",)},
            {"tool_calls": (ToolCall(id="i", name="n", arguments={}),)},
        ):
            said = replace(bare, **more)
            assert encode_exact_summary(acted, said) == encode_summary(acted, said)
            assert encode_exact_summary(acted, said) != encode_exact_summary(acted, bare)
    assert encode_exact_summary(replace(one, actor="\ud800"), bare) is None


async def test_a_list_reads_no_bodies(database: Database, queries: CallReader) -> None:
    made = list(conversation("talk", 3))
    await BatchWriter(database).write_batch([DerivedExchange(one, derive(one)) for one in made])
    expected = await list_calls(queries, SUMMARY)
    async with database.connection() as connection:
        await connection.execute("UPDATE exchanges SET request_body = '', response_body = '', head = ''")
    assert await list_calls(queries, SUMMARY) == expected
    # Whose summaries follow older rules of deriving are derived, which the damage prevents; ids need neither.
    async with database.connection() as connection:
        await connection.execute("UPDATE calls SET summary = NULL")
    assert [item["id"] for item in await list_calls(queries, frozenset(("id", "cost_usd")))] == [
        one["id"] for one in expected
    ]
