"""Connections between calls: which answer a request continues, branches, and executions of tool calls."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from calls.model import Json, ToolCall
from store.call_graph.call_graph import CallGraph, Node, PrecedingCall, ToolExecution, match_executions


def nodes(*made: tuple[str, str, str]) -> list[Node]:
    """Build the graph of calls in step order: a name, the ids that it creates, the ids that it returns."""
    return [
        Node(id=name, started_at=at, created_ids=gives.split(), returned_ids=takes.split())
        for at, (name, gives, takes) in enumerate(made)
    ]


def tool(id: str, name: str = "weather", **arguments: Json) -> ToolCall:  # noqa: A002 # what it is
    return ToolCall(id=id, name=name, arguments=arguments)


def request(id: str, *values: str, at: int = 0, tools: Sequence[ToolCall] = ()) -> ToolExecution:  # noqa: A002 # likewise
    return ToolExecution(id, at, frozenset(values), tools)


def test_a_call_follows_the_one_whose_tool_calls_it_answers() -> None:
    found = CallGraph(nodes(("a", "1 2", ""), ("b", "3", "1 2"), ("c", "", "3")))
    assert found.follows == {"b": [PrecedingCall("a", ("1", "2"))], "c": [PrecedingCall("b", ("3",))]}
    assert found.answered_by == {("a", "1"): "b", ("a", "2"): "b", ("b", "3"): "c"}
    assert found.branches == {"a": 1, "b": 1, "c": 1}


def test_two_calls_that_go_on_from_one_are_two_branches() -> None:
    found = CallGraph(nodes(("a", "1 2", ""), ("b", "3", "1"), ("c", "4", "2"), ("d", "", "3"), ("e", "", "4")))
    assert found.branches == {"a": 1, "b": 1, "c": 2, "d": 1, "e": 2}


def test_sub_agents_that_begin_by_themselves_are_branches_of_their_own() -> None:
    found = CallGraph(
        nodes(("a", "1 2", ""), ("x", "7", ""), ("y", "8", ""), ("y2", "", "8"), ("x2", "", "7"), ("b", "", "1 2"))
    )
    assert found.branches == {"a": 1, "x": 2, "y": 3, "y2": 3, "x2": 2, "b": 1}


def test_branches_that_come_together_go_on_as_the_one_that_was_asked_last() -> None:
    found = CallGraph(nodes(("a", "1", ""), ("b", "2", ""), ("c", "", "1 2")))
    assert found.follows["c"] == [PrecedingCall("a", ("1",)), PrecedingCall("b", ("2",))]
    assert found.branches["c"] == found.branches["b"]


def test_a_call_that_nothing_leads_to_or_from_is_on_no_branch() -> None:
    found = CallGraph(nodes(("a", "1", ""), ("b", "", "9"), ("c", "", "")))
    assert (found.branches, found.follows, found.rounds) == ({}, {}, [])


def test_an_id_that_was_given_twice_is_of_the_one_who_gave_it_last() -> None:
    found = CallGraph(nodes(("a", "call_0", ""), ("b", "call_0", "call_0"), ("c", "", "call_0")))
    assert found.follows == {"b": [PrecedingCall("a", ("call_0",))], "c": [PrecedingCall("b", ("call_0",))]}


def test_a_call_follows_neither_itself_nor_a_later_one() -> None:
    assert CallGraph(nodes(("a", "1", "1"), ("b", "", "2"), ("c", "2", ""))).follows == {}


def test_what_was_answered_first_stays_answered_there() -> None:
    found = CallGraph(nodes(("a", "1", ""), ("b", "", "1"), ("c", "", "1")))
    assert found.answered_by == {("a", "1"): "b"}
    assert [one.follower.id for one in found.rounds] == ["b"]
    assert found.branches == {"a": 1, "b": 1, "c": 2}


ids = st.lists(st.sampled_from("1234"), max_size=3, unique=True).map(" ".join)


@given(st.lists(st.tuples(ids, ids), max_size=12))
def test_every_branch_begins_at_one_and_is_a_line(made: list[tuple[str, str]]) -> None:
    found = CallGraph(nodes(*((str(n), *pair) for n, pair in enumerate(made))))
    assert set(found.branches.values()) == set(range(1, len(set(found.branches.values())) + 1))
    for name, followed in found.follows.items():
        assert name in found.branches
        assert all(int(one.call) < int(name) for one in followed)
    for (asker, given_id), taker in found.answered_by.items():
        assert given_id in made[int(asker)][0].split()
        assert given_id in made[int(taker)][1].split()


# -- executions of tool calls


def test_the_request_with_the_arguments_did_it() -> None:
    asked = [tool("1", city="Oslo"), tool("2", city="Rome")]
    assert match_executions(asked, [request("r", "now", "Rome"), request("o", "now", "Oslo")]) == {"1": "o", "2": "r"}


def test_equal_requests_did_equal_tool_calls_in_their_order() -> None:
    asked = [tool("1", city="Oslo"), tool("2", city="Oslo")]
    assert match_executions(asked, [request("a", "Oslo"), request("b", "Oslo")]) == {"1": "a", "2": "b"}
    assert match_executions(asked, [request("a", "Oslo")]) == {"1": "a"}


def test_the_one_that_says_more_is_not_taken_for_less() -> None:
    asked = [tool("1", city="Oslo"), tool("2", city="Oslo", day="Monday")]
    assert match_executions(asked, [request("long", "Oslo", "Monday"), request("short", "Oslo")]) == {
        "1": "short",
        "2": "long",
    }


def test_of_two_tools_with_the_same_arguments_it_is_not_known_which_was_done() -> None:
    assert (
        match_executions([tool("1", "lock", door="7"), tool("2", "open", door="7")], [request("a", "door", "7")]) == {}
    )


def test_a_protocol_that_names_the_tool_tells_it_by_name() -> None:
    asked = [tool("1", "mcp__doors__lock", door=7), tool("2", "mcp__doors__open", door=7)]
    called = request("a", "7", tools=[tool("x", "open", door=7)])
    assert match_executions(asked, [called]) == {"2": "a"}
    assert match_executions([tool("1", "opens", door=7)], [called]) == {}
    assert match_executions([tool("1", "open", door=8)], [called]) == {}


def test_an_empty_tool_call_is_known_by_its_name_only() -> None:
    assert match_executions([tool("1", "now")], [request("a", "anything")]) == {}
    assert match_executions([tool("1", "now")], [request("a", tools=[tool("x", "now")])]) == {"1": "a"}


def test_who_reports_a_tool_call_among_much_else_has_not_done_it() -> None:
    telemetry = request("t", "Oslo", *(f"span {n}" for n in range(50)))
    assert match_executions([tool("1", city="Oslo")], [telemetry]) == {}
    assert match_executions([tool("1", city="Oslo")], [telemetry, request("a", "Oslo")]) == {"1": "a"}


def test_values_that_are_everywhere_tell_nothing() -> None:
    assert match_executions([tool("1", verbose=True, page=1)], [request("a", "true", "1")]) == {}


tool_calls = st.builds(
    ToolCall,
    id=st.sampled_from("abc"),
    name=st.sampled_from(["lock", "open"]),
    arguments=st.dictionaries(st.text(max_size=1), st.sampled_from(["Oslo", "Rome", 7, None, ["Oslo"]]), max_size=2),
)
dones = st.builds(
    ToolExecution,
    id=st.uuids().map(str),
    started_at=st.integers(),
    values=st.frozensets(st.sampled_from(["Oslo", "Rome", "7"])),
    tools=st.lists(tool_calls, max_size=1),
)


@given(st.lists(tool_calls, max_size=4, unique_by=lambda one: one.id), st.lists(dones, max_size=4))
def test_each_request_did_one_thing_at_most(tools: list[ToolCall], candidates: list[ToolExecution]) -> None:
    found = match_executions(tools, candidates)
    assert len(set(found.values())) == len(found)
    assert found.keys() <= {one.id for one in tools}
