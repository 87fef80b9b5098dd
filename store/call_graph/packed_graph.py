"""Keep the call graph of a run in arrays, and return of it what some of its calls need. Pure.

The graph of a run of 100,000 calls takes a second to build and 100 MB in Python's own objects, and a page shows few of its calls.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final
from uuid import UUID

import msgspec

from store.call_graph.call_graph import CallGraph, Node, PrecedingCall, ToolRound

ID_BYTES: Final = 16

type _Ids = tuple[tuple[str, ...], tuple[str, ...] | None]
"""The ids by which a call continues another one, and those of them that no earlier call has returned; None where these are all."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What a call graph says of some calls. Its members are those of `CallGraph`."""

    follows: dict[str, list[PrecedingCall]] = field(default_factory=dict)
    answered_by: dict[tuple[str, str], str] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)
    rounds: list[ToolRound] = field(default_factory=list)
    """Those that are under way at some time between the first and the last of the calls."""


type LinkGraph = CallGraph | GraphPart


class PackedGraph:
    """A call graph whose calls are UUIDs. Calls are numbered in step order, and links by the call that continues another one."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        listed = list(nodes)
        numbers = {node.id: number for number, node in enumerate(listed)}
        graph = CallGraph(listed)
        self._ids = b"".join(_uuid_bytes(node.id) for node in listed)
        self._answers = b"".join(_uuid_bytes(node.answer_exchange or node.id) for node in listed)
        self._begins = array("q", [node.started_at for node in listed])
        self._branches = array("I", [graph.branches.get(node.id, 0) for node in listed])
        self._order = array("I", sorted(range(len(listed)), key=self._id_bytes))
        first = {(one.asker.id, one.follower.id): one.ids for one in graph.rounds}
        self._followers, self._askers, places = array("I"), array("I"), array("Q", [0])
        # Apart: a request that repeats a whole conversation continues each call of it, and is the first to continue one.
        self._rounds, self._link_names = array("I"), array("I")
        known: dict[bytes, int] = {}
        names = bytearray()
        for node in listed:
            for before in graph.follows.get(node.id, ()):
                self._followers.append(numbers[node.id])
                self._askers.append(numbers[before.call])
                new = first.get((before.call, node.id), ())
                if new:
                    self._rounds.append(len(self._followers) - 1)
                encoded = _encode((before.by, None if new == before.by else new))
                name = known.setdefault(encoded, len(known))
                self._link_names.append(name)
                if name == len(places) - 1:
                    names += encoded
                    places.append(len(names))
        self._names, self._places = bytes(names), places
        self._by_asker = array("I", sorted(self._rounds, key=self._askers.__getitem__))
        earliest = accumulate((self._begins[self._askers[link]] for link in reversed(self._rounds)), min)
        self._earliest = array("q", list(earliest)[::-1])
        """By round: when the earliest asker of it and of all later rounds began."""

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        arrays = (
            *(self._begins, self._branches, self._order, self._followers, self._askers),
            *(self._places, self._link_names, self._rounds, self._by_asker, self._earliest),
        )
        return len(self._ids) + len(self._answers) + len(self._names) + sum(len(one) * one.itemsize for one in arrays)

    def part(self, calls: Iterable[str], first: int, last: int) -> GraphPart:
        """Return what the graph says of some calls, which began between two times."""
        part = GraphPart()
        for call in calls:
            if (number := self._number(call)) is None:
                continue
            self._add_branch(part, number)
            preceding = [
                PrecedingCall(self._name(self._askers[link]), self._link_ids(link)[0])
                for link in self._links_of(number)
            ]
            if preceding:
                part.follows[call] = preceding
            for link in self._rounds_of(number):
                answering = self._name(self._followers[link])
                part.answered_by.update({(call, name): answering for name in self._new_ids(link)})
        for link in self._rounds_between(first, last):
            asker, follower = self._askers[link], self._followers[link]
            part.rounds.append(ToolRound(self._node(asker), self._node(follower), self._new_ids(link)))
            # A call that executed a tool call is on the branch of the call that requested it.
            self._add_branch(part, asker)
        return part

    def _add_branch(self, part: GraphPart, number: int) -> None:
        if branch := self._branches[number]:
            part.branches[self._name(number)] = branch

    def _rounds_between(self, first: int, last: int) -> Iterator[int]:
        """Yield the rounds that begin by `last` and do not end before `first`."""
        begin = bisect_left(self._rounds, bisect_left(self._begins, first), key=self._followers.__getitem__)
        for place in range(begin, len(self._rounds)):
            if self._earliest[place] > last:
                return
            if self._begins[self._askers[link := self._rounds[place]]] <= last:
                yield link

    def _links_of(self, number: int) -> Iterable[int]:
        """Return the links by which a call continues others."""
        return range(bisect_left(self._followers, number), bisect_left(self._followers, number + 1))

    def _rounds_of(self, number: int) -> Iterator[int]:
        """Yield the rounds that a call begins, in their order."""
        begin = bisect_left(self._by_asker, number, key=self._askers.__getitem__)
        for place in range(begin, len(self._by_asker)):
            if self._askers[link := self._by_asker[place]] != number:
                return
            yield link

    def _link_ids(self, link: int) -> _Ids:
        name = self._link_names[link]
        return _decode(memoryview(self._names)[self._places[name] : self._places[name + 1]])

    def _new_ids(self, link: int) -> tuple[str, ...]:
        by, new = self._link_ids(link)
        return by if new is None else new

    def _number(self, call: str) -> int | None:
        name = _uuid_bytes(call)
        place = bisect_left(self._order, name, key=self._id_bytes)
        found = self._order[place] if place < len(self._order) else None
        return found if found is not None and self._id_bytes(found) == name else None

    def _id_bytes(self, number: int) -> bytes:
        return self._ids[number * ID_BYTES : (number + 1) * ID_BYTES]

    def _name(self, number: int) -> str:
        return str(UUID(bytes=self._id_bytes(number)))

    def _node(self, number: int) -> Node:
        answer = self._answers[number * ID_BYTES : (number + 1) * ID_BYTES]
        return Node(self._name(number), self._begins[number], answer_exchange=str(UUID(bytes=answer)))


def _uuid_bytes(name: str) -> bytes:
    # Four times as fast as `UUID`, which a long run has no use for.
    return bytes.fromhex(name.replace("-", ""))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[tuple[str, ...], tuple[str, ...] | None]).decode
