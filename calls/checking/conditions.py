"""Compare a value with what a rule demands of it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import re2

from calls.codec.json import JsonType, dumps, json_type
from calls.model import Json

_TEXT_LIMIT: Final = 120
"""Characters of a value that a message shows."""


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a value must be. All that is given must hold."""

    equals: Any = msgspec.UNSET
    one_of: list[Any] | None = None
    type: JsonType | list[JsonType] | None = None
    pattern: str | None = None
    """A regular expression (RE2) that must match the whole text."""

    min: float | None = None
    max: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it demands nothing."""
        return self == Condition()


class PathMatch(NamedTuple):
    """A value in a document, and its JSON pointer."""

    pointer: str
    value: Json


def condition_error(condition: Condition) -> str | None:
    """Return why a condition is invalid; None if it is valid."""
    if condition.pattern is None:
        return None
    return pattern_error(condition.pattern)


def pattern_error(pattern: str) -> str | None:
    """Return why a regular expression is invalid; None if it is valid."""
    try:
        compile_pattern(pattern)
    except re2.error as error:
        words = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error.args[0])
        return f"invalid pattern {pattern!r}: {words}; patterns are RE2 regular expressions, without look-ahead"
    return None


def compile_pattern(pattern: str) -> Any:
    """Compile a regular expression. RE2 needs time linear in the text, whatever the pattern."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options=options)


def broken_condition(condition: Condition, value: Json) -> str | None:
    """Return what a value does not satisfy, such as "is not one of 1, 2"; None if it satisfies all."""
    if condition.equals is not msgspec.UNSET and not equal_values(value, condition.equals):
        return f"is not {show_value(condition.equals)}"
    if condition.one_of is not None and not any(equal_values(value, one) for one in condition.one_of):
        return f"is not one of {', '.join(map(show_value, condition.one_of))}"
    if condition.type is not None and (names := _type_names(condition.type)) and not _has_type(value, names):
        return f"is not of type {' or '.join(names)}"
    if condition.pattern is not None and not (
        isinstance(value, str) and compile_pattern(condition.pattern).fullmatch(value) is not None
    ):
        return f"does not match {condition.pattern!r}"
    return _broken_bound(condition, value)


def _broken_bound(condition: Condition, value: Json) -> str | None:
    if condition.min is not None or condition.max is not None:
        if not _is_number(value):
            return "is not a number"
        if condition.min is not None and value < condition.min:  # type: ignore[operator] # a number, by the test above
            return f"is less than {condition.min:g}"
        if condition.max is not None and value > condition.max:  # type: ignore[operator] # likewise
            return f"is more than {condition.max:g}"
    if condition.min_length is not None or condition.max_length is not None:
        if not isinstance(value, str | list | tuple | Mapping):
            return "has no length"
        if condition.min_length is not None and len(value) < condition.min_length:
            return f"is shorter than {condition.min_length}"
        if condition.max_length is not None and len(value) > condition.max_length:
            return f"is longer than {condition.max_length}"
    return None


def equal_values(one: Json, other: Json) -> bool:
    """Whether two JSON values are equal. `1` and `1.0` are; `1` and `true` are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_values(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal_values, one, other))
    return one == other


def schema_type(value: Json) -> JsonType:
    """Return the type of a value as JSON Schema has it: a whole number is an integer, also if it is written as 1.0."""
    name = json_type(value)
    return "integer" if name == "number" and value == value.__trunc__() else name  # type: ignore[union-attr] # a number


def show_value(value: Json) -> str:
    """Write a value for a message: as JSON, cut where it is long."""
    text = dumps(value).decode("utf-8", "replace")
    return text if len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}… ({len(text):,} characters)"


def _type_names(type_: JsonType | list[JsonType]) -> list[JsonType]:
    return [type_] if isinstance(type_, str) else type_


def _has_type(value: Json, names: list[JsonType]) -> bool:
    name = schema_type(value)
    return name in names or (name == "integer" and "number" in names)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
