"""Select and normalize the key fields of a body in one pass over the profile's rule tree.

The class of a value is the one declared at the deepest place at or above it. A value that no rule classifies is unknown. Every
value that is left out or changed is noted with the rule that applies.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from calls import placeholder
from calls.codec.canonical import canonical_parsed_json
from calls.codec.json import InvalidJson, parse_json
from calls.codec.read_body import BodyArray
from calls.keys import graphql, normalize
from calls.keys.element_memory import OMITTED, BodyMemory, ItemNotes, OmittedField, SelectedElement, SelectedItems
from calls.keys.rules import At, FieldClass, Node
from calls.model import Json

type _AnswerRank = tuple[int, str]
"""The number of the call that an element answers, or a text in its stead."""

ID_PREFIX: Final = "id:"
"""What the name of an id begins with; its number follows."""


class LeftOutField(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is not in the key, and the rule that left it out."""

    pointer: str
    rule: str


class RenamedId(msgspec.Struct, frozen=True, kw_only=True):
    """An id that counts by its first occurrence instead of its value."""

    pointer: str
    was: str
    now: str


class NormalizedField(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is in the key in one of several forms that the API treats as equal."""

    pointer: str
    rule: str


class SelectionNotes:
    """The fields that a walk left out or changed. Pointers are built only on access."""

    def __init__(self) -> None:
        self.left_out: list[tuple[At, str]] = []
        self.ids: list[tuple[At, str, str]] = []
        self.folds: list[tuple[At, str]] = []
        self.unknown: list[At] = []

    @property
    def left_out_fields(self) -> tuple[LeftOutField, ...]:
        """The fields that are not in the key."""
        return tuple(LeftOutField(pointer=pointer_to(at), rule=rule) for at, rule in self.left_out)

    @property
    def renamed_ids(self) -> tuple[RenamedId, ...]:
        """The ids that count by their first occurrence."""
        return tuple(RenamedId(pointer=pointer_to(at), was=was, now=now) for at, was, now in self.ids)

    @property
    def normalized_fields(self) -> tuple[NormalizedField, ...]:
        """The fields that were normalized, each once: an array may have several groups of answers in another order."""
        fields = (NormalizedField(pointer=pointer_to(at), rule=rule) for at, rule in self.folds)
        return tuple(dict.fromkeys(fields))

    @property
    def unknown_pointers(self) -> tuple[str, ...]:
        """The pointers of the fields that no rule classifies."""
        return tuple(map(pointer_to, self.unknown))


class Selection:
    """A walk over one body that selects its key fields and notes everything it leaves out or changes."""

    def __init__(self, *, keep_unknown: bool, memory: BodyMemory | None = None) -> None:
        """`memory` has what was selected of the body's elements before."""
        self.notes = SelectionNotes()
        self._keep_unknown = keep_unknown
        self._memory = memory
        self._ids: dict[str, str] = {}

    def select_body(self, value: Json, root: Node, at: At) -> Json:
        """Return the parts of a body that count; None if none do."""
        selected = self._visit(value, root, None, at)
        return None if isinstance(selected, OmittedField) else selected

    def normalize_names(self, value: Json, root: Node, at: At) -> Json:
        """Return a body with the API's names in camelCase, in which the rules are written."""
        return normalize.NameNormalizer(lambda at: self.notes.folds.append((at, "names"))).normalize(value, root, at)

    def is_in_key(self, field_class: FieldClass | None, at: At) -> bool:
        """Return whether a field outside the body counts, by its class. A field that does not count is noted."""
        return not isinstance(self._select_whole(None, field_class, at), OmittedField)

    def _visit(self, value: Json, node: Node | None, above: FieldClass | None, at: At) -> Json | OmittedField:
        if node is None:
            return self._select_whole(value, above, at)
        field_class = node.field_class or above
        if value is None and "null" in node.folds:
            return self._leave_out(at, "null")
        if not node.has_key_rule and field_class is not None and field_class != "key":
            return self._leave_out(at, field_class)
        selected = self._select_below(value, node, field_class, at)
        return (
            self._apply_folds(selected, node, at) if node.folds and not isinstance(selected, OmittedField) else selected
        )

    def _select_below(self, value: Json, node: Node, field_class: FieldClass | None, at: At) -> Json | OmittedField:
        if node.by_name or node.wildcard or node.by_type:
            if isinstance(value, dict):
                return self._select_members(value, node, field_class, at)
            if isinstance(value, list):
                return self._select_elements(value, node, field_class, at)
        return self._select_whole(value, field_class, at)

    def _select_members(self, value: dict[str, Json], node: Node, field_class: FieldClass | None, at: At) -> Json:
        selected: dict[str, Json] = {}
        visit = self._visit if self._memory is None else self._visit_element
        # The first occurrence of an id must not depend on the order in which a client writes the members.
        for name, item in sorted(value.items()) if node.has_id_rule else value.items():
            rules = node.child(name, item)
            part = item if rules is None and field_class == "key" else visit(item, rules, field_class, (at, name))
            if part is not OMITTED:
                selected[name] = part  # type: ignore[assignment] # OUT is the only _Out
        return selected

    def _select_elements(self, value: list[Json], node: Node, field_class: FieldClass | None, at: At) -> Json:
        memory = self._memory
        if memory is not None and (array := memory.arrays.get(id(value))) is not None:
            return self._select_array(memory, array, node, field_class, at)
        visit = self._visit if memory is None else self._visit_element
        order = self._visit_order(value, 0, node, at)
        parts = [visit(value[index], node.child(index, value[index]), field_class, (at, index)) for index in order]
        return [part for part in parts if not isinstance(part, OmittedField)]

    def _visit_order(self, elements: Sequence[Json], start: int, node: Node, at: At) -> Iterable[int]:
        """Return the indexes of elements in the order in which they are to be visited."""
        members = node.answer_members
        if members and len(elements) - start > 1:
            # Most arrays have no two answers, and to look for their calls takes a fifth of the time of a key.
            possible = [isinstance(one, dict) and not members.isdisjoint(one) for one in elements]
            if possible.count(True) > 1:
                return self._order_of_calls(elements, start, node, at)
        return range(start, len(elements))

    def _order_of_calls(self, elements: Sequence[Json], start: int, node: Node, at: At) -> Iterator[int]:
        """Yield the indexes of elements in the order in which they are to be visited: neighbours that answer calls in that of the calls.

        The calls may be elements of the same array: a rank is taken when all elements before it were visited.
        """
        while start < len(elements):
            ranks: list[_AnswerRank] = []
            for index in range(start, len(elements)):
                if (rank := self._answer_rank(elements[index], node.child(index, elements[index]))) is None:
                    break
                ranks.append(rank)
            if len(ranks) < 2:
                yield start
                start += 1
                continue
            if ranks != sorted(ranks):
                self.notes.folds.append((at, "answers"))
            yield from (start + offset for offset in sorted(range(len(ranks)), key=ranks.__getitem__))
            start += len(ranks)

    def _answer_rank(self, element: Json, node: Node | None) -> "_AnswerRank | None":
        """Return where an element belongs among its neighbours that answer calls; None if it answers none of which that is known."""
        if node is None or (places := node.answer) is None:
            return None
        call_id = places.read_call_id(element)
        if call_id is not None and (name := self._ids.get(call_id)) is not None:
            return int(name.removeprefix(ID_PREFIX)), ""
        text = places.read_otherwise(element)
        return None if text is None else (sys.maxsize, text)

    def _select_array(
        self, memory: BodyMemory, body_array: BodyArray, node: Node, field_class: FieldClass | None, at: At
    ) -> Json:
        """Visit an array of the body; of items that it has in common with an earlier one, repeat what was selected and noted then."""
        array, known, count = body_array
        rules = (id(node), field_class, self._keep_unknown)
        before: SelectedItems | None = known.selected.get(rules) if known is not None else None
        if before is not None and node.answer_members:
            count = _whole_items(array.values, count, len(before.ends), node)
        items = before.first(count) if before is not None and count else None
        if items is None or not self._repeat_item_notes(items, at):
            items = SelectedItems.none(at, node, len(self._ids))
        if len(items.ends) < len(array.values):
            items = self._select_items(memory, array.values, items, node, field_class)
            array.note_selected(rules, items)
        memory.items[id(items.parts)] = items
        return items.parts

    def _select_items(
        self,
        memory: BodyMemory,
        values: Sequence[Json],
        before: SelectedItems,
        node: Node,
        field_class: FieldClass | None,
    ) -> SelectedItems:
        """Visit the items of an array after those that are selected already, and whose notes are repeated."""
        notes = self.notes
        left_out, ids = len(notes.left_out) - len(before.left_out), len(notes.ids) - len(before.ids)
        folds, unknown = len(notes.folds) - len(before.folds), len(notes.unknown) - len(before.unknown)
        parts, ends = [*before.parts], [*before.ends]
        texts: list[bytes] = []
        size = len(before.text)
        start = len(ends)
        for index in self._visit_order(values, start, node, before.at):
            item = values[index]
            part = self._visit_element(item, node.child(index, item), field_class, (before.at, index))
            if not isinstance(part, OmittedField):
                texts.append(text := memory.value_text(part))
                size += len(text) + bool(parts)
                parts.append(part)
            ends.append(
                ItemNotes(
                    parts=len(parts),
                    text=size,
                    left_out=len(notes.left_out) - left_out,
                    ids=len(notes.ids) - ids,
                    folds=len(notes.folds) - folds,
                    unknown=len(notes.unknown) - unknown,
                )
            )
        return SelectedItems(
            at=before.at,
            node=node,
            parts=parts,
            text=b",".join([before.text, *texts] if before.parts else texts),
            has_placeholder=before.has_placeholder or any(placeholder.PREFIX in text for text in texts),
            left_out=notes.left_out[left_out:],
            ids=notes.ids[ids:],
            folds=notes.folds[folds:],
            unknown=notes.unknown[unknown:],
            ends=ends,
            named_before=before.named_before,
            hashed=before.hashed,
        )

    def _repeat_item_notes(self, items: SelectedItems, at: At) -> bool:
        """Note what was noted about items, unless that would be something else here."""
        names = tuple({was: now for _, was, now in items.ids}.items())
        if items.at != at or not self._has_names(names, items.named_before):
            return False
        notes = self.notes
        notes.left_out += items.left_out
        notes.ids += items.ids
        notes.folds += items.folds
        notes.unknown += items.unknown
        return True

    def _has_names(self, names: Sequence[tuple[str, str]], named_before: int) -> bool:
        """Name ids in this order if they have these names then, and return whether they have.

        As many must have been named as before: the order of answers depends on which calls are known.
        """
        ids = self._ids
        if names and len(ids) != named_before:
            return False
        new: dict[str, str] = {}
        for was, now in names:
            if (known := ids.get(was)) is None:
                known = new[was] = f"{ID_PREFIX}{len(ids) + len(new) + 1}"
            if known != now:
                return False
        ids.update(new)
        return True

    def _visit_element(self, value: Json, node: Node | None, above: FieldClass | None, at: At) -> Json | OmittedField:
        """Visit a value; if it is an element that was visited before, repeat what was selected and noted then."""
        memory = self._memory
        if memory is None or (digest := memory.digests.get(id(value))) is None:
            return self._visit(value, node, above, at)
        selected_element = memory.find_selected(digest, node, above, self._keep_unknown)
        if selected_element is None or (selected_element.has_notes and not self._repeat_notes(selected_element, at)):
            selected_element = self._select_anew(value, node, above, at)
            memory.note_selected(digest, above, self._keep_unknown, selected_element)
        memory.selected[id(selected_element.value)] = selected_element
        return selected_element.value

    def _select_anew(self, value: Json, node: Node | None, above: FieldClass | None, at: At) -> SelectedElement:
        notes = self.notes
        starts = [len(noted) for noted in (notes.left_out, notes.ids, notes.folds, notes.unknown)]
        named_before = len(self._ids)
        selected = self._visit(value, node, above, at)
        left_out, ids, folds, unknown = starts
        return SelectedElement(
            at=at,
            node=node,
            value=selected,
            text=b"" if isinstance(selected, OmittedField) else canonical_parsed_json(selected),
            names=tuple({was: now for _, was, now in notes.ids[ids:]}.items()),
            named_before=named_before,
            left_out=tuple(notes.left_out[left_out:]),
            ids=tuple(notes.ids[ids:]),
            folds=tuple(notes.folds[folds:]),
            unknown=tuple(notes.unknown[unknown:]),
            has_notes=starts != [len(noted) for noted in (notes.left_out, notes.ids, notes.folds, notes.unknown)],
        )

    def _repeat_notes(self, element: SelectedElement, at: At) -> bool:
        """Note what was noted about an element, unless that would be something else here: at another place, or after other ids."""
        if element.at != at or not self._has_names(element.names, element.named_before):
            return False
        notes = self.notes
        notes.left_out += element.left_out
        notes.ids += element.ids
        notes.folds += element.folds
        notes.unknown += element.unknown
        return True

    def _select_whole(self, value: Json, field_class: FieldClass | None, at: At) -> Json | OmittedField:
        if field_class == "key":
            return value
        if field_class is not None:
            return self._leave_out(at, field_class)
        self.notes.unknown.append(at)
        return value if self._keep_unknown else self._leave_out(at, "unknown")

    def _leave_out(self, at: At, rule: str) -> OmittedField:
        self.notes.left_out.append((at, rule))
        return OMITTED

    def _apply_folds(self, value: Json, node: Node, at: At) -> Json | OmittedField:
        result: Json | OmittedField = value
        if node.nonces and (not isinstance(value, str) or value.startswith(node.nonce_texts)):
            result = self._remove_nonce(value, node, at)
        if "text" in node.folds and isinstance(result, list):
            result = self._unwrap_single_text(result, at)
        if "message" in node.folds and isinstance(result, list):
            result = self._unwrap_single_message(result, at)
        if "single" in node.folds and isinstance(result, list):
            result = self._unwrap_single(result, at)
        if "bare" in node.folds and isinstance(result, dict):
            result = self._unwrap_bare_id(result, at)
        if "default" in node.folds and type(result) is type(node.default) and result == node.default:
            return self._leave_out(at, "default")
        if "schema" in node.folds and isinstance(result, dict):
            result = self._note_fold(result, normalize.normalize_schema(result), "schema", at)
        if type(result) is int and "number" in node.folds:
            result = self._number_id(str(result), at)
        elif isinstance(result, str):
            if "bytes" in node.folds:
                result = self._note_fold(result, normalize.digest_base64(result), "bytes", at)
            elif "graphql" in node.folds:
                result = self._note_fold(result, graphql.normalize_document(result), "graphql", at)
            elif "json" in node.folds:
                result = self._parse_inner_json(result, at)
            elif "id" in node.folds:
                result = self._number_id(result, at)
        return result

    def _note_fold(self, was: Json, now: Json, rule: str, at: At) -> Json:
        if was is not now and was != now:
            self.notes.folds.append((at, rule))
        return now

    def _unwrap_single_text(self, parts: list[Json], at: At) -> Json:
        """Replace a list of one text part by its text, unless the part has other members."""
        match parts:
            case [{"type": "text" | "input_text" | "output_text", "text": str() as text, **more}] if not more:
                self.notes.folds.append((at, "text"))
                return text
            case _:
                return parts

    def _unwrap_single_message(self, messages: list[Json], at: At) -> Json:
        """Replace a list of one user message of text by the text."""
        match messages:
            case [{"role": "user", "content": str() as text, **more}] if not more:
                self.notes.folds.append((at, "message"))
                return text
            case _:
                return messages

    def _unwrap_single(self, values: list[Json], at: At) -> Json:
        """Replace a list of one text, or of one list of tokens, by its element. A list of one token is a list of tokens."""
        match values:
            case [str() | list() as only]:
                self.notes.folds.append((at, "single"))
                return only
            case _:
                return values

    def _unwrap_bare_id(self, value: dict[str, Json], at: At) -> Json:
        """Replace an object with only an id by the id."""
        match value:
            case {"id": str() as name, **more} if not more:
                self.notes.folds.append((at, "bare"))
                return name
            case _:
                return value

    def _parse_inner_json(self, text: str, at: At) -> Json:
        try:
            value = parse_json(text.encode())
        except InvalidJson:
            return text
        if not isinstance(value, dict | list):
            return text  # else the texts `1` and `"1"` could become equal
        self.notes.folds.append((at, "json"))
        return value

    def _number_id(self, was: str, at: At) -> str:
        now = self._name_id(was)
        self.notes.ids.append((at, was, now))
        return now

    def _name_id(self, was: str) -> str:
        if (now := self._ids.get(was)) is None:
            now = self._ids[was] = f"{ID_PREFIX}{len(self._ids) + 1}"
        return now

    def _remove_nonce(self, value: Json, node: Node, at: At) -> Json | OmittedField:
        """Remove nonces, whole lines, from a text or from the text parts of a list."""
        if isinstance(value, str):
            return self._remove_text_nonce(value, node, at)
        if isinstance(value, list):
            parts = (self._remove_block_nonce(part, node, (at, index)) for index, part in enumerate(value))
            return [part for part in parts if not isinstance(part, OmittedField)]
        return value

    def _remove_block_nonce(self, block: Json, node: Node, at: At) -> Json | OmittedField:
        if not isinstance(block, dict) or not isinstance(text := block.get("text"), str):
            return block
        rest = self._remove_text_nonce(text, node, at) if text.startswith(node.nonce_texts) else text
        return rest if isinstance(rest, OmittedField) else block if rest is text else {**block, "text": rest}

    def _remove_text_nonce(self, text: str, node: Node, at: At) -> str | OmittedField:
        nonces = [(start, until) for within, start, until in node.nonces if text.startswith(within) and start in text]
        if not nonces:
            return text
        lines = text.split("\n")
        rest = [part for line in lines if (part := _line_without_nonce(line, nonces)) is not None]
        if rest == lines:
            return text
        self._leave_out(at, "nonce")
        return "\n".join(rest) or OMITTED


def _line_without_nonce(line: str, nonces: Iterable[tuple[str, str]]) -> str | None:
    """Return what counts of a line; None if nothing does."""
    for start, until in nonces:
        if line.startswith(start):
            if not until:
                return None
            end = line.find(until, len(start))
            return line if end < 0 else line[end:]
    return line


def _whole_items(values: Sequence[Json], count: int, known: int, node: Node) -> int:
    """Return how many of the first `count` items, which an array of `known` items has too, have all their neighbours among them.

    Answers that are neighbours are sorted together.
    """

    def is_answer(index: int) -> bool:
        rules = node.child(index, values[index])
        return rules is not None and rules.answer is not None and rules.answer.are_in(values[index])

    if count == known and (count == len(values) or not is_answer(count)):
        return count
    while count and is_answer(count - 1):
        count -= 1
    return count


def pointer_to(at: At) -> str:
    """Return the RFC 6901 pointer of a place."""
    steps: list[str] = []
    while not isinstance(at, str):
        at, step = at
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
    return "/".join([at, *reversed(steps)])
