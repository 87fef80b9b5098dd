"""The guessed class of a field, by its name and values."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.comparison.field_heuristics import guess_class, value_shape
from calls.keys.divergence import ABSENT
from tests.calls.strategies import json_values

UUIDS = "7f1c9a52-6a52-4c8e-9d9b-0f3a1c5b7e11", "0d8f0f6e-4b1e-4a63-8f0c-6f6a5f1b2c3d"


@pytest.mark.parametrize(
    ("name", "one", "other", "kind", "why"),
    [
        ("ref", *UUIDS, "transient", "a uuid"),
        ("ref", f"run-{UUIDS[0]}", f"run-{UUIDS[1]}", "transient", "a uuid"),
        ("sessionId", *UUIDS, "identity", "a uuid"),
        ("when", "2026-11-22T01:02:03Z", "2026-11-23T04:05:06.7+01:00", "transient", "a timestamp"),
        ("when", "Sun, 22 Nov 2026 01:02:03 GMT", "Mon, 23 Nov 2026 01:02:03 GMT", "transient", "a timestamp"),
        ("when", 1795311907, 1795311999, "transient", "a timestamp"),
        ("when", Decimal("1795311907.25"), Decimal("1795311999.5"), "transient", "a timestamp"),
        ("when", "1795311907123", "1795311999123", "transient", "a timestamp"),
        ("ref", "msg_01XFDUDYJgAACzvnptvVoYEL", "msg_01A2b3C4d5E6f7G8h9J0kLmN", "transient", "a random id"),
        ("request_id", 3, 9, "transient", "a counter"),
        ("seq", "3", "12", "transient", "a counter"),
        ("nonce", "alpha", "beta", "transient", "its name"),
        ("user", "ada", "bob", "identity", "its name"),
        ("user", "ada", ABSENT, "identity", "its name"),
        ("api_key", "one", "two", "secret", "its name"),
        ("anything", "PLAYHEAD_ABCDEFG", "PLAYHEAD_ABCDEF", "secret", "a secret"),
    ],
)
def test_what_is_made_anew_is_known_by_its_looks_or_its_name(
    name: str, one: Any, other: Any, kind: str, why: str
) -> None:
    found = guess_class(name, one, other)
    assert found.field_class == kind
    assert why in found.reason


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("model", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20"),
        ("model", "claude-3-5-sonnet-20241022", "claude-sonnet-4-20250514"),
        ("modelId", "Qwen2VL72BInstruct", "Qwen3VL72BInstruct"),
        ("tool", "getWeatherForecastV2Tool", "getWeatherForecastV3Tool"),
        ("max_tokens", 256, 512),
        ("temperature", Decimal("0.7"), 1),
        ("count", 3, 4),
        ("query", "What is the weather in Paris?", "What is the weather in London?"),
        ("stream", True, False),
        ("tools", [{"name": "a"}], ABSENT),
        ("id", "a", 7),
        ("page", 1, 2),
    ],
)
def test_what_may_be_asked_counts(name: str, one: Any, other: Any) -> None:
    assert guess_class(name, one, other).field_class == "key"


PROSE = "You are a helpful assistant of the company. {} Answer in one line, and be kind."


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("Today is 2026-11-21.", "Today is 2026-11-22.", "a date within"),
        ("It is Saturday, 21 November 2026.", "It is Sunday, 22 November 2026.", "a date within"),
        (f"Run {UUIDS[0]}.", f"Run {UUIDS[1]}.", "a uuid within"),
        ("The clock says 10:42:11.", "The clock says 23:59:01.", "a time within"),
        ("Speak French.", "Speak German.", "the texts differ"),
    ],
)
def test_what_differs_within_a_text_is_named_and_stays(one: str, other: str, why: str) -> None:
    found = guess_class("content", PROSE.format(one), PROSE.format(other))
    assert found.field_class == "key"
    assert why in found.reason


def test_a_first_line_that_is_made_anew_is_a_nonce_and_no_other_line_is() -> None:
    found = guess_class("content", "x-build: 1\nYou are kind.", "x-build: 2\nYou are kind.")
    assert (found.field_class, found.nonce_start) == ("nonces", "x-build:")
    assert guess_class("content", "x-build: 1\nYou are kind.", "x-build: 2\nYou are cruel.").field_class == "key"
    assert guess_class("content", "x-build: 1\nYou are kind.", "y-build: 1\nYou are kind.").field_class == "key"
    assert guess_class("content", "x-build: 1", "x-build: 2").field_class == "key"


@given(st.text(max_size=20), json_values, json_values)
def test_anything_may_differ(name: str, one: Any, other: Any) -> None:
    value_shape(one)
    assert guess_class(name, one, other).reason
    assert guess_class(name, one, other).field_class == guess_class(name, other, one).field_class
