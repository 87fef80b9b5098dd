"""Calls that refer to one another's ids are one run, in any order of arrival, and no other call is moved into it."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.model import Exchange
from store.attribution.correlation_ids import produced_ids, referenced_ids
from store.attribution.run_assignment import CHAIN_PREFIX, assign_run
from store.attribution.run_chains import ChainLink, Chains
from store.database.connection import Database
from store.query.runs import Runs
from tests.calls.strategies import json_values
from tests.store.attribution.test_run_assignment import (
    CHAT,
    OWNER,
    SESSION,
    TRACE,
    exchanges_by_run,
    filed_as,
    put,
    understood,
)
from tests.store.samples import exchange

RESPONSES = "https://api.openai.com/v1/responses"
MESSAGES = "https://api.anthropic.com/v1/messages"
AGENT = "https://agents.example.com/rpc"
CONTEXT = "0b7c1f6e-3f0d-4c1b-9d2e-7a4d5f6e8c90"


def make_exchange(
    number: int, url: str, body: dict[str, Any], answer: Any, *evidence: tuple[str, str], owner: str = OWNER
) -> Exchange:
    """An exchange with `evidence` and the owner of its connection."""
    known = (*evidence, ("owner", owner))
    return exchange(
        number,
        url=url,
        request=json.dumps(body, default=float).encode(),
        response=json.dumps(answer, default=float).encode(),
        run=next(value for source, value in known if source != "traceparent"),
        run_evidence=known,
    )


def response(
    number: int, name: str, before: str | None = None, *evidence: tuple[str, str], owner: str = OWNER
) -> Exchange:
    """A Responses call that continues another."""
    body = {"model": "gpt-5", "input": "go on", **({"previous_response_id": before} if before else {})}
    answer = {"id": name, "object": "response", "status": "completed", "model": "gpt-5", "output": []}
    return make_exchange(number, RESPONSES, body, answer, *evidence, owner=owner)


def chat(number: int, *calls: str, results: tuple[str, ...] = (), **more: Any) -> Exchange:
    """A chat whose answer requests tool calls, and whose request has the results of others."""
    says = [{"role": "tool", "tool_call_id": name, "content": "12"} for name in results]
    asks = [{"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in calls]
    message = {"role": "assistant", "content": None, "tool_calls": asks}
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}, *says]}
    return make_exchange(
        number, CHAT, body, {"id": f"chatcmpl-{number}", "choices": [{"index": 0, "message": message}]}, **more
    )


def agent(
    number: int, *evidence: tuple[str, str], asked: str | None = None, answered: str | None = CONTEXT
) -> Exchange:
    """A message from an agent to another."""
    message = {"role": "user", "messageId": f"m-{number}", "parts": [], **({"contextId": asked} if asked else {})}
    body = {"jsonrpc": "2.0", "id": "1", "method": "message/send", "params": {"message": message}}
    task = {"kind": "task", "id": f"t-{number}", "contextId": answered, "status": {"state": "completed"}}
    return make_exchange(number, AGENT, body, {"jsonrpc": "2.0", "id": "1", "result": task}, *evidence)


def run_of(*links: Exchange) -> str:
    return CHAIN_PREFIX + links[0].id


def test_ids_are_kept_as_evidence_in_their_place() -> None:
    found = filed_as(response(2, "resp_b", "resp_a", ("traceparent", TRACE)))
    assert found.run_evidence == (("link", "resp_a"), ("traceparent", TRACE), ("owner", OWNER))
    found = filed_as(response(2, "resp_b", "resp_a", ("session-id", "s")))
    assert (found.run, found.run_evidence) == ("s", (("session-id", "s"), ("link", "resp_a"), ("owner", OWNER)))
    assert filed_as(found) == found
    mine = response(2, "resp_b", "resp_a", ("credentials", "mine"))
    assert filed_as(mine) == mine


def test_a_session_of_openai_s_agents_is_gone_on_from_by_its_path() -> None:
    sessions = "https://api.openai.com/v1/agents/sessions"
    begun = make_exchange(1, sessions, {"input": "hi"}, {"id": "sess_000001", "object": "agent.session"})
    told_more = make_exchange(2, f"{sessions}/sess_000001/events", {"events": []}, {})
    assert produced_ids(begun, understood(begun)) == referenced_ids(told_more, understood(told_more)) == ["sess_000001"]


def test_the_context_of_an_agent_names_the_run_as_it_is_asked_or_as_it_is_minted() -> None:
    assert filed_as(agent(1)).run_evidence == (("answer/contextId", CONTEXT), ("owner", OWNER))
    assert filed_as(agent(1)).run == CONTEXT
    assert filed_as(agent(2, asked="ticket-904", answered=CONTEXT)).run == "ticket-904"
    assert filed_as(agent(3, ("thread-id", "mine"))).run == "mine"


@pytest.mark.parametrize("name", ["ticket-904", "night-run", "x" * 40, "", "a b" * 10, "\u0661" * 30])
def test_who_is_asked_cannot_aim_at_a_run_that_has_a_name(name: str) -> None:
    assert filed_as(agent(1, answered=name)).run == OWNER


async def test_a_chain_of_responses_is_one_run_in_whatever_order_it_comes(database: Database) -> None:
    links = [response(1, "resp_a"), response(2, "resp_b", "resp_a"), response(3, "resp_c", "resp_b")]
    alone = response(4, "resp_z")
    expected = {OWNER: [alone.id], run_of(*links): [one.id for one in links]}
    for order in itertools.permutations(links):
        for one in (alone, *order):
            await put(database, one)
        assert await exchanges_by_run(database) == expected
        for run in expected:
            assert await Runs(database).delete(run)
    await put(database, alone, *links)
    assert await exchanges_by_run(database) == expected
    # Read again after a crash, completely and in parts.
    await put(database, *links)
    await put(database, links[1])
    assert await exchanges_by_run(database) == expected


async def test_branches_are_of_the_run_that_they_leave_from_also_where_that_is_not_recorded(database: Database) -> None:
    links = [chat(1, "call_a", "call_b"), chat(2, "call_c", results=("call_a",)), chat(3, results=("call_b",))]
    await put(database, links[2])
    await put(database, links[1])
    await put(database, links[0])
    lost = [chat(4, results=("call_lost",)), chat(5, results=("call_lost",))]
    for one in lost:
        await put(database, one)
    assert await exchanges_by_run(database) == {
        run_of(*links): [one.id for one in links],
        run_of(*lost): [one.id for one in lost],
    }


async def test_two_programs_beside_each_other_are_two_runs(database: Database) -> None:
    one = [response(n * 2, f"resp_a{n}", f"resp_a{n - 1}" if n else None) for n in range(4)]
    other = [chat(n * 2 + 1, f"call_b{n}", results=(f"call_b{n - 1}",) if n else ()) for n in range(4)]
    for pair in zip(one, other, strict=True):
        await put(database, *pair)
    assert await exchanges_by_run(database) == {run_of(*each): [link.id for link in each] for each in (one, other)}


async def test_a_conversation_that_is_sent_again_goes_on_from_the_newest_id_in_it(database: Database) -> None:
    blocks = [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]
    asked = make_exchange(1, MESSAGES, {"model": "claude", "messages": []}, {"type": "message", "content": blocks})
    told_so = [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "12"}]},
        {"role": "assistant", "content": "It is 12."},
        {"role": "user", "content": "And now?"},
    ]
    again = make_exchange(2, MESSAGES, {"model": "claude", "messages": told_so}, {"type": "message", "content": []})
    await put(database, asked, again)
    assert await exchanges_by_run(database) == {run_of(asked): [asked.id, again.id]}


async def test_who_asks_whether_work_is_done_is_of_the_run_that_began_it(database: Database) -> None:
    queued = {"id": "resp_q", "object": "response", "status": "queued", "output": []}
    begun = make_exchange(
        1, RESPONSES, {"model": "gpt-5", "input": "x", "background": True, "prompt_cache_key": SESSION}, queued
    )
    looked = make_exchange(2, f"{RESPONSES}/resp_q", {}, {**queued, "status": "completed"})
    looked = replace(
        looked, request=replace(looked.request, method="GET", body=replace(looked.request.body, data=b"", size=0))
    )
    for order in ([begun, looked], [looked, begun]):
        for one in order:
            await put(database, filed_as(one))
        assert await exchanges_by_run(database) == {SESSION: [begun.id, looked.id]}
        assert await Runs(database).delete(SESSION)


@pytest.mark.parametrize(
    ("producer", "run"),
    [
        ((("credentials", "theirs"),), "theirs"),
        ((("x-playhead-run", "theirs"),), "theirs"),
    ],
)
async def test_what_our_own_words_named_is_neither_moved_nor_joined(
    database: Database, producer: tuple[tuple[str, str], ...], run: str
) -> None:
    theirs = [response(1, "resp_a", None, *producer), response(2, "resp_b", "resp_a", *producer)]
    forged = response(3, "resp_c", "resp_b")
    before = response(0, "resp_0")
    after = response(4, "resp_d", "resp_0", *producer)
    await put(database, *theirs, forged, before, after)
    assert await exchanges_by_run(database) == {
        OWNER: [before.id, forged.id],
        run: [theirs[0].id, theirs[1].id, after.id],
    }


async def test_an_id_of_another_machine_s_call_is_none(database: Database) -> None:
    mine, theirs = response(1, "resp_a"), response(2, "resp_b", "resp_a", owner="18f3a2-10.0.0.8")
    await put(database, mine)
    await put(database, theirs)
    assert await exchanges_by_run(database) == {OWNER: [mine.id], "18f3a2-10.0.0.8": [theirs.id]}


async def test_an_id_that_answers_of_two_runs_made_names_nobody(database: Database) -> None:
    makers = [chat(1, "call_1"), chat(2, "call_1"), chat(3, results=("call_1",)), chat(4, results=("call_1",))]
    await put(database, *makers)
    assert await exchanges_by_run(database) == {OWNER: [one.id for one in makers]}


async def test_ids_come_before_a_trace_of_one_s_own_and_behind_a_name(database: Database) -> None:
    links = [
        response(1, "resp_a", None, ("session-id", "named")),
        response(2, "resp_b", "resp_a", ("traceparent", "a" * 32)),
        response(3, "resp_c", "resp_b", ("traceparent", "b" * 32)),
        response(4, "resp_d", "resp_c", ("session-id", "other")),
    ]
    for one in links:
        await put(database, one)
    assert await exchanges_by_run(database) == {"named": [one.id for one in links[:3]], "other": [links[3].id]}


async def test_what_shares_a_trace_stays_there(database: Database) -> None:
    links = [response(n, f"resp_{n}", f"resp_{n - 1}" if n else None, ("traceparent", TRACE)) for n in range(3)]
    for one in links:
        await put(database, one)
    assert await exchanges_by_run(database) == {TRACE: [one.id for one in links]}


@given(
    st.lists(
        st.builds(
            ChainLink,
            id=st.sampled_from("abcdef"),
            started_at=st.integers(0, 6),
            run=st.sampled_from([OWNER, "named", "chain:a", "chain:b", "chain:c"]),
            ties=st.lists(st.integers(0, 7), max_size=4),
            is_movable=st.booleans(),
        )
    )
)
def test_any_links_have_runs_and_what_is_named_keeps_its_own(links: list[ChainLink]) -> None:
    chains = Chains(links)
    last = {one.id: one for one in links}
    assert chains.runs.keys() == last.keys()
    assert all(chains.runs[name] == one.run for name, one in last.items() if not one.is_movable)


@given(st.sampled_from([CHAT, RESPONSES, MESSAGES, AGENT]), json_values, json_values)
def test_no_body_is_too_odd_to_be_searched_for_ids(url: str, body: Any, answer: Any) -> None:
    one = make_exchange(1, url, body, answer)
    call = understood(one)
    assert all((*produced_ids(one, call), *referenced_ids(one, call)))
    assert assign_run(assign_run(one, call), call) == assign_run(one, call)
