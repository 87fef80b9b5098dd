"""A packed call graph says of the calls of each page what the graph of the whole run says of them."""

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.call_graph import packed_graph
from store.call_graph.call_graph import CallGraph, Node
from store.call_graph.packed_graph import PackedGraph

NO_CALL = str(uuid.UUID(int=1 << 100))


def call_id(number: int) -> str:
    """The id of a call. Their order is not that of the steps."""
    return str(uuid.UUID(int=number * 7919 % 1009))


def nodes(made: Sequence[tuple[set[str], set[str]]]) -> list[Node]:
    """The nodes of calls with these created and returned ids; two each begin at the same time."""
    return [
        Node(call_id(number), number // 2, tuple(created), tuple(returned), call_id(number + 500))
        for number, (created, returned) in enumerate(made)
    ]


some_ids = st.sets(st.sampled_from("1234"), max_size=3)


@given(st.lists(st.tuples(some_ids, some_ids), max_size=12), st.integers(0, 12), st.integers(1, 13))
def test_a_page_has_what_the_whole_graph_says(made: list[tuple[set[str], set[str]]], begin: int, length: int) -> None:
    listed = nodes(made)
    graph, page = CallGraph(listed), listed[begin : begin + length]
    names = {node.id for node in page}
    first, last = (page[0].started_at, page[-1].started_at) if page else (0, -1)
    part = PackedGraph(listed).part([*names, NO_CALL], first, last)

    rounds = [one for one in graph.rounds if one.asker.started_at <= last and one.follower.started_at >= first]
    assert [(one.asker.id, one.follower.id, one.ids) for one in part.rounds] == [
        (one.asker.id, one.follower.id, one.ids) for one in rounds
    ]
    assert [one.asker.answer_exchange for one in part.rounds] == [one.asker.answer_exchange for one in rounds]
    assert part.follows == {name: found for name, found in graph.follows.items() if name in names}
    assert part.answered_by == {pair: found for pair, found in graph.answered_by.items() if pair[0] in names}
    shown = names | {one.asker.id for one in rounds}
    assert part.branches == {name: found for name, found in graph.branches.items() if name in shown}


def test_a_long_run_takes_few_bytes_for_each_call() -> None:
    made: list[tuple[set[str], set[str]]] = [
        ({f"call_{number:024}"}, {f"call_{number - 1:024}"}) for number in range(1000)
    ]
    assert PackedGraph(nodes(made)).size < 120_000


def test_of_a_repeated_conversation_only_the_links_of_the_page_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request continues all calls before it: there are as many links as half the square of the calls."""
    read: list[bytes] = []

    def decode(data: bytes) -> Any:
        read.append(data)
        return msgspec.msgpack.decode(data)

    monkeypatch.setattr(packed_graph, "_decode", decode)
    listed = nodes([({f"call_{number}"}, {f"call_{one}" for one in range(number)}) for number in range(100)])
    part = PackedGraph(listed).part([listed[10].id], listed[10].started_at, listed[10].started_at)
    assert len(part.follows[listed[10].id]) == 10
    assert len(read) < 20


def test_a_repeated_conversation_takes_few_bytes_for_each_link() -> None:
    listed = nodes([({f"call_{number:024}"}, {f"call_{one:024}" for one in range(number)}) for number in range(300)])
    assert PackedGraph(listed).size < 16 * 300 * 299 / 2
