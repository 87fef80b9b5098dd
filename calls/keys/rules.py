"""Compile the rules of a profile into a tree that is walked together with a body.

A rule applies to an RFC 9535 path. Paths of names, indexes, wildcards and types (`[?@.type == 'x']`, by which most APIs
distinguish items) become a tree (`Node`), so that the walk is linear in the body and independent of the number of rules.
Paths with other filters, slices or descendants are searched with python-jsonpath and added to the tree for that one body.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from calls.keys.places import ElementType, Place
from calls.model import Json

if TYPE_CHECKING:
    from jsonpath import JSONPath

type FieldClass = Literal["key", "transient", "identity", "secret"]

type PlainFold = Literal[
    "null", "text", "json", "id", "number", "message", "single", "bare", "bytes", "schema", "names", "own", "graphql"
]
"""A fold that is a list of paths, without further parameters."""

type Rule = Literal[FieldClass, PlainFold, "default", "nonce", "answers"]
"""The effect of a rule: a class, or a fold (described in `profile.Folds`)."""

type At = str | tuple[At, str | int]
"""The position of a walk: the position above and the step from there. Pointers are built from it only when needed."""

_PLAIN: Final = re.compile(r"\$(?:\.[A-Za-z_][A-Za-z0-9_]*|\[\*\])*")
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[\*\]")


type NonceLine = tuple[str, str, str]
"""The beginning of the texts that have a nonce, that of its line, and what of the line counts again, if not all is left out."""


class AnswerPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where an element of an array says which call it answers."""

    call_id: tuple[str, ...]
    """The names of the members that lead to the id of its call."""

    otherwise: tuple[str, ...] = ()
    """Those that lead to the text in whose order elements count whose call is not in the request."""

    @property
    def members(self) -> frozenset[str]:
        """The members of an element that lead to these places."""
        return frozenset((*self.call_id[:1], *self.otherwise[:1]))

    def read_call_id(self, element: Json) -> str | None:
        """Return the id of the call that an element answers."""
        return _read_text(element, self.call_id)

    def read_otherwise(self, element: Json) -> str | None:
        """Return the text in whose order an element counts whose call is not in the request."""
        return _read_text(element, self.otherwise) if self.otherwise else None

    def are_in(self, element: Json) -> bool:
        """Return whether an element can be an answer to a call."""
        return self.read_call_id(element) is not None or self.read_otherwise(element) is not None


class RuleAtPath(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a profile at one path."""

    path: str
    rule: Rule
    nonce: NonceLine | None = None
    answer: AnswerPlaces | None = None
    """For answers: where an element says which call it answers."""
    value: Json = None
    """For a default: the value."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for one place and for the places below it."""

    field_class: FieldClass | None = None
    folds: frozenset[Rule] = frozenset()
    nonces: tuple[NonceLine, ...] = ()
    nonce_texts: tuple[str, ...] = ()
    """The beginnings of the texts that have nonces."""
    answer: AnswerPlaces | None = None
    """Where the element at this place says which call it answers."""
    default: Json = None
    by_name: dict[str | int, "Node"] = msgspec.field(default_factory=dict)
    by_type: dict[str, "Node"] = msgspec.field(default_factory=dict)
    wildcard: "Node | None" = None
    has_key_rule: bool = False
    """Whether a rule at or below this place puts a value into the key."""
    has_id_rule: bool = False
    """Whether ids at or below this place are renamed, so that the order of the walk matters."""
    answer_members: frozenset[str] = frozenset()
    """Members of which an element of the array at this place has one if it answers a call."""

    def child(self, step: str | int, item: Json) -> "Node | None":
        """Return the rules for a member or element."""
        found = self.by_name.get(step, self.wildcard)
        if not self.by_type or not isinstance(item, dict) or not isinstance(name := item.get("type"), str):
            return found
        typed = self.by_type.get(name)
        # Both nodes include the wildcard's rules; they must be united only if the element has rules for its index too.
        return _spread_wildcards(_unite(found, typed)) if typed and found and step in self.by_name else typed or found


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All rules of a profile, compiled."""

    root: Node
    queries: tuple[tuple["JSONPath", RuleAtPath], ...] = ()


def compile_rules(rules: Iterable[RuleAtPath]) -> Plan:
    """Compile rules into a plan. Raises `BadPath`."""
    root, queries = Node(), []
    for rule in rules:
        place = _plain_place(rule.path)
        if place is None:
            queries.append((_jsonpath().parse_path(rule.path), rule))
        else:
            root = _unite(root, _rule_branch(place, rule))
    return Plan(root=_spread_wildcards(root), queries=tuple(queries))


def _plain_place(text: str) -> Place | None:
    """Return the place that a path names; None if the path needs a search."""
    if _PLAIN.fullmatch(text):
        return tuple(name or None for name in _STEP.findall(text))
    place: Place | None = _jsonpath().plain_place(_jsonpath().parse_path(text))
    return place


def normalize_path(text: str) -> str:
    """Normalize the notation of a path: `$.a[*]` becomes `$['a'][*]`. Raises `BadPath`."""
    if _PLAIN.fullmatch(text):
        return "$" + "".join(f"['{name}']" if name else "[*]" for name in _STEP.findall(text))
    return str(_jsonpath().parse_own_path(text))


def _read_text(element: Json, names: Sequence[str]) -> str | None:
    """Return the text to which members of these names lead."""
    value = element
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value if isinstance(value, str) else None


def _jsonpath() -> ModuleType:
    # Importing python-jsonpath takes as long as importing this package, and most processes need no such path.
    from calls.keys import jsonpath as paths

    return paths


def _rule_branch(place: Sequence[str | int | ElementType | None], rule: RuleAtPath) -> Node:
    if not place:
        return _rule_node(rule)
    below = _rule_branch(place[1:], rule)
    step = place[0]
    return Node(
        by_name={step: below} if isinstance(step, str | int) else {},
        by_type={step.name: below} if isinstance(step, ElementType) else {},
        wildcard=below if step is None else None,
        has_key_rule=below.has_key_rule,
        has_id_rule=below.has_id_rule,
        answer_members=below.answer.members if below.answer is not None else frozenset(),
    )


def _rule_node(rule: RuleAtPath) -> Node:
    match rule.rule:
        case "key" | "transient" | "identity" | "secret":
            return Node(field_class=rule.rule, has_key_rule=rule.rule == "key")
        case "answers":
            return Node(answer=rule.answer)
        case fold:
            return Node(
                folds=frozenset((fold,)),
                nonces=(rule.nonce,) if rule.nonce is not None else (),
                nonce_texts=(rule.nonce[0],) if rule.nonce is not None else (),
                default=rule.value,
                has_id_rule=fold == "id",
            )


def _unite(first: Node, second: Node) -> Node:
    """Unite the rules of two nodes. If both have a rule for a place, the first one applies."""
    by_name = {
        name: _unite_optional(first.by_name.get(name), second.by_name.get(name))
        for name in {**first.by_name, **second.by_name}
    }
    by_type = {
        name: _unite_optional(first.by_type.get(name), second.by_type.get(name))
        for name in {**first.by_type, **second.by_type}
    }
    each = _unite_optional(first.wildcard, second.wildcard) if first.wildcard or second.wildcard else None
    return _combine(first, second, by_name, by_type, each)


def _spread_wildcards(node: Node) -> Node:
    """Add the wildcard's rules to every named place beside it; a place's own rules take precedence."""
    by_name = {name: _spread_wildcards(_unite_optional(below, node.wildcard)) for name, below in node.by_name.items()}
    by_type = {name: _spread_wildcards(_unite_optional(below, node.wildcard)) for name, below in node.by_type.items()}
    return _combine(node, node, by_name, by_type, _spread_wildcards(node.wildcard) if node.wildcard else None)


def _overlay(body_rules: Node, base: Node) -> Node:
    """Add the rules for places that were found in one body to a tree whose wildcards are spread."""
    by_name = dict(base.by_name)
    for name, below in body_rules.by_name.items():
        by_name[name] = _overlay(below, base.by_name.get(name) or base.wildcard or Node())
    return _combine(body_rules, base, by_name, base.by_type, base.wildcard)


def _unite_optional(first: Node | None, second: Node | None) -> Node:
    if first and second:
        return _unite(first, second)
    return first or second or Node()


def _combine(
    first: Node, second: Node, by_name: dict[str | int, Node], by_type: dict[str, Node], each: Node | None
) -> Node:
    return Node(
        field_class=first.field_class or second.field_class,
        folds=first.folds | second.folds,
        nonces=tuple(dict.fromkeys((*first.nonces, *second.nonces))),
        nonce_texts=tuple(dict.fromkeys((*first.nonce_texts, *second.nonce_texts))),
        answer=first.answer or second.answer,
        default=second.default if first.default is None else first.default,
        by_name=by_name,
        by_type=by_type,
        wildcard=each,
        has_key_rule=first.has_key_rule or second.has_key_rule,
        has_id_rule=first.has_id_rule or second.has_id_rule,
        answer_members=first.answer_members | second.answer_members,
    )


def rule_tree(plan: Plan, body: Json, has_text: Callable[[bytes], bool]) -> Node:
    """Return the rules of a plan for one body, including those whose paths need a search.

    `has_text` says whether some bytes occur in its text.
    """
    places = Node()
    for path, rule in plan.queries:
        if _can_occur(rule, has_text):
            for match in path.finditer(body):  # type: ignore[arg-type] # the library's type excludes scalars
                places = _unite(places, _rule_branch(match.parts, rule))
    return _overlay(places, plan.root) if places.by_name else plan.root


_EXISTS: Final = re.compile(r"\[\?@\.(\w+)\]")


def _can_occur(rule: RuleAtPath, has_text: Callable[[bytes], bool]) -> bool:
    """Return whether the beginnings of the nonce and its text and the names in the filter occur in the text, else the search is skipped.

    A client that escapes plain letters would not match; none does, and the result would be a reported miss.
    """
    names = (f'"{name}"' for name in _EXISTS.findall(rule.path))
    return all(has_text(part.encode()) for part in (*(rule.nonce or ()), *names))
