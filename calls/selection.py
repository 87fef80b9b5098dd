"""Take from a body what counts, and make equal what the API treats as equal: rules at places, applied in one walk.

A rule stands at an RFC 9535 path. Paths of names, indexes and wildcards become a tree (`Node`) that is walked
beside the body, so that the work is linear in the body and not in the rules. Paths with filters, slices or descendants are
found by python-jsonpath first and join the tree for that one body.

The class of a value is the one given at the deepest place above it. What no rule classifies is unknown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from jsonpath import JSONPath, JSONPathEnvironment
from jsonpath.segments import JSONPathChildSegment
from jsonpath.selectors import IndexSelector, JSONPathSelector, NameSelector, WildcardSelector

from calls.json import NotLossless, parse
from calls.model import Json

type FieldClass = Literal["key", "transient", "identity", "secret"]

type Rule = Literal[FieldClass, "null", "text", "json", "id", "nonce"]
"""What happens at a place: a class, or a fold: null is absent, a single text part is its text, a string holds JSON, an
id is renamed, a text that begins with a nonce loses that line."""

type Place = tuple[str | int | None, ...]
"""Member names and indexes from the root down; None is every member or element."""

_environment: Final = JSONPathEnvironment(strict=True)


class _Out:
    """Nothing was kept."""


OUT: Final = _Out()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that did not go into the key, and the rule that says so."""

    pointer: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """An id that counts by where it occurs first, and not by its value."""

    pointer: str
    was: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Something that went into the key in the one spelling of several that the API treats as equal."""

    pointer: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """One rule of a profile at one path."""

    path: str
    rule: Rule
    starts: str = ""
    """Of a nonce: how the line begins that changes with every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The rules at one place, and the places below it."""

    field_class: FieldClass | None = None
    folds: frozenset[Rule] = frozenset()
    starts: str = ""
    named: dict[str | int, "Node"] = field(default_factory=dict)
    each: "Node | None" = None
    keeps: bool = False
    """Whether something at or below this place is in the key by a rule of its own."""
    renames: bool = False
    """Whether ids are renamed below, so that the order of the walk matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All rulings of a profile, ready to be walked."""

    root: Node
    queries: tuple[tuple[JSONPath, Ruling], ...] = ()


def compiled(rulings: Iterable[Ruling]) -> Plan:
    """The plan of these rulings. Raises `jsonpath.JSONPathError` for what is not an RFC 9535 path."""
    root, queries = Node(), []
    for ruling in rulings:
        path = path_of(ruling.path)
        place = _place(path)
        if place is None:
            queries.append((path, ruling))
        else:
            root = _united(root, _single(place, ruling))
    return Plan(root=_closed(root), queries=tuple(queries))


def path_of(text: str) -> JSONPath:
    """An RFC 9535 path. Raises `jsonpath.JSONPathError`."""
    path = _environment.compile(text)
    assert isinstance(path, JSONPath), "a strict environment has no compound paths"
    return path


def _place(path: JSONPath) -> Place | None:
    """The place that a plain path names; None when it takes a search to find it."""
    place: list[str | int | None] = []
    for segment in path.segments:
        if not isinstance(segment, JSONPathChildSegment) or len(segment.selectors) != 1:
            return None
        step = _step(segment.selectors[0])
        if step == -1:
            return None
        place.append(step)
    return tuple(place)


def _step(selector: JSONPathSelector) -> str | int | None:
    match selector:
        case NameSelector():
            return selector.name
        case IndexSelector() if selector.index >= 0:
            return selector.index
        case WildcardSelector():
            return None
        case _:
            return -1


def _single(place: Sequence[str | int | None], ruling: Ruling) -> Node:
    if not place:
        return _ruled(ruling)
    below = _single(place[1:], ruling)
    step = place[0]
    named, each = ({}, below) if step is None else ({step: below}, None)
    return Node(named=named, each=each, keeps=below.keeps, renames=below.renames)


def _ruled(ruling: Ruling) -> Node:
    match ruling.rule:
        case "key" | "transient" | "identity" | "secret":
            return Node(field_class=ruling.rule, keeps=ruling.rule == "key")
        case fold:
            return Node(folds=frozenset((fold,)), starts=ruling.starts, renames=fold == "id")


def _united(first: Node, second: Node) -> Node:
    """The rules of both; where both rule on a place, the first."""
    named = {name: _either(first.named.get(name), second.named.get(name)) for name in {**first.named, **second.named}}
    return _with(first, second, named, _either(first.each, second.each) if first.each or second.each else None)


def _closed(node: Node) -> Node:
    """The same rules, where every named place has those of the wildcard beside it too, but its own before them."""
    named = {name: _closed(_either(below, node.each)) for name, below in node.named.items()}
    return _with(node, node, named, _closed(node.each) if node.each else None)


def _laid(found: Node, base: Node) -> Node:
    """A closed tree with the rules of places that were found in one body laid over it."""
    named = dict(base.named)
    for name, below in found.named.items():
        named[name] = _laid(below, base.named.get(name) or base.each or Node())
    return _with(found, base, named, base.each)


def _either(first: Node | None, second: Node | None) -> Node:
    if first and second:
        return _united(first, second)
    return first or second or Node()


def _with(first: Node, second: Node, named: dict[str | int, Node], each: Node | None) -> Node:
    return Node(
        field_class=first.field_class or second.field_class,
        folds=first.folds | second.folds,
        starts=first.starts or second.starts,
        named=named,
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


def _may_occur(ruling: Ruling, text: bytes) -> bool:
    """A nonce's own beginning saves the search: it stands in the text, or is hidden in an escape."""
    return not ruling.starts or ruling.starts.encode() in text or b"\\u" in text


class Selection:
    """One walk over one body: what is kept, and a note for everything that was not taken as it came."""

    def __init__(self, *, keep_unknown: bool) -> None:
        self.left_out: list[LeftOut] = []
        self.renamed: list[Renamed] = []
        self.folded: list[Folded] = []
        self.unknown: list[str] = []
        self._keep_unknown = keep_unknown
        self._ids: dict[str, str] = {}

    def body(self, value: Json, root: Node, pointer: str) -> Json:
        """What counts of a body; None when nothing does."""
        kept = self._visit(value, root, None, pointer)
        return None if isinstance(kept, _Out) else kept

    def takes(self, field_class: FieldClass | None, pointer: str) -> bool:
        """Whether something of this class, that is no part of the body, counts; noted where it does not."""
        return not isinstance(self._whole(None, field_class, pointer), _Out)

    def _visit(self, value: Json, node: Node, above: FieldClass | None, pointer: str) -> Json | _Out:
        field_class = node.field_class or above
        if value is None and "null" in node.folds:
            return self._leave(pointer, "null")
        if field_class not in (None, "key") and not node.keeps:
            return self._leave(pointer, field_class)
        kept: Json | _Out
        match value:
            case dict() if node.named or node.each:
                kept = self._members(value, node, field_class, pointer)
            case list() if node.named or node.each:
                kept = self._elements(value, node, field_class, pointer)
            case _:
                kept = self._whole(value, field_class, pointer)
        if not node.folds or isinstance(kept, _Out):
            return kept
        return self._fold(kept, node, pointer)

    def _members(self, value: dict[str, Json], node: Node, field_class: FieldClass | None, pointer: str) -> Json:
        kept: dict[str, Json] = {}
        # First occurrence must not depend on the order in which a client writes the members.
        for name, item in sorted(value.items()) if node.renames else value.items():
            rules = node.named.get(name, node.each)
            if rules is None and field_class == "key":
                kept[name] = item
                continue
            below = f"{pointer}/{escaped(name)}"
            part = (
                self._whole(item, field_class, below) if rules is None else self._visit(item, rules, field_class, below)
            )
            if not isinstance(part, _Out):
                kept[name] = part
        return kept

    def _elements(self, value: list[Json], node: Node, field_class: FieldClass | None, pointer: str) -> Json:
        kept: list[Json] = []
        for index, item in enumerate(value):
            rules = node.named.get(index, node.each)
            below = f"{pointer}/{index}"
            part = (
                self._whole(item, field_class, below) if rules is None else self._visit(item, rules, field_class, below)
            )
            if not isinstance(part, _Out):
                kept.append(part)
        return kept

    def _whole(self, value: Json, field_class: FieldClass | None, pointer: str) -> Json | _Out:
        match field_class:
            case "key":
                return value
            case None:
                self.unknown.append(pointer)
                return value if self._keep_unknown else self._leave(pointer, "unknown")
            case _:
                return self._leave(pointer, field_class)

    def _leave(self, pointer: str, rule: str) -> _Out:
        self.left_out.append(LeftOut(pointer=pointer, rule=rule))
        return OUT

    def _fold(self, value: Json, node: Node, pointer: str) -> Json | _Out:
        kept: Json | _Out = value
        if "nonce" in node.folds:
            kept = self._without_nonce(value, node.starts, pointer)
        if "text" in node.folds and isinstance(kept, list):
            kept = self._single_text(kept, pointer)
        if isinstance(kept, str):
            if "json" in node.folds:
                kept = self._inner(kept, pointer)
            elif "id" in node.folds:
                kept = self._rename(kept, pointer)
        return kept

    def _single_text(self, parts: list[Json], pointer: str) -> Json:
        """A list of one bare text part says what its text says; one with anything beside the text may not."""
        match parts:
            case [{"type": "text", "text": str() as text, **more}] if not more:
                self.folded.append(Folded(pointer=pointer, rule="text"))
                return text
            case _:
                return parts

    def _inner(self, text: str, pointer: str) -> Json:
        try:
            value = parse(text.encode())
        except (NotLossless, UnicodeEncodeError):
            return text
        if not isinstance(value, dict | list):
            return text  # else the text `1` and the text `"1"` could meet
        self.folded.append(Folded(pointer=pointer, rule="json"))
        return value

    def _rename(self, was: str, pointer: str) -> str:
        now = self._ids.setdefault(was, f"id:{len(self._ids) + 1}")
        self.renamed.append(Renamed(pointer=pointer, was=was, now=now))
        return now

    def _without_nonce(self, value: Json, starts: str, pointer: str) -> Json | _Out:
        block = value if isinstance(value, dict) and value.get("type") == "text" else None
        text = value if block is None else block.get("text")
        if not isinstance(text, str) or not text.startswith(starts):
            return value
        self._leave(pointer, "nonce")
        rest = text.partition("\n")[2]
        if not rest:
            return OUT
        return rest if block is None else {**block, "text": rest}


def escaped(name: str) -> str:
    """A member name as a part of an RFC 6901 pointer."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name
