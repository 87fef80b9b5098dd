"""The JSON shape of a tool's answers: which types its values have, which members always occur.

A shape is learned from all answers that are known. A value fits a shape if it could be one more of them: each value has a type that was
seen at its place, no member is new, and none is missing that always occurred.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from calls.codec.canonical import canonical_parsed_json
from calls.codec.json import JsonType, json_type
from calls.model import Json

MAX_EXAMPLES: Final = 50
"""Texts that are remembered of one place."""

MAX_EXAMPLE_LENGTH: Final = 200

MAX_MEMBERS: Final = 1_000
"""Members of an object that are known by name. An object with more is a table, whose names are data: any name fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """What is known of the values at one place."""

    types: frozenset[JsonType] = frozenset()
    members: Mapping[str, "AnswerShape"] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    """The members that every object had."""

    items: "AnswerShape | None" = None
    """The shape of all items of lists; None if no list had one."""

    examples: tuple[str, ...] = ()
    """Different texts that were seen, in their order."""

    is_closed: bool = True
    """Whether other members than those known do not fit."""

    choices: frozenset[bytes] | None = None
    """The only values that fit, in canonical JSON; None for any."""

    minimum: float | None = None
    maximum: float | None = None
    min_items: int = 0
    max_items: int | None = None
    min_length: int = 0
    max_length: int | None = None


def learn_shape(values: Iterable[Json]) -> AnswerShape:
    """Learn the shape that all values fit."""
    shape = AnswerShape()
    for value in values:
        shape = merge_shapes(shape, shape_of(value))
    return shape


def shape_of(value: Json) -> AnswerShape:
    """Return the shape of one value."""
    types = frozenset((json_type(value),))
    match value:
        case str():
            return AnswerShape(types=types, examples=(value,) if 0 < len(value) <= MAX_EXAMPLE_LENGTH else ())
        case Mapping():
            members = {name: shape_of(one) for name, one in value.items()}
            return AnswerShape(types=types, members=members, required=frozenset(members))
        case list() | tuple():
            return AnswerShape(types=types, items=learn_shape(value) if value else None)
        case _:
            return AnswerShape(types=types)


def merge_shapes(one: AnswerShape, other: AnswerShape) -> AnswerShape:
    """Return the shape of values that fit either."""
    if not one.types or not other.types:
        return other if not one.types else one
    members = dict(one.members)
    is_closed = one.is_closed and other.is_closed
    for name, shape in other.members.items():
        if name in members:
            members[name] = merge_shapes(members[name], shape)
        elif len(members) < MAX_MEMBERS:
            members[name] = shape
        else:
            is_closed = False
    both_objects = "object" in one.types and "object" in other.types
    return replace(
        one,
        types=one.types | other.types,
        members=members,
        is_closed=is_closed,
        required=one.required & other.required if both_objects else one.required | other.required,
        items=merge_shapes(one.items or AnswerShape(), other.items or AnswerShape())
        if one.items or other.items
        else None,
        examples=tuple(dict.fromkeys((*one.examples, *other.examples)))[:MAX_EXAMPLES],
    )


def fits(shape: AnswerShape, value: Json) -> bool:
    """Whether a value fits a shape."""
    kind = json_type(value)
    if kind not in shape.types and not (kind == "integer" and "number" in shape.types):
        return False
    if shape.choices is not None and canonical_parsed_json(value) not in shape.choices:
        return False
    match value:
        case bool() | None:
            return True
        case int() | float() | Decimal():
            return (shape.minimum is None or value >= shape.minimum) and (
                shape.maximum is None or value <= shape.maximum
            )
        case str():
            return shape.min_length <= len(value) and (shape.max_length is None or len(value) <= shape.max_length)
        case Mapping():
            return _has_fitting_members(shape, value)
        case _:
            return _has_fitting_items(shape, value)


def _has_fitting_members(shape: AnswerShape, value: Mapping[str, Json]) -> bool:
    if not shape.required <= value.keys() or (shape.is_closed and not value.keys() <= shape.members.keys()):
        return False
    return all(fits(shape.members[name], one) for name, one in value.items() if name in shape.members)


def _has_fitting_items(shape: AnswerShape, value: Iterable[Json]) -> bool:
    found = list(value)
    if len(found) < shape.min_items or (shape.max_items is not None and len(found) > shape.max_items):
        return False
    items = shape.items
    return not found if items is None else all(fits(items, one) for one in found)
