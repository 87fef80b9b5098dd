"""One change of what an agent received, and what it does to the documents of a run.

Edits are applied one after the other. One that no longer applies, because an earlier one removed its place, or whose outcome would no
longer fit the shape of the tool's answers, changes nothing. So any part of a variation is a variation too, and can be tried alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from calls.model import Json
from calls.perturbation.shape import AnswerShape, fits

type Group = Literal["tools", "chunks", "errors", "latencies"]
GROUPS: Final[tuple[Group, ...]] = ("tools", "chunks", "errors", "latencies")

type Operation = Mapping[str, Any]

type AnswerPlace = Literal["body", "MCP structured", "MCP text", "MCP content"]
"""Where a tool's value is: the body of an HTTP answer; or of an MCP result the structured content (and the same as text), JSON in its
only text, or all its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEdit:
    """One change."""

    kind: str
    """What is varied, in words for a table."""

    group: Group
    step: int
    """The step whose answer it changes; the first one if it changes several."""

    operations: tuple[Operation, ...] = ()
    """RFC 6902 operations on the answer of the step."""

    fault: Mapping[str, Any] | None = None
    renamed: tuple[str, str] | None = None
    """An id and the one that takes its place in all answers."""

    @property
    def place(self) -> str:
        """Where it changes something, for a person."""
        if self.renamed is not None:
            return f"{self.renamed[0]} → {self.renamed[1]}"
        if self.operations:
            first = self.operations[0]
            return f"step {self.step} {first.get('from', first['path']) or 'the whole answer'}"
        return f"step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """The answer of a tool in a recording."""

    step: int
    value: Json
    """What the tool chose, without what its protocol puts around it."""

    shape: AnswerShape
    form: AnswerPlace = "body"
    is_retrieval: bool = False
    method: str = "GET"
    host: str = ""
    path: str = ""
    status: int = 200


@dataclass(slots=True)
class AppliedEdits:
    """The documents of a run after some edits, and what has to be overridden for that."""

    documents: dict[int, Any]
    operations: dict[int, list[Operation]] = field(default_factory=dict)
    faults: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    used: list[AnswerEdit] = field(default_factory=list)
    """The edits that changed something."""


def apply_edits(answers: Sequence[ToolAnswer], edits: Sequence[AnswerEdit]) -> AppliedEdits:
    """Apply edits to the answers of a run."""
    by_step = {answer.step: answer for answer in answers}
    applied = AppliedEdits(documents={answer.step: copy_json(answer.value) for answer in answers})
    for edit in edits:
        if edit.fault is not None:
            applied.faults.append((edit.step, edit.fault))
            applied.used.append(edit)
            continue
        changes = dict(_changes(applied.documents, edit))
        changed = {step: apply_operations(applied.documents[step], operations) for step, operations in changes.items()}
        if not changed or any(new is None or not fits(by_step[step].shape, new[0]) for step, new in changed.items()):
            continue
        for step, new in changed.items():
            assert new is not None
            applied.documents[step] = new[0]
            applied.operations.setdefault(step, []).extend(changes[step])
        if edit.renamed is not None:
            applied.renamed[edit.renamed[0]] = edit.renamed[1]
        applied.used.append(edit)
    return applied


def _changes(documents: Mapping[int, Any], edit: AnswerEdit) -> Iterator[tuple[int, Sequence[Operation]]]:
    """Yield the operations of an edit by step."""
    if edit.renamed is None:
        if edit.step in documents:
            yield edit.step, edit.operations
        return
    old, new = edit.renamed
    for step, document in documents.items():
        places = [
            {"op": "replace", "path": pointer, "value": value.replace(old, new)}
            for pointer, value in texts_of(document)
            if old in value
        ]
        if places:
            yield step, places


def texts_of(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a document with its pointer."""
    match value:
        case str():
            yield pointer, value
        case dict():
            for name, one in value.items():
                yield from texts_of(one, f"{pointer}/{escape(name)}")
        case list():
            for number, one in enumerate(value):
                yield from texts_of(one, f"{pointer}/{number}")
        case _:
            return


def escape(name: str) -> str:
    """Return a member's name as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def copy_json(value: Json) -> Any:
    """Return a copy of a value, in which objects are dicts and lists are lists."""
    match value:
        case Mapping():
            return {name: copy_json(one) for name, one in value.items()}
        case str():
            return value
        case Sequence():
            return [copy_json(one) for one in value]
        case _:
            return value


def value_at(document: Any, pointer: str) -> tuple[Any] | None:
    """Return the value at a pointer, in a tuple; None if there is none."""
    value = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return (value,)


def apply_operations(document: Any, operations: Sequence[Operation]) -> tuple[Any] | None:
    """Return a changed copy, in a tuple; None if an operation does not apply. They are `add`, `remove`, `replace` and `move`."""
    changed = copy_json(document)
    for operation in operations:
        moved = _take(changed, operation["from"]) if operation["op"] == "move" else None
        if operation["op"] == "move" and moved is None:
            return None
        value = moved[0] if moved is not None else copy_json(operation.get("value"))
        if operation["op"] == "remove":
            done = _take(changed, operation["path"]) is not None
        elif operation["op"] == "replace" and not operation["path"]:
            changed, done = value, True
        else:
            done = _put(changed, operation["path"], value, inserts=operation["op"] != "replace")
        if not done:
            return None
    return (changed,)


def _take(document: Any, pointer: str) -> tuple[Any] | None:
    above, _, last = pointer.rpartition("/")
    found, name = value_at(document, above), last.replace("~1", "/").replace("~0", "~")
    if found is None or value_at(document, pointer) is None:
        return None
    (holder,) = found
    return (holder.pop(int(name) if isinstance(holder, list) else name),)


def _put(document: Any, pointer: str, value: Any, *, inserts: bool) -> bool:
    above, _, last = pointer.rpartition("/")
    found, name = value_at(document, above), last.replace("~1", "/").replace("~0", "~")
    if found is None or (not inserts and value_at(document, pointer) is None):
        return False
    (holder,) = found
    if isinstance(holder, dict):
        holder[name] = value
        return True
    if not isinstance(holder, list) or not name.isdecimal() or int(name) > len(holder):
        return False
    if inserts:
        holder.insert(int(name), value)
    else:
        holder[int(name)] = value
    return True
