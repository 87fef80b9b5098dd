"""Connect the calls of a run: which answer a request continues, which branches there are, and which call executed a tool
call of a model. Pure.

A request continues an answer if it returns ids of that answer (of tool calls, or of the response). Nothing else counts, so
a chat that is sent again with one more message continues nothing. A call executes a tool call if it has the same arguments
and begins between the answer with the tool call and the request with its result. Ambiguous cases stay unknown.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from calls.codec.json import write_json
from calls.model import Call, Exchange, Json, ToolCall

MOST_BETWEEN: Final = 64
"""Calls between an answer with tool calls and the request with the results. If there are more, executions stay unknown."""

_MOST_VALUES: Final = 1000
"""The number of values of a request that are compared."""

_MOST_EXTRA_VALUES: Final = 24
"""Values that a request may have besides a tool call's arguments: one with more mentions the tool call, it does not execute it."""

_MOST_SEARCHED_VALUES: Final = 12
"""The number of values by which the tool call of a request is searched."""


# Named tuples, because a run may have many thousands, and they are created again for each page.
class Node(NamedTuple):
    """A call of a model whose answer creates ids or whose request returns some."""

    id: str
    started_at: int
    created_ids: Sequence[str] = ()
    returned_ids: Sequence[str] = ()
    answer_exchange: str = ""
    """The exchange with the answer: the last of the call's attempts."""


class PrecedingCall(NamedTuple):
    """A call that another one continues, and the ids that show it."""

    call: str
    by: tuple[str, ...]


class ToolRound(NamedTuple):
    """A model requests tool calls (the asker), and a later request returns their results (the follower)."""

    asker: Node
    follower: Node
    ids: tuple[str, ...]


@dataclass(slots=True)
class CallGraph:
    """The connections of a run's calls that follow from ids alone. The nodes are given in step order."""

    nodes: Iterable[Node]
    follows: dict[str, list[PrecedingCall]] = field(init=False, default_factory=dict)
    """By call: the calls that it continues."""

    answered_by: dict[tuple[str, str], str] = field(init=False, default_factory=dict)
    """By call and an id that it created: the call that returns the id first."""

    branches: dict[str, int] = field(init=False, default_factory=dict)
    """By call: the number of its branch, from 1, in the order in which they begin."""

    rounds: list[ToolRound] = field(init=False, default_factory=list)
    _parents: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        nodes_by_id: dict[str, Node] = {}
        order: list[str] = []
        for node in self.nodes:
            order.append(node.id)
            self._follow(node, nodes_by_id)
            nodes_by_id.update(dict.fromkeys(node.created_ids, node))
        self._number(order)

    def _follow(self, node: Node, nodes_by_id: Mapping[str, Node]) -> None:
        askers: dict[str, list[str]] = {}
        nodes: dict[str, Node] = {}
        for name in node.returned_ids:
            if (asker := nodes_by_id.get(name)) is not None and asker.id != node.id:
                askers.setdefault(asker.id, []).append(name)
                nodes[asker.id] = asker
        for asker_id, names in askers.items():
            new = [name for name in names if self.answered_by.setdefault((asker_id, name), node.id) == node.id]
            if new:
                self.rounds.append(ToolRound(nodes[asker_id], node, tuple(new)))
        if askers:
            self.follows[node.id] = [PrecedingCall(asker, tuple(names)) for asker, names in askers.items()]
            self._parents[node.id] = max(nodes.values(), key=lambda one: one.started_at).id

    def _number(self, order: Sequence[str]) -> None:
        """Number the branches. A call is on the branch of the one it continues, unless an earlier call continued that, too."""
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
    """A call that may have executed a tool call."""

    id: str
    started_at: int
    values: frozenset[str]
    """All values in its request."""

    tools: Sequence[ToolCall] = ()
    """The tools that it calls by name, in a protocol such as MCP."""


def tool_execution(exchange: Exchange, call: Call) -> ToolExecution:
    """Extract from a call what tool calls are matched with."""
    values = frozenset((*_url_values(exchange.request.url), *scalar_values(call.request)))
    return ToolExecution(exchange.id, exchange.started_at, values, call.tool_calls)


def match_executions(tools: Sequence[ToolCall], candidates: Sequence[ToolExecution]) -> dict[str, str]:
    """Match tool calls with the candidates, in step order; return by tool call id the one that executed it, each at most once."""
    found: dict[str, str] = {}
    free = list(candidates)
    # Those with most arguments first, so that their executions are not matched with less specific tool calls.
    for tool in sorted(tools, key=lambda one: -len(_arguments(one))):
        fitting = [candidate for candidate in free if is_possible_execution(tool, candidate)]
        best = min(fitting, key=lambda execution: (not execution.tools, len(execution.values)), default=None)
        if tool.id is None or best is None or _is_ambiguous(tool, best, tools):
            continue
        found[tool.id] = best.id
        free.remove(best)
    return found


def _is_ambiguous(tool: ToolCall, execution: ToolExecution, tools: Sequence[ToolCall]) -> bool:
    """Whether a tool call with another name and the same arguments fits as well. Equal tool calls are matched in order."""
    if execution.tools:
        return False
    others = (one for one in tools if one.name != tool.name and _arguments(one) == _arguments(tool))
    return any(is_possible_execution(other, execution) for other in others)


def is_possible_execution(tool: ToolCall, execution: ToolExecution) -> bool:
    """Whether a call may have executed a tool call: it has the same name and arguments, or all of the arguments."""
    if execution.tools:
        return any(_same_name(tool.name, one.name) and one.arguments == tool.arguments for one in execution.tools)
    arguments = _arguments(tool)
    return (
        bool(arguments)
        and arguments <= execution.values
        and len(execution.values) - len(arguments) <= _MOST_EXTRA_VALUES
    )


def _same_name(requested: str, called: str) -> bool:
    """Whether the names are equal, apart from a prefix: agents put a server's name in front of its tools' names."""
    return requested == called or (
        bool(called) and requested.endswith((f"__{called}", f"_{called}", f".{called}", f"/{called}"))
    )


def _arguments(tool: ToolCall) -> frozenset[str]:
    return frozenset(scalar_values(tool.arguments)) - _UNSPECIFIC_VALUES


_UNSPECIFIC_VALUES: Final = frozenset(("", "true", "false", "null", "0", "1"))


def tool_search_values(tool: ToolCall) -> list[str]:
    """Return the values by which a tool call can be found: its longest argument, else its possible names."""
    arguments = _arguments(tool)
    return [_longest(arguments)] if arguments else _possible_names(tool.name)


def execution_search_values(execution: ToolExecution) -> list[str]:
    """Return values of which one is among the `tool_search_values` of the tool call that it executed, if it has few others."""
    if execution.tools:
        return [_longest(_arguments(one) or {one.name}) for one in execution.tools]
    return heapq.nlargest(_MOST_SEARCHED_VALUES, execution.values - _UNSPECIFIC_VALUES, key=_size)


def _longest(values: Iterable[str]) -> str:
    return max(values, key=_size)


def _size(value: str) -> tuple[int, str]:
    return len(value), value


def _possible_names(requested: str) -> list[str]:
    """Return the names for which `_same_name` holds."""
    places = [n for n in range(1, len(requested)) if requested[n - 1] in "_./"]
    return [requested, *(requested[n:] for n in places)][:_MOST_SEARCHED_VALUES]


def scalar_values(value: Json) -> Iterator[str]:
    """Yield every scalar in a value as text, without the names of members."""
    stack: list[Json] = [value]
    for _ in range(_MOST_VALUES):
        if not stack:
            return
        match stack.pop():
            case str() as text:
                yield text
            case bool() | int() | float() | Decimal() as number:
                yield write_json(number, list)
            case Mapping() as inner:
                stack += inner.values()
            case Sequence() as inner:
                stack += inner


def _url_values(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield from (value for _, value in parse_qsl(parts.query, max_num_fields=_MOST_VALUES))
    except ValueError:
        return
    yield from (unquote(part) for part in parts.path.split("/") if part)
