"""How the calls of a run hang together: which answer a request goes on from, which branches there are, and which call did
what a model asked of a tool. Pure.

Ids that a request hands back say what it goes on from; nothing else is taken for it, so a chat that is sent again with one
line more follows nothing that we know of. A call is what a model asked for when it carries the same arguments in the time
between the asking and the telling. What could as well be otherwise is unknown.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from calls.codec.json import written
from calls.model import Call, Exchange, Json, ToolCall

MOST: Final = 64
"""Calls between an asking and its telling: among more, which one did what is not looked for."""

_DEEP: Final = 1000
"""Values of a request that are compared."""

_BESIDE: Final = 24
"""Values that a request may carry beside a tool call's arguments: one with more tells of it, rather than does it."""

_LOOKED_FOR: Final = 12
"""Values by which it is looked for who asked for a call."""


# Named tuples, because a run may have many thousand and they are made anew for each page of it.
class Node(NamedTuple):
    """A call of a model that makes ids or hands some back."""

    id: str
    started_at: int
    gives: Sequence[str] = ()
    takes: Sequence[str] = ()
    giver: str = ""
    """The exchange whose answer gives: the last of its tries."""


class PrecedingCall(NamedTuple):
    """A call that another goes on from, and the ids that say so."""

    call: str
    by: tuple[str, ...]


class ToolRound(NamedTuple):
    """A model asks something of tools, and is told what came of it."""

    asked: Node
    told: Node
    ids: tuple[str, ...]


@dataclass(slots=True)
class Threads:
    """What is known of a run's calls by their ids alone. The nodes come in step order."""

    nodes: Iterable[Node]
    follows: dict[str, list[PrecedingCall]] = field(init=False, default_factory=dict)
    """By call: what it goes on from."""

    answered: dict[tuple[str, str], str] = field(init=False, default_factory=dict)
    """By call and the id that it gave: the call that hands it back first."""

    branches: dict[str, int] = field(init=False, default_factory=dict)
    """By call: the number of its branch, counted from 1 as they begin."""

    rounds: list[ToolRound] = field(init=False, default_factory=list)
    _parents: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        given: dict[str, Node] = {}
        order: list[str] = []
        for node in self.nodes:
            order.append(node.id)
            self._follow(node, given)
            given.update(dict.fromkeys(node.gives, node))
        self._number(order)

    def _follow(self, node: Node, given: Mapping[str, Node]) -> None:
        askers: dict[str, list[str]] = {}
        nodes: dict[str, Node] = {}
        for name in node.takes:
            if (asker := given.get(name)) is not None and asker.id != node.id:
                askers.setdefault(asker.id, []).append(name)
                nodes[asker.id] = asker
        for asker_id, names in askers.items():
            new = [name for name in names if self.answered.setdefault((asker_id, name), node.id) == node.id]
            if new:
                self.rounds.append(ToolRound(nodes[asker_id], node, tuple(new)))
        if askers:
            self.follows[node.id] = [PrecedingCall(asker, tuple(names)) for asker, names in askers.items()]
            self._parents[node.id] = max(nodes.values(), key=lambda one: one.started_at).id

    def _number(self, order: Sequence[str]) -> None:
        """A call stays on the branch of the one it follows, unless another has gone on from there before."""
        followed = set(self._parents.values())
        gone_on: set[str] = set()
        numbers = itertools.count(1)
        for name in order:
            parent = self._parents.get(name)
            if parent is None and name not in followed:
                continue
            if parent is None or parent in gone_on:
                self.branches[name] = next(numbers)
            else:
                self.branches[name] = self.branches[parent]
            if parent is not None:
                gone_on.add(parent)


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """A call that may have done what a model asked for."""

    id: str
    started_at: int
    said: frozenset[str]
    """Every value that its request carries."""

    tools: Sequence[ToolCall] = ()
    """The tools that it calls by name, where its protocol has that."""


def done_by(exchange: Exchange, call: Call) -> ToolExecution:
    """What must be known of a call to tell what it did."""
    values = frozenset((*_in_url(exchange.request.url), *values_in(call.request)))
    return ToolExecution(exchange.id, exchange.started_at, values, call.tool_calls)


def executed(tools: Sequence[ToolCall], candidates: Sequence[ToolExecution]) -> dict[str, str]:
    """Which of the candidates, in step order, did which of the tool calls: by the tool call's id. Each did one at most."""
    found: dict[str, str] = {}
    free = list(candidates)
    # The one that says most is looked for first: what it did cannot then be taken for less.
    for tool in sorted(tools, key=lambda one: -len(_arguments(one))):
        fitting = [done for done in free if fits(tool, done)]
        best = min(fitting, key=lambda done: (not done.tools, len(done.said)), default=None)
        if tool.id is None or best is None or _contested(tool, best, tools):
            continue
        found[tool.id] = best.id
        free.remove(best)
    return found


def _contested(tool: ToolCall, done: ToolExecution, tools: Sequence[ToolCall]) -> bool:
    """Whether it could as well be a different tool call that says as much: equal ones are done in their order."""
    if done.tools:
        return False
    others = (one for one in tools if one.name != tool.name and _arguments(one) == _arguments(tool))
    return any(fits(other, done) for other in others)


def fits(tool: ToolCall, done: ToolExecution) -> bool:
    """Whether a call may have done what a tool call asks: it has its name and arguments, or all of its arguments."""
    if done.tools:
        return any(_same_name(tool.name, one.name) and one.arguments == tool.arguments for one in done.tools)
    wanted = _arguments(tool)
    return bool(wanted) and wanted <= done.said and len(done.said) - len(wanted) <= _BESIDE


def _same_name(asked: str, called: str) -> bool:
    """Agents put a server's name in front of its tools' names."""
    return asked == called or (
        bool(called) and asked.endswith((f"__{called}", f"_{called}", f".{called}", f"/{called}"))
    )


def _arguments(tool: ToolCall) -> frozenset[str]:
    return frozenset(values_in(tool.arguments)) - _TELLS_NOTHING


_TELLS_NOTHING: Final = frozenset(("", "true", "false", "null", "0", "1"))


def asked_by(tool: ToolCall) -> list[str]:
    """What a tool call is looked for by: its longest argument, else the names that it may be called by."""
    arguments = _arguments(tool)
    return [_longest(arguments)] if arguments else _names(tool.name)


def found_by(done: ToolExecution) -> list[str]:
    """What a call is found by: one of these is among `asked_by` of whatever it did, if it carries not much beside."""
    if done.tools:
        return [_longest(_arguments(one) or {one.name}) for one in done.tools]
    return heapq.nlargest(_LOOKED_FOR, done.said - _TELLS_NOTHING, key=_size)


def _longest(values: Iterable[str]) -> str:
    return max(values, key=_size)


def _size(value: str) -> tuple[int, str]:
    return len(value), value


def _names(asked: str) -> list[str]:
    """The names for which `_same_name` holds."""
    places = [n for n in range(1, len(asked)) if asked[n - 1] in "_./"]
    return [asked, *(asked[n:] for n in places)][:_LOOKED_FOR]


def values_in(value: Json) -> Iterator[str]:
    """Every value in it, as text, members' names aside."""
    left: list[Json] = [value]
    for _ in range(_DEEP):
        if not left:
            return
        match left.pop():
            case str() as text:
                yield text
            case bool() | int() | float() | Decimal() as number:
                yield written(number, list)
            case Mapping() as inner:
                left += inner.values()
            case Sequence() as inner:
                left += inner


def _in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield from (value for _, value in parse_qsl(parts.query, max_num_fields=_DEEP))
    except ValueError:
        return
    yield from (unquote(part) for part in parts.path.split("/") if part)
