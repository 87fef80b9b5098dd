"""Values as JSON and back."""

import math
from datetime import UTC, date, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from playhead.workflow.values import digest, first_difference, from_json, to_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC)),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text() | st.sampled_from(["$bytes", "$dict", "$float", "$date", "$datetime"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_comes_back_and_differs_from_nothing(value: Any) -> None:
    written = to_json(value, "it")
    assert from_json(written) == value
    assert first_difference(written, to_json(value, "it")) is None
    assert digest(written) == digest(to_json(value, "it"))


@given(VALUES, VALUES)
def test_two_values_differ_in_a_place_where_their_digests_do(one: Any, other: Any) -> None:
    here, there = to_json(one, "it"), to_json(other, "it")
    assert (first_difference(here, there) is None) == (digest(here) == digest(there))


def test_values_that_look_alike_differ() -> None:
    assert first_difference({"a": 1}, {"a": True}) == ("/a", 1, True)
    assert first_difference({"a": None}, {}) == ("/a", None, None)
    assert first_difference([1, 2], [1]) == ("/1", 2, None)
    assert first_difference({"a/b": [1]}, {"a/b": [2]}) == ("/a~1b/0", 1, 2)
    assert math.isnan(from_json(to_json(math.nan, "it")))
    assert from_json(to_json(date(2028, 2, 29), "it")) == date(2028, 2, 29)
    assert from_json(to_json(datetime(2028, 2, 29, tzinfo=UTC), "it")).day == 29
