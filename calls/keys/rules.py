"""Compile the rules of a profile into a tree that is walked together with a body.

A rule stands at an RFC 9535 path. Paths of names, indexes, wildcards and types (`[?@.type == 'x']`: how most APIs tell their
items apart) become a tree (`Node`), so that the walk is linear in the body and not in the rules. Paths with other filters,
slices or descendants are found by python-jsonpath first and join the tree for that one body.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

from calls.keys.places import Place, Type
from calls.model import Json

if TYPE_CHECKING:
    from jsonpath import JSONPath

type FieldClass = Literal["key", "transient", "identity", "secret"]

type Rule = Literal[
    FieldClass,
    "null",
    "text",
    "json",
    "id",
    "message",
    "single",
    "bare",
    "bytes",
    "schema",
    "names",
    "own",
    "graphql",
    "default",
    "nonce",
]
"""What happens at a place: a class, or a fold (`profile.Folds` says what each makes equal)."""

type At = str | tuple[At, str | int]
"""Where a walk is: the place above, and the step from there. Few places are ever written down, so none is until it must be."""

_PLAIN: Final = re.compile(r"\$(?:\.[A-Za-z_][A-Za-z0-9_]*|\[\*\])*")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[\*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAtPath:
    """One rule of a profile at one path."""

    path: str
    rule: Rule
    starts: str = ""
    """Of a nonce: how the line begins that changes with every request."""
    value: Json = None
    """Of a default: the value that is the same as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The rules at one place, and the places below it."""

    field_class: FieldClass | None = None
    folds: frozenset[Rule] = frozenset()
    starts: str = ""
    default: Json = None
    named: dict[str | int, "Node"] = field(default_factory=dict)
    typed: dict[str, "Node"] = field(default_factory=dict)
    each: "Node | None" = None
    keeps: bool = False
    """Whether something at or below this place is in the key by a rule of its own."""
    renames: bool = False
    """Whether ids are renamed below, so that the order of the walk matters."""

    def below(self, step: str | int, item: Json) -> "Node | None":
        """The rules for a member or element."""
        found = self.named.get(step, self.each)
        if not self.typed or not isinstance(item, dict) or not isinstance(name := item.get("type"), str):
            return found
        typed = self.typed.get(name)
        # Both know what holds for every element; only where one is meant by its index as well must they be joined.
        return _closed(_united(found, typed)) if typed and found and step in self.named else typed or found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All rulings of a profile, ready to be walked."""

    root: Node
    queries: tuple[tuple["JSONPath", RuleAtPath], ...] = ()


def compiled(rulings: Iterable[RuleAtPath]) -> Plan:
    """The plan of these rulings. Raises `BadPath`."""
    root, queries = Node(), []
    for ruling in rulings:
        place = _place(ruling.path)
        if place is None:
            queries.append((_general().path_of(ruling.path), ruling))
        else:
            root = _united(root, _single(place, ruling))
    return Plan(root=_closed(root), queries=tuple(queries))


def _place(text: str) -> Place | None:
    """The place that a path names; None when it takes a search to find it."""
    if _PLAIN.fullmatch(text):
        return tuple(name or None for name in _STEP.findall(text))
    place: Place | None = _general().place_of(_general().path_of(text))
    return place


def spelled(text: str) -> str:
    """The path as it is spelled once for all: `$['a'][*]` of `$.a[*]`. Raises `BadPath`."""
    if _PLAIN.fullmatch(text):
        return "$" + "".join(f"['{name}']" if name else "[*]" for name in _STEP.findall(text))
    return str(_general().path_of(text))


def _general() -> ModuleType:
    # python-jsonpath takes as long to import as this whole room, and most processes meet no path that needs it.
    from calls.keys import jsonpath as paths

    return paths


def _single(place: Sequence[str | int | Type | None], ruling: RuleAtPath) -> Node:
    if not place:
        return _ruled(ruling)
    below = _single(place[1:], ruling)
    step = place[0]
    return Node(
        named={step: below} if isinstance(step, str | int) else {},
        typed={step.name: below} if isinstance(step, Type) else {},
        each=below if step is None else None,
        keeps=below.keeps,
        renames=below.renames,
    )


def _ruled(ruling: RuleAtPath) -> Node:
    match ruling.rule:
        case "key" | "transient" | "identity" | "secret":
            return Node(field_class=ruling.rule, keeps=ruling.rule == "key")
        case fold:
            return Node(folds=frozenset((fold,)), starts=ruling.starts, default=ruling.value, renames=fold == "id")


def _united(first: Node, second: Node) -> Node:
    """The rules of both; where both rule on a place, the first."""
    named = {name: _either(first.named.get(name), second.named.get(name)) for name in {**first.named, **second.named}}
    typed = {name: _either(first.typed.get(name), second.typed.get(name)) for name in {**first.typed, **second.typed}}
    each = _either(first.each, second.each) if first.each or second.each else None
    return _with(first, second, named, typed, each)


def _closed(node: Node) -> Node:
    """The same rules, where every named place has those of the wildcard beside it too, but its own before them."""
    named = {name: _closed(_either(below, node.each)) for name, below in node.named.items()}
    typed = {name: _closed(_either(below, node.each)) for name, below in node.typed.items()}
    return _with(node, node, named, typed, _closed(node.each) if node.each else None)


def _laid(found: Node, base: Node) -> Node:
    """A closed tree with the rules of places that were found in one body laid over it."""
    named = dict(base.named)
    for name, below in found.named.items():
        named[name] = _laid(below, base.named.get(name) or base.each or Node())
    return _with(found, base, named, base.typed, base.each)


def _either(first: Node | None, second: Node | None) -> Node:
    if first and second:
        return _united(first, second)
    return first or second or Node()


def _with(first: Node, second: Node, named: dict[str | int, Node], typed: dict[str, Node], each: Node | None) -> Node:
    return Node(
        field_class=first.field_class or second.field_class,
        folds=first.folds | second.folds,
        starts=first.starts or second.starts,
        default=second.default if first.default is None else first.default,
        named=named,
        typed=typed,
        each=each,
        keeps=first.keeps or second.keeps,
        renames=first.renames or second.renames,
    )


def tree(plan: Plan, body: Json, text: bytes) -> Node:
    """The plan's rules for this body, with the places that take a search."""
    places = Node()
    for path, ruling in plan.queries:
        if _may_occur(ruling, text):
            for match in path.finditer(body):  # type: ignore[arg-type] # the library's type leaves out bare scalars
                places = _united(places, _single(match.parts, ruling))
    return _laid(places, plan.root) if places.named else plan.root


_EXISTS: Final = re.compile(r"\[\?@\.(\w+)\]")


def _may_occur(ruling: RuleAtPath, text: bytes) -> bool:
    """A nonce's beginning and the name that a filter asks for save the search. Nobody escapes plain letters; who did would
    miss, loudly."""
    names = (f'"{name}"' for name in _EXISTS.findall(ruling.path))
    return all(part.encode() in text for part in (ruling.starts, *names))
