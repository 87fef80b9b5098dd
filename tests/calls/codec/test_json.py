"""What `calls.codec.json` preserves, what it rejects, and what it reads leniently."""

import json
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import MAX_DEPTH, InvalidJson, dumps, parse_json, parse_json_leniently
from calls.model import Json
from tests.calls.strategies import json_values


@given(json_values)
def test_what_is_written_is_read_again(value: Json) -> None:
    assert parse_json(dumps(value)) == value


@given(json_values)
def test_the_standard_library_reads_what_is_written(value: Json) -> None:
    assert json.loads(dumps(value), parse_float=Decimal) == value


@given(st.integers(-(10**60), 10**60))
def test_no_integer_loses_a_digit(value: int) -> None:
    assert parse_json(str(value).encode()) == value


def test_an_integer_beyond_python_s_own_limit_is_kept() -> None:
    digits = "7" * 10_000
    assert dumps(parse_json(digits.encode())).decode() == digits


@pytest.mark.parametrize("literal", ["0.1", "1.10", "333333333.33333329", "1E400", "-0.0", "1e-400"])
def test_a_decimal_keeps_the_value_it_was_written_with(literal: str) -> None:
    assert parse_json(literal.encode()) == Decimal(literal)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": 1}',
        b'[{"b": {"a": 1, "a": 2}}]',
        b'"\\ud800"',
        b'"\\uDFFF x"',
        b'{"\\ud83d": 1}',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"",
        b"{",
        b"[1,]",
        b"{} {}",
        b"1e9999999999999999999",
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_what_cannot_be_kept_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidJson):
        parse_json(text)


def test_depth_is_judged_before_all_that_goes_down_into_it() -> None:
    with pytest.raises(InvalidJson, match="nested deeper"):
        parse_json(b'["\\ud83d\\ude00",' + b"[" * 3000 + b"]" * 3000 + b"]")


def test_the_depth_limit_is_ours_and_exact() -> None:
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_many_brackets_are_not_many_levels() -> None:
    assert parse_json(b"[" + b",".join([b'{"a":[1]}'] * 500) + b"]") == [{"a": [1]}] * 500


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert parse_json(b'"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'"\\ud800"', "\ufffd"),
        (b"[NaN]", ["NaN"]),
        (b'"\xff"', "\ufffd"),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    ],
)
def test_lenient_reads_what_clients_read(text: bytes, value: Json) -> None:
    assert parse_json_leniently(text) == value
    dumps(parse_json_leniently(text))


@given(st.binary(max_size=40))
def test_no_bytes_surprise_either_reader(data: bytes) -> None:
    for read in (parse_json, parse_json_leniently):
        try:
            dumps(read(data))
        except InvalidJson:
            pass


PIECES = r"""{ } [ ] , : " \ 0 1 -0 .5 1e5 1E400 -0.0 "a" "a": "b" :"x" "\\" "\\": "\":" ":x" "\u0061" "\ud83d\ude00" "\ud800" null true NaN
123456789012345678901234 é 😀""".split()  # noqa: SIM905 - a line a piece would be long


@given(st.lists(st.sampled_from([*PIECES, " ", "\t", "\x00", "\x0b"]), max_size=14).map("".join))
def test_texts_are_read_as_the_standard_library_reads_them(text: str) -> None:
    assert _read(parse_json, text) == _read(_parse_by_the_standard_library, text)


@given(json_values, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]), st.booleans())
def test_spaces_and_escapes_change_nothing(value: Json, separators: tuple[str, str], is_ascii: bool) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=is_ascii, default=float)
    assert _read(parse_json, text) == _read(_parse_by_the_standard_library, text)


def _read(parse: Callable[[bytes], Json], text: str) -> str:
    """How a value is written in Python, which distinguishes 1 and 1.0 and tells the order of members."""
    try:
        return repr(parse(text.encode()))
    except ValueError:
        return "refused"


def _parse_by_the_standard_library(data: bytes) -> Json:
    value: Json = json.loads(
        data.decode(),
        object_pairs_hook=_unique,
        parse_float=Decimal,
        parse_int=lambda digits: int(digits) if len(digits) < 22 else Decimal(digits),
        parse_constant=_refuse,
    )
    dumps(value)
    return value


def _refuse(constant: str) -> Json:
    raise ValueError(constant)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("repeated")
    return dict(pairs)
