"""Overrides of effects: what a user may write, and what the hook is told."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.overrides.effect_values import BadEffectValue, parse_effect_words, read_effect_value


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))  # noqa: DTZ001 - naive ones are drawn
def test_a_time_is_read_as_the_standard_library_reads_it(when: datetime) -> None:
    text = when.isoformat()
    expected = (when.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution) * 1000
    assert read_effect_value({"effect": "clock", "value": text}).value == str(expected)


def test_an_offset_and_a_date_alone_are_times() -> None:
    values = [
        read_effect_value({"effect": "clock", "value": text}).value
        for text in ("2028-02-29T12:00:00+02:00", "2028-02-29T10:00:00Z", "2028-02-29")
    ]
    assert values[0] == values[1]
    assert int(str(values[0])) - int(str(values[2])) == 10 * 3600 * 1_000_000_000


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        ("what-if.toml", None),
        ("a=b.toml", None),
        ("clock=2028-02-29", {"effect": "clock", "value": "2028-02-29"}),
        ("env:A#2=x=y", {"effect": "env:A", "nth": 2, "value": "x=y"}),
        ("file:a#b.txt=", {"effect": "file:a#b.txt", "value": ""}),
        ("file:a=b.txt=@c.txt", {"effect": "file:a=b.txt", "value": "@c.txt"}),
        ("input=two\nlines", {"effect": "input", "value": "two\nlines"}),
    ],
)
def test_words_are_an_effect_or_the_name_of_a_file(words: str, entry: dict[str, Any] | None) -> None:
    assert parse_effect_words(words) == entry


@pytest.mark.parametrize(
    "entry",
    [
        {"effect": "weather", "value": "x"},
        {"effect": "clock:x", "value": "2028-02-29"},
        {"effect": "file", "value": "x"},
        {"effect": "file:a"},
        {"effect": "file:a", "value": 1},
        {"effect": "env:a", "value": "x", "step": 1},
        {"effect": "env:a", "value": "x", "nth": 0},
        {"effect": "random", "value": "1"},
        {"effect": "uuid", "value": "x"},
        {"effect": "bytes", "value": "f"},
        {"effect": "run:x", "value": {"code": 1}},
        {"effect": "clock", "value": "2028-02-30"},
        {"effect": "monotonic", "value": "-1"},
    ],
)
def test_what_makes_no_sense_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(BadEffectValue):
        read_effect_value(entry)
