"""Propose the edits that a run allows: those after which each answer still fits the shape of its tool's answers."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from calls.perturbation.draws import Draws
from calls.perturbation.edits import AnswerEdit, Group, Operation, ToolAnswer, apply_edits, copy_json, escape
from calls.perturbation.shape import AnswerShape
from calls.perturbation.texts import INJECTIONS, OTHER_LANGUAGES, is_id, is_id_name, is_prose, longer_text, other_id

MAX_PLACES: Final = 2_000
"""Values of one answer that are varied."""

INTEGER_EDGES: Final = (0, 1, -1, (1 << 31) - 1, (1 << 53) - 1)
NUMBER_EDGES: Final = (Decimal("0.0"), Decimal("-0.5"), Decimal("0.1"), Decimal("1E+15"))

FAULTS: Final[tuple[tuple[str, Group, dict[str, Any]], ...]] = (
    ("429 once", "errors", {"status": 429, "retry_after": 0.01, "times": 1}),
    ("429 four times", "errors", {"status": 429, "retry_after": 0.01, "times": 4}),
    ("500 once", "errors", {"status": 500, "times": 1}),
    ("500 four times", "errors", {"status": 500, "times": 4}),
    ("timeout", "errors", {"timeout": 0.5, "times": 1}),
    ("cut stream", "errors", {"cut": 40, "times": 1}),
    ("malformed JSON", "errors", {"malformed": True, "times": 1}),
    ("slow answer", "latencies", {"slow": 0.05, "piece": 200}),
    ("slow first byte", "latencies", {"slow": 0.5, "piece": 1_000_000}),
)


def propose_edits(
    answers: Sequence[ToolAnswer], steps: Sequence[int], groups: Sequence[Group], seed: int
) -> list[AnswerEdit]:
    """Return all edits of these groups. `steps` are those at which a fault can happen. The same seed gives the same edits."""
    draws = Draws(seed, 0)
    edits: list[AnswerEdit] = []
    for answer in answers:
        edits += _Proposer(answer, draws).edits()
    edits += _renames(answers, draws)
    for step in steps:
        edits += [AnswerEdit(kind=kind, group=group, step=step, fault=fault) for kind, group, fault in FAULTS]
    # An edit that changes nothing alone is not proposed.
    return [edit for edit in edits if edit.group in groups and apply_edits(answers, [edit]).used]


class _Proposer:
    """Proposes the edits of one answer."""

    def __init__(self, answer: ToolAnswer, draws: Draws) -> None:
        self._answer = answer
        self._draws = draws
        self._left = MAX_PLACES

    def edits(self) -> list[AnswerEdit]:
        return list(self._at(copy_json(self._answer.value), self._answer.shape, "", None))

    def _at(self, value: Any, shape: AnswerShape, pointer: str, name: str | None) -> Iterator[AnswerEdit]:
        if self._left <= 0:
            return
        self._left -= 1
        if "null" in shape.types and value is not None:
            yield self._edit("null", pointer, None)
        match value:
            case bool():
                yield self._edit("other boolean", pointer, not value)
            case int():
                if not is_id_name(name):
                    edges: tuple[Any, ...] = INTEGER_EDGES
                    yield from (self._edit("number at an edge", pointer, edge) for edge in edges if edge != value)
            case float() | Decimal():
                yield from (self._edit("number at an edge", pointer, edge) for edge in NUMBER_EDGES if edge != value)
            case str():
                yield from self._text(value, shape, pointer, name)
            case list():
                yield from self._list(value, shape, pointer)
            case dict():
                yield from self._object(value, shape, pointer)
            case _:
                return

    def _edit(self, kind: str, pointer: str, value: Any, group: Group = "tools") -> AnswerEdit:
        return self._operation(kind, {"op": "replace", "path": pointer, "value": value}, group)

    def _operation(self, kind: str, operation: Operation, group: Group) -> AnswerEdit:
        return AnswerEdit(kind=kind, group=group, step=self._answer.step, operations=(operation,))

    def _text(self, value: str, shape: AnswerShape, pointer: str, name: str | None) -> Iterator[AnswerEdit]:
        if is_prose(value):
            yield self._edit("longer text", pointer, longer_text(value))
            yield self._edit("other language", pointer, self._draws.choose(OTHER_LANGUAGES))
            yield self._edit("empty text", pointer, "")
            injected = f"{value} {self._draws.choose(INJECTIONS)}"
            yield self._edit("injected instruction", pointer, injected, "chunks")
        elif not is_id(value, name):
            others = [one for one in shape.examples if one != value]
            if others:
                yield self._edit("other value", pointer, self._draws.choose(others))

    def _object(self, value: dict[str, Any], shape: AnswerShape, pointer: str) -> Iterator[AnswerEdit]:
        for name, one in value.items():
            place = f"{pointer}/{escape(name)}"
            if name not in shape.required:
                yield self._operation("missing member", {"op": "remove", "path": place}, "tools")
            yield from self._at(one, shape.members.get(name, AnswerShape()), place, name)

    def _list(self, value: list[Any], shape: AnswerShape, pointer: str) -> Iterator[AnswerEdit]:
        group: Group = "chunks" if self._answer.is_retrieval or any(isinstance(one, dict) for one in value) else "tools"
        if value:
            yield self._edit("empty list", pointer, [])
            place = self._draws.below(len(value))
            copy = {"op": "add", "path": f"{pointer}/{place}", "value": value[place]}
            yield self._operation("duplicate", copy, group)
        if len(value) > 1:
            last = len(value) - 1
            for source, target in ((0, last), (last, 0))[: 1 if last == 1 else 2]:
                move = {"op": "move", "from": f"{pointer}/{source}", "path": f"{pointer}/{target}"}
                yield self._operation("other order", move, group)
            for number in range(len(value)):
                yield self._operation("one missing", {"op": "remove", "path": f"{pointer}/{number}"}, group)
        objects = [one for one in value if isinstance(one, dict)]
        if objects:
            for place in sorted({0, len(value)}):
                item = self._distractor(self._draws.choose(objects))
                yield self._operation("distractor", {"op": "add", "path": f"{pointer}/{place}", "value": item}, group)
        for number, one in enumerate(value):
            yield from self._at(one, shape.items or AnswerShape(), f"{pointer}/{number}", None)

    def _distractor(self, item: dict[str, Any]) -> Any:
        """Return an item like this one, but of another thing."""

        def changed_value(value: Any, name: str | None) -> Any:
            match value:
                case str() if is_id(value, name):
                    return other_id(value, self._draws)
                case dict():
                    return {member: changed_value(one, member) for member, one in value.items()}
                case _:
                    return value

        return changed_value(item, None)


def _renames(answers: Sequence[ToolAnswer], draws: Draws) -> list[AnswerEdit]:
    """Return an edit for each id, which puts another one in its place wherever it occurs."""
    ids: dict[str, tuple[int, Group]] = {}

    def collect(value: Any, name: str | None, answer: ToolAnswer) -> None:
        match value:
            case str():
                if is_id(value, name):
                    ids.setdefault(value, (answer.step, "tools"))
            case dict():
                for member, one in value.items():
                    collect(one, member, answer)
            case list():
                for one in value:
                    collect(one, name, answer)
            case _:
                return

    for answer in answers:
        collect(copy_json(answer.value), None, answer)
    edits: list[AnswerEdit] = []
    for old, (step, group) in list(ids.items())[:MAX_PLACES]:
        edits.append(AnswerEdit(kind="other id", group=group, step=step, renamed=(old, other_id(old, draws))))
    return edits
