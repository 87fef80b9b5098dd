"""A tool call without a run is attributed to the one run whose model requested it, in any order of arrival."""

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.model import Exchange, ToolCall
from store.attribution.grouping import RunGrouping
from store.call_graph.call_graph import (
    ToolExecution,
    execution_search_values,
    is_possible_execution,
    tool_search_values,
)
from store.database.connection import Database
from store.foreign.parts import one_chunk_body
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.runs import Runs
from tests.store.attribution.test_run_assignment import CHAT, OWNER, exchanges_by_run, filed_as, put, understood
from tests.store.attribution.test_run_chains import make_exchange, run_of

MCP = "https://mcp.example.com/mcp"
type Asked = tuple[str, dict[str, str]]


def turn(number: int, *asks: Asked, brings: Sequence[str] = (), evidence: Sequence[tuple[str, str]] = ()) -> Exchange:
    """A model call, with the tool calls that it requests and the ids of the results that it sends."""
    calls = [
        {"id": id_, "type": "function", "function": {"name": "weather", "arguments": json.dumps(arguments)}}
        for id_, arguments in asks
    ]
    says = [{"role": "tool", "tool_call_id": one, "content": "1.4 mm"} for one in brings]
    message = {"role": "assistant", "content": "It rains.", "tool_calls": calls}
    answer = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "model": "gpt-5",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}, *says]}
    return make_exchange(number, CHAT, body, answer, *evidence)


def weather(number: int, city: str = "Oslo", *evidence: tuple[str, str], owner: str = OWNER) -> Exchange:
    """A tool call over HTTP."""
    return make_exchange(
        number, "https://weather.example.com/v1/now", {"city": city}, {"rain": 1.4}, *evidence, owner=owner
    )


def rpc(number: int, method: str, params: Any = None, session: str = "s-1") -> Exchange:
    """A message of an MCP session."""
    one = make_exchange(
        number, MCP, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, {"jsonrpc": "2.0", "id": 1}
    )
    heads = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
    return replace(one, request=replace(one.request, headers=(*heads, ("mcp-session-id", session))))


def session(number: int, *calls: tuple[int, str], name: str = "s-1") -> list[Exchange]:
    """A new MCP session, with calls of its tool."""
    return [
        rpc(number, "initialize", session=name),
        rpc(number + 1, "tools/list", session=name),
        *(rpc(at, "tools/call", {"name": "weather", "arguments": {"city": city}}, name) for at, city in calls),
    ]


OSLO, ROME = ("call_o", {"city": "Oslo"}), ("call_r", {"city": "Rome"})


def ids(*of: Exchange) -> list[str]:
    return [one.id for one in of]


async def ends_as(database: Database, expected: dict[str, list[str]], made: Sequence[Exchange]) -> None:
    """Store exchanges in any order: one at a time, all at once, and again."""
    orders = list(itertools.permutations(made))
    for order in orders[:: max(len(orders) // 7, 1)]:
        for one in order:
            await put(database, one)
        assert await exchanges_by_run(database) == expected
        for run in expected:
            assert await Runs(database).delete(run)
    await put(database, *made)
    await put(database, *made)
    await put(database, made[-1])
    await put(database, made[0])
    assert await exchanges_by_run(database) == expected


async def test_what_was_called_between_the_asking_and_the_telling_is_of_their_run(database: Database) -> None:
    made = [turn(1, OSLO), weather(2), turn(3, brings=["call_o"]), weather(4)]
    await ends_as(database, {run_of(*made): ids(*made[:3]), OWNER: ids(made[3])}, made)
    found = await CallReader(database, understood).run_calls(run_of(*made))
    assert found.items[0]["tool_calls"][0]["executed_by"] == made[1].id
    stored = await CallReader(database, understood).exchange(made[1].id)
    assert stored is not None
    assert stored.run_evidence == (("executes", "call_o"), ("owner", OWNER))


async def test_of_two_agents_each_has_its_own_tools(database: Database) -> None:
    one = [turn(1, OSLO), weather(3, "Oslo"), turn(5, brings=["call_o"])]
    other = [turn(2, ROME), weather(4, "Rome"), turn(6, brings=["call_r"])]
    await ends_as(database, {run_of(*each): ids(*each) for each in (one, other)}, [*one, *other])


async def test_what_two_runs_could_have_asked_for_is_of_nobody(database: Database) -> None:
    same = ("call_x", {"city": "Oslo"})
    one, other = [turn(1, OSLO), turn(5, brings=["call_o"])], [turn(2, same), turn(6, brings=["call_x"])]
    tool = weather(4)
    await ends_as(
        database, {run_of(*one): ids(*one), run_of(*other): ids(*other), OWNER: ids(tool)}, [*one, *other, tool]
    )


async def test_nobody_is_drawn_in_who_was_named_or_is_another_or_came_at_another_time(database: Database) -> None:
    made = [turn(1, OSLO), turn(4, brings=["call_o"])]
    others = {
        "mine": weather(2, "Oslo", ("credentials", "mine")),
        "header": weather(2, "Oslo", ("x-playhead-run", "header")),
        "told": weather(2, "Oslo", ("baggage/session.id", "told")),
        "18f3a2-10.0.0.8": weather(2, owner="18f3a2-10.0.0.8"),
        OWNER: weather(5),
    }
    others = {run: replace(one, id=one.id[:-1] + str(n)) for n, (run, one) in enumerate(others.items())}
    early = replace(weather(1), started_at=made[0].started_at + 1)
    early = replace(early, id=early.id[:-1] + "9")
    await put(database, *made, early, *others.values())
    found = await exchanges_by_run(database)
    assert {run: found.pop(run) for run in ("mine", "header", "told", "18f3a2-10.0.0.8")} == {
        run: [one.id] for run, one in others.items() if run != OWNER
    }
    assert found == {run_of(*made): ids(*made), OWNER: ids(early, others[OWNER])}


async def test_an_asking_that_our_own_words_named_draws_nobody(database: Database) -> None:
    mine = [("credentials", "mine")]
    made = [turn(1, OSLO, evidence=mine), weather(2), turn(3, brings=["call_o"], evidence=mine)]
    await put(database, *made)
    assert await exchanges_by_run(database) == {"mine": ids(made[0], made[2]), OWNER: ids(made[1])}


async def test_a_tool_follows_a_run_that_an_agent_s_own_header_named(database: Database) -> None:
    named = [("thread-id", "theirs")]
    made = [turn(1, OSLO, evidence=named), weather(2), turn(3, brings=["call_o"], evidence=named)]
    await ends_as(database, {"theirs": ids(*made)}, made)


async def test_a_tool_that_was_tried_again_follows_with_both_tries(database: Database) -> None:
    failed = weather(2)
    assert failed.response
    failed = replace(failed, response=replace(failed.response, status=503))
    made = [turn(1, OSLO), failed, weather(3), turn(4, brings=["call_o"])]
    await put(database, *made)
    assert await exchanges_by_run(database) == {run_of(*made): ids(*made)}


async def test_a_call_that_no_model_requested_keeps_its_run(database: Database) -> None:
    made = [turn(1, OSLO), weather(2), turn(3)]
    await put(database, *made)
    assert await exchanges_by_run(database) == {OWNER: ids(*made)}


async def test_a_session_of_mcp_goes_where_its_tools_are_called(database: Database) -> None:
    shaken = session(1, (4, "Oslo"))
    talk = [turn(3, OSLO), turn(5, brings=["call_o"])]
    await ends_as(database, {run_of(*talk): ids(*shaken[:2], talk[0], shaken[2], talk[1])}, [*shaken, *talk])


def test_the_session_of_mcp_is_kept_as_evidence() -> None:
    found = filed_as(rpc(1, "tools/list"))
    assert (found.run, found.run_evidence) == (OWNER, (("mcp-session-id", "s-1"), ("owner", OWNER)))
    assert filed_as(found) == found


async def test_a_session_that_two_agents_share_is_of_nobody_though_its_tools_are(database: Database) -> None:
    shaken = session(1, (5, "Oslo"), (6, "Rome"))
    one, other = [turn(3, OSLO), turn(7, brings=["call_o"])], [turn(4, ROME), turn(8, brings=["call_r"])]
    expected = {
        OWNER: ids(*shaken[:2]),
        run_of(*one): ids(one[0], shaken[2], one[1]),
        run_of(*other): ids(other[0], shaken[3], other[1]),
    }
    for first, second in ((one, other), (other, one)):
        await put(database, *shaken)
        for made in (*first, *second):
            await put(database, made)
        assert await exchanges_by_run(database) == expected
        for run in expected:
            assert await Runs(database).delete(run)


async def test_a_store_server_that_remembers_files_as_one_that_reads(database: Database) -> None:
    same = ("call_x", {"city": "Oslo"})
    one, other = [turn(1, OSLO), turn(5, brings=["call_o"])], [turn(2, same), turn(6, brings=["call_x"])]
    tool, kin, ingest = (
        weather(4),
        RunGrouping(database, lambda one: DerivedExchange(one, understood(one))),
        BatchWriter(database),
    )
    for made in (one[0], tool, one[1]):
        await ingest.write_batch(await kin.group_batch([DerivedExchange(made, understood(made))]))
    assert await exchanges_by_run(database) == {run_of(*one): ids(one[0], tool, one[1])}
    for made in (other[1], other[0]):
        await ingest.write_batch(await kin.group_batch([DerivedExchange(made, understood(made))]))
    assert await exchanges_by_run(database) == {run_of(*one): ids(*one), run_of(*other): ids(*other), OWNER: ids(tool)}
    stored = await CallReader(database, understood).exchange(tool.id)
    assert stored == tool


async def test_evidence_that_cannot_be_read_stays_and_holds_up_nobody(database: Database) -> None:
    made = [turn(1, OSLO, ROME), weather(2), weather(3, "Rome"), turn(4, brings=["call_o", "call_r"])]
    await put(database, *made[:3])
    async with database.connection() as connection:
        await connection.execute("UPDATE exchanges SET request_digest = '' WHERE id = $1", made[1].id)
    await put(database, made[3])
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT id, run FROM exchanges ORDER BY id")
    chain = run_of(*made)
    assert [(str(row["id"]), row["run"]) for row in rows] == [
        (one.id, OWNER if one is made[1] else chain) for one in made
    ]


@pytest.mark.parametrize("asked", ["now", "mcp__weather__now", "weather.now", "weather/now"])
def test_a_tool_without_arguments_is_found_by_its_name(asked: str) -> None:
    tool, done = ToolCall(id="a", name=asked, arguments={}), ToolCall(id="b", name="now", arguments={})
    assert set(execution_search_values(ToolExecution("x", 0, frozenset(("9", "2.0")), [done]))) <= set(
        tool_search_values(tool)
    )


values = st.one_of(st.text(max_size=3), st.integers(0, 99), st.lists(st.text(max_size=2), max_size=2))
names = st.sampled_from(["now", "w__now", "w_now", "a.now", "then"])
tools = st.builds(
    ToolCall, id=st.just("a"), name=names, arguments=st.dictionaries(st.text(max_size=1), values, max_size=3)
)


@given(tools, st.frozensets(st.text(max_size=3), max_size=5), st.lists(tools, max_size=1))
def test_whatever_fits_is_found(tool: ToolCall, beside: frozenset[str], called: list[ToolCall]) -> None:
    for said in (beside, beside | frozenset(tool_search_values(tool))):
        done = ToolExecution("x", 0, said, called)
        assert not is_possible_execution(tool, done) or not set(tool_search_values(tool)).isdisjoint(
            execution_search_values(done)
        )


async def test_what_tools_returned_is_read_again_once_however_long_the_run_is(database: Database) -> None:
    """Each model call refers to all tool calls of its run, whose requests decide; answers of megabytes do not."""
    derivations: Counter[str] = Counter()
    steps = 12

    def derive(one: Exchange) -> DerivedExchange:
        derivations[one.id] += 1
        return DerivedExchange(one, understood(one))

    grouping, writer = RunGrouping(database, derive), BatchWriter(database)
    made: list[Exchange] = []
    for step in range(steps):
        results = [f"call_{earlier}" for earlier in range(step)]
        asks = turn(2 * step, (f"call_{step}", {"city": f"city {step}"}), brings=results)
        tool = weather(2 * step + 1, f"city {step}")
        assert tool.response is not None
        made += [asks, replace(tool, response=replace(tool.response, body=one_chunk_body(b'"%s"' % (b"rain " * 9000))))]
    made.append(turn(2 * steps, brings=[f"call_{step}" for step in range(steps)]))
    for one in made:
        await writer.write_batch(await grouping.group_batch([DerivedExchange(one, understood(one))]))
    assert await exchanges_by_run(database) == {run_of(*made): ids(*made)}
    assert max(derivations.values()) <= 1
    # After a restart, nothing is remembered.
    derivations.clear()
    grouping = RunGrouping(database, derive)
    for step in range(3):
        last = turn(2 * steps + 1 + step, brings=[f"call_{earlier}" for earlier in range(steps)])
        await writer.write_batch(await grouping.group_batch([DerivedExchange(last, understood(last))]))
    assert max(derivations.values()) <= 1
