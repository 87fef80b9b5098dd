"""What a value is compared with."""

from decimal import Decimal

import pytest
from hypothesis import given

from calls.checking.checked_run import walk_values
from calls.checking.conditions import Condition, broken_condition, equal_values, schema_type
from calls.model import Json
from tests.calls.strategies import json_values


@pytest.mark.parametrize(
    ("condition", "right", "wrong", "words"),
    [
        (Condition(equals=1), 1, 2, "is not 1"),
        (Condition(equals=1), 1.0, True, "is not 1"),
        (Condition(equals={"a": [1]}), {"a": [Decimal("1.0")]}, {"a": [1, 2]}, 'is not {"a":[1]}'),
        (Condition(equals=None), None, 0, "is not null"),
        (Condition(one_of=["a", 1]), 1, "b", 'is not one of "a", 1'),
        (Condition(type="integer"), 3.0, 3.5, "is not of type integer"),
        (Condition(type="number"), 3, "3", "is not of type number"),
        (Condition(type=["string", "null"]), None, 1, "is not of type string or null"),
        (Condition(pattern="T-[0-9]+"), "T-1", "xT-1", "does not match 'T-[0-9]+'"),
        (Condition(pattern="."), "a", 1, "does not match '.'"),
        (Condition(min=1), 1, 0, "is less than 1"),
        (Condition(max=1), Decimal("0.5"), 2, "is more than 1"),
        (Condition(max=1), 1, True, "is not a number"),
        (Condition(min_length=1), "a", "", "is shorter than 1"),
        (Condition(max_length=1), [1], [1, 2], "is longer than 1"),
        (Condition(max_length=1), {}, 5, "has no length"),
    ],
)
def test_a_condition_holds_or_says_why_not(condition: Condition, right: Json, wrong: Json, words: str) -> None:
    assert broken_condition(condition, right) is None
    assert broken_condition(condition, wrong) == words


def test_without_a_condition_every_value_is_right() -> None:
    assert Condition().is_empty
    assert not Condition(equals=None).is_empty


@given(json_values)
def test_every_value_equals_itself_and_has_a_type(value: Json) -> None:
    assert equal_values(value, value)
    assert broken_condition(Condition(equals=value, type=schema_type(value)), value) is None


@given(json_values)
def test_values_are_walked_with_pointers_that_lead_to_them(value: Json) -> None:
    for pointer, found in walk_values(value):
        at: object = value
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            at = at[int(name)] if isinstance(at, list | tuple) else at[name]  # type: ignore[index] # a mapping otherwise
        assert at is found
