"""Differences of JSON values are complete, minimal and short."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.keys.divergence import ABSENT, AbsentValue, Difference, differences, distance, is_same_json
from calls.model import Json

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "/~"]) | st.just(Decimal("0.5"))
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "a/b", "~"]), inner),
    max_leaves=12,
)


def pointers(recorded: Json, now: Json) -> list[str]:
    return [difference.pointer for difference in differences(recorded, now)]


def test_a_changed_message_is_one_pointer() -> None:
    recorded: Json = {"model": "m", "messages": [{"role": "user", "content": "Paris"}]}
    now: Json = {"model": "m", "messages": [{"role": "user", "content": "Rome"}]}
    assert [d.as_json() for d in differences(recorded, now)] == [
        {"pointer": "/messages/0/content", "recorded": "Paris", "now": "Rome"}
    ]


def test_one_message_more_at_the_front_is_one_difference() -> None:
    assert pointers([1, 2, 3], [0, 1, 2, 3]) == ["/0"]


def test_one_message_less_at_the_end_is_one_difference() -> None:
    (found,) = differences([1, 2, 3], [1, 2])
    assert (found.pointer, found.only_side) == ("/2", "recorded")


def test_null_and_absent_are_distinguished() -> None:
    (found,) = differences({"seed": None}, {})
    assert found.as_json() == {"pointer": "/seed", "recorded": None, "now": None, "only": "recorded"}


def test_names_are_escaped_as_rfc_6901_says() -> None:
    assert pointers({"a/b~c": 1}, {"a/b~c": 2}) == ["/a~1b~0c"]


@given(st.text(max_size=1000))
def test_a_long_pointer_is_shortened_in_the_middle(name: str) -> None:
    (found,) = differences({name: 1}, {})
    whole, written_pointer = found.pointer, found.as_json()["pointer"]
    assert written_pointer == (whole if len(whole) <= 300 else f"{whole[:200]}…{whole[-99:]}")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, Decimal("1.0"), True),
        (1, True, False),
        ([0], [False], False),
        ({"a": 1}, {"a": Decimal(1)}, True),
        ({"a": 1}, [1], False),
        ("1", 1, False),
        (None, ABSENT, False),
    ],
)
def test_sameness_is_that_of_json(one: Json, other: Json, equal: bool) -> None:
    assert is_same_json(one, other) is equal


def test_a_long_text_is_shown_where_it_parts() -> None:
    recorded, now = "x" * 5000 + "Paris" + "y" * 5000, "x" * 5000 + "Rome" + "y" * 5000
    (found,) = differences([recorded], [now])
    written = found.as_json()
    assert "Paris" in str(written["recorded"])
    assert "Rome" in str(written["now"])
    assert len(str(written["recorded"])) < 200


def test_a_large_value_that_came_or_went_is_cut() -> None:
    (found,) = differences({}, {"tools": [{"name": f"tool {n}"} for n in range(1000)]})
    assert len(str(found.as_json()["now"])) < 200


def test_a_text_with_one_word_changed_is_nearer_than_another_text() -> None:
    wanted = {"prompt": "On 2026-11-21 say hello to the world"}
    nearly = {"prompt": "On 2026-11-20 say hello to the world"}
    assert distance(nearly, wanted) < distance({"prompt": "Summarise this page"}, wanted)


def test_counting_stops_at_the_limit() -> None:
    assert distance([0] * 1000, [1] * 1000, limit=3) == 3


@given(VALUES)
def test_nothing_differs_from_itself(value: Json) -> None:
    assert not list(differences(value, value))
    assert distance(value, value) == 0


@given(VALUES, VALUES)
def test_values_without_differences_are_the_same(one: Json, other: Json) -> None:
    assert is_same_json(one, other) == (not list(differences(one, other)))


@given(VALUES, VALUES)
def test_differences_turn_round_with_their_sides(one: Json, other: Json) -> None:
    turned = {(d.pointer, d.only_side) for d in differences(other, one)}
    mirror = {"now": "recorded", "recorded": "now", None: None}
    assert {(d.pointer, mirror[d.only_side]) for d in differences(one, other)} == turned


def remove_difference(value: Json, difference: Difference, tokens: tuple[str | int, ...]) -> Json:
    """Return the value with one difference removed, for objects only."""
    if not tokens:
        assert not isinstance(difference.now, AbsentValue)
        return difference.now
    assert isinstance(value, dict)
    name, *rest = tokens
    if not rest and difference.only_side == "recorded":
        return {key: item for key, item in value.items() if key != name}
    return {**value, name: remove_difference(value.get(name), difference, tuple(rest))}


OBJECTS: st.SearchStrategy[Json] = st.recursive(
    SCALARS, lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=12
)


@given(OBJECTS, OBJECTS)
def test_mending_every_difference_gives_the_other_value(recorded: Json, now: Json) -> None:
    value = recorded
    for difference in list(differences(recorded, now)):
        value = remove_difference(value, difference, difference.path)
    assert is_same_json(value, now)
