"""Select and normalize the key fields of a body in one pass over the profile's rule tree.

The class of a value is the one given at the deepest place above it. What no rule classifies is unknown. Everything that is not
taken as it came is noted, with the rule that says so.
"""

from dataclasses import dataclass
from typing import Final

from calls.codec.json import NotLossless, parse
from calls.keys import graphql
from calls.keys import normalize as spelling
from calls.keys.rules import At, FieldClass, Node
from calls.model import Json


class _Out:
    """Nothing was kept."""


OUT: Final = _Out()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that did not go into the key, and the rule that says so."""

    pointer: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedId:
    """An id that counts by where it occurs first, and not by its value."""

    pointer: str
    was: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizedField:
    """Something that went into the key in the one spelling of several that the API treats as equal."""

    pointer: str
    rule: str


class Notes:
    """What the walk did that was not just to take. Kept as it was met, and written out only for who asks."""

    def __init__(self) -> None:
        self.skipped: list[tuple[At, str]] = []
        self.ids: list[tuple[At, str, str]] = []
        self.folds: list[tuple[At, str]] = []
        self.unclassified: list[At] = []

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """All that did not go in."""
        return tuple(LeftOut(pointer=pointer(at), rule=rule) for at, rule in self.skipped)

    @property
    def renamed(self) -> tuple[RenamedId, ...]:
        """All ids that count by where they occur first."""
        return tuple(RenamedId(pointer=pointer(at), was=was, now=now) for at, was, now in self.ids)

    @property
    def folded(self) -> tuple[NormalizedField, ...]:
        """All that went in in another spelling."""
        return tuple(NormalizedField(pointer=pointer(at), rule=rule) for at, rule in self.folds)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Pointers of all that no rule classifies."""
        return tuple(map(pointer, self.unclassified))


class Selection:
    """One walk over one body: what is kept, and a note for everything that was not taken as it came."""

    def __init__(self, *, keep_unknown: bool) -> None:
        self.notes = Notes()
        self._keep_unknown = keep_unknown
        self._ids: dict[str, str] = {}

    def body(self, value: Json, root: Node, at: At) -> Json:
        """What counts of a body; None when nothing does."""
        kept = self._visit(value, root, None, at)
        return None if isinstance(kept, _Out) else kept

    def named(self, value: Json, root: Node, at: At) -> Json:
        """A body with the API's names in one spelling; rules are written in that one."""
        return spelling.Names(lambda at: self.notes.folds.append((at, "names"))).visit(value, root, at)

    def takes(self, field_class: FieldClass | None, at: At) -> bool:
        """Whether something of this class, that is no part of the body, counts; noted where it does not."""
        return not isinstance(self._whole(None, field_class, at), _Out)

    def _visit(self, value: Json, node: Node | None, above: FieldClass | None, at: At) -> Json | _Out:
        if node is None:
            return self._whole(value, above, at)
        field_class = node.field_class or above
        if value is None and "null" in node.folds:
            return self._leave(at, "null")
        if not node.keeps and field_class is not None and field_class != "key":
            return self._leave(at, field_class)
        kept = self._below(value, node, field_class, at)
        return self._fold(kept, node, at) if node.folds and not isinstance(kept, _Out) else kept

    def _below(self, value: Json, node: Node, field_class: FieldClass | None, at: At) -> Json | _Out:
        if node.named or node.each or node.typed:
            if isinstance(value, dict):
                return self._members(value, node, field_class, at)
            if isinstance(value, list):
                return self._elements(value, node, field_class, at)
        return self._whole(value, field_class, at)

    def _members(self, value: dict[str, Json], node: Node, field_class: FieldClass | None, at: At) -> Json:
        kept: dict[str, Json] = {}
        # First occurrence must not depend on the order in which a client writes the members.
        for name, item in sorted(value.items()) if node.renames else value.items():
            rules = node.below(name, item)
            part = item if rules is None and field_class == "key" else self._visit(item, rules, field_class, (at, name))
            if part is not OUT:
                kept[name] = part  # type: ignore[assignment] # OUT is the only _Out
        return kept

    def _elements(self, value: list[Json], node: Node, field_class: FieldClass | None, at: At) -> Json:
        parts = (
            self._visit(item, node.below(index, item), field_class, (at, index)) for index, item in enumerate(value)
        )
        return [part for part in parts if not isinstance(part, _Out)]

    def _whole(self, value: Json, field_class: FieldClass | None, at: At) -> Json | _Out:
        if field_class == "key":
            return value
        if field_class is not None:
            return self._leave(at, field_class)
        self.notes.unclassified.append(at)
        return value if self._keep_unknown else self._leave(at, "unknown")

    def _leave(self, at: At, rule: str) -> _Out:
        self.notes.skipped.append((at, rule))
        return OUT

    def _fold(self, value: Json, node: Node, at: At) -> Json | _Out:
        kept: Json | _Out = value
        if "nonce" in node.folds:
            kept = self._without_nonce(value, node.starts, at)
        if "text" in node.folds and isinstance(kept, list):
            kept = self._single_text(kept, at)
        if "message" in node.folds and isinstance(kept, list):
            kept = self._single_message(kept, at)
        if "single" in node.folds and isinstance(kept, list):
            kept = self._single(kept, at)
        if "bare" in node.folds and isinstance(kept, dict):
            kept = self._bare(kept, at)
        if "default" in node.folds and type(kept) is type(node.default) and kept == node.default:
            return self._leave(at, "default")
        if "schema" in node.folds and isinstance(kept, dict):
            kept = self._noted(kept, spelling.schema(kept), "schema", at)
        if isinstance(kept, str):
            if "bytes" in node.folds:
                kept = self._noted(kept, spelling.digested(kept), "bytes", at)
            elif "graphql" in node.folds:
                kept = self._noted(kept, graphql.normal(kept), "graphql", at)
            elif "json" in node.folds:
                kept = self._inner(kept, at)
            elif "id" in node.folds:
                kept = self._rename(kept, at)
        return kept

    def _noted(self, was: Json, now: Json, rule: str, at: At) -> Json:
        if was is not now and was != now:
            self.notes.folds.append((at, rule))
        return now

    def _single_text(self, parts: list[Json], at: At) -> Json:
        """A list of one bare text part says what its text says; one with anything beside the text may not."""
        match parts:
            case [{"type": "text" | "input_text" | "output_text", "text": str() as text, **more}] if not more:
                self.notes.folds.append((at, "text"))
                return text
            case _:
                return parts

    def _single_message(self, messages: list[Json], at: At) -> Json:
        """A list of one message of the user that is a text says what the text says."""
        match messages:
            case [{"role": "user", "content": str() as text, **more}] if not more:
                self.notes.folds.append((at, "message"))
                return text
            case _:
                return messages

    def _single(self, values: list[Json], at: At) -> Json:
        """A list of one text says what the text says, a list of one list of tokens what that says; a list of one token is itself one."""
        match values:
            case [str() | list() as only]:
                self.notes.folds.append((at, "single"))
                return only
            case _:
                return values

    def _bare(self, value: dict[str, Json], at: At) -> Json:
        """An object that is only an id says what the id says."""
        match value:
            case {"id": str() as name, **more} if not more:
                self.notes.folds.append((at, "bare"))
                return name
            case _:
                return value

    def _inner(self, text: str, at: At) -> Json:
        try:
            value = parse(text.encode())
        except NotLossless:
            return text
        if not isinstance(value, dict | list):
            return text  # else the text `1` and the text `"1"` could meet
        self.notes.folds.append((at, "json"))
        return value

    def _rename(self, was: str, at: At) -> str:
        now = self._ids.setdefault(was, f"id:{len(self._ids) + 1}")
        self.notes.ids.append((at, was, now))
        return now

    def _without_nonce(self, value: Json, starts: str, at: At) -> Json | _Out:
        """A text without its first line, a list without that line in its text parts, where the line is the nonce."""
        if isinstance(value, list):
            parts = ((self._block_without_nonce(part, starts, (at, index))) for index, part in enumerate(value))
            return [part for part in parts if not isinstance(part, _Out)]
        return self._text_without_nonce(value, starts, at) if isinstance(value, str) else value

    def _block_without_nonce(self, block: Json, starts: str, at: At) -> Json | _Out:
        if not isinstance(block, dict) or not isinstance(text := block.get("text"), str):
            return block
        rest = self._text_without_nonce(text, starts, at)
        return OUT if isinstance(rest, _Out) else {**block, "text": rest}

    def _text_without_nonce(self, text: str, starts: str, at: At) -> str | _Out:
        if not text.startswith(starts):
            return text
        self._leave(at, "nonce")
        return text.partition("\n")[2] or OUT


def pointer(at: At) -> str:
    """A place as an RFC 6901 pointer."""
    steps: list[str] = []
    while not isinstance(at, str):
        at, step = at
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
    return "/".join([at, *reversed(steps)])
