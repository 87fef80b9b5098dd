"""Canonical JSON: RFC 8785's published examples, the reference package, and the extension for long numbers."""

import hashlib
import json
import struct
from decimal import Decimal

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.canonical import canonical_json, canonical_parsed_json, digest
from calls.codec.json import dumps, parse_json
from calls.model import Json
from tests.calls.strategies import json_values, texts

# RFC 8785, appendix B.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_published_number(bits: str, text: str) -> None:
    assert canonical_json(struct.unpack(">d", bytes.fromhex(bits))[0]).decode() == text


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_a_published_number_survives_our_parser(bits: str, text: str) -> None:
    assert canonical_parsed_json(parse_json(text.encode())).decode() == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_json_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        canonical_json(value)


def test_published_example_of_section_3_2_2() -> None:
    text = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(json.loads(text)).decode() == expected


def test_published_order_of_section_3_2_3() -> None:
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    value = dict.fromkeys(names)
    assert list(json.loads(canonical_json(value))) == ordered
    assert list(json.loads(canonical_parsed_json(value))) == ordered


def ordinary(value: Json) -> bool:
    """Return whether the reference package accepts a value: it has no integers beyond those of a double."""
    return not any(abs(int(match)) > 2**53 - 1 for match in _integers(value))


def _integers(value: Json) -> list[int]:
    match value:
        case bool() | None | str() | float() | Decimal():
            return []
        case int():
            return [value]
        case dict():
            return [found for item in value.values() for found in _integers(item)]
        case _:
            return [found for item in value for found in _integers(item)]


@given(json_values)
def test_the_reference_package_agrees_on_ordinary_values(value: Json) -> None:
    floats = json.loads(dumps(value), parse_int=lambda digits: int(digits) % 2**53)
    assert ordinary(floats)
    assert canonical_json(floats) == rfc8785.dumps(floats)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_reference_package_agrees_on_every_double(value: float) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@given(json_values)
def test_the_fast_path_agrees_with_the_plain_one(value: Json) -> None:
    read = parse_json(dumps(value))
    assert canonical_parsed_json(read) == canonical_json(read)


@given(json_values)
def test_canonical_bytes_are_their_own_canonical_form(value: Json) -> None:
    assert canonical_json(parse_json(canonical_json(value))) == canonical_json(value)


@given(st.dictionaries(texts, st.integers(), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(value: dict[str, int], random: object) -> None:
    items = list(value.items())
    random.shuffle(items)  # type: ignore[attr-defined] # Hypothesis types it as object
    assert canonical_json(dict(items)) == canonical_json(value)


@pytest.mark.parametrize("spelling", ["1", "1.0", "1e0", "10e-1", "1.000000000000000000000000"])
def test_one_number_has_one_spelling(spelling: str) -> None:
    assert canonical_parsed_json(parse_json(spelling.encode())) == b"1"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740992", "9007199254740993"),
        ("333333333.33333329", "333333333.3333333"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("100000000000000000000000", "100000000000000000000001"),
    ],
)
def test_numbers_that_a_double_would_confuse_stay_apart(one: str, other: str) -> None:
    assert canonical_json(parse_json(one.encode())) != canonical_json(parse_json(other.encode()))


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("1000000000000000000000", "1e+21"),
        ("1E21", "1e+21"),
        ("999999999999999999999", "999999999999999999999"),
        ("1000000000000000000001", "1.000000000000000000001e+21"),
        ("333333333.33333329", "333333333.33333329"),
        ("1e400", "1e+400"),
        ("-0", "0"),
        ("-0.0", "0"),
    ],
)
def test_the_extension_keeps_ecmascript_s_layout(literal: str, text: str) -> None:
    assert canonical_parsed_json(parse_json(literal.encode())).decode() == text


def test_a_huge_exponent_does_not_become_a_huge_text() -> None:
    assert canonical_parsed_json(parse_json(b"1e999999")) == b"1e+999999"


def test_a_lone_surrogate_has_no_canonical_form() -> None:
    with pytest.raises(UnicodeEncodeError):
        canonical_json("\ud800")


def test_digests_of_different_domains_differ() -> None:
    assert digest("key/1", b"x") == "sha256:" + hashlib.sha256(b"key/1\0x").hexdigest()
    assert digest("key/1", b"x") != digest("link/1", b"x")
