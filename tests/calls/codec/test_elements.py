"""A body that is read element by element is read exactly as it is as a whole."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calls.codec.elements import split_elements
from calls.codec.json import MAX_DEPTH, InvalidJson, parse_json
from calls.codec.read_body import ReadMemory, read_body
from calls.codec.recent_values import RecentValues
from calls.model import Json

LONG = b"x" * 3000
NESTED = b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2)


def read(body: bytes, memory: ReadMemory | None = None) -> Any:
    memory = memory or ReadMemory()
    first, again = read_body(body, memory), read_body(body, memory)
    assert (first and first.value) == (again and again.value)
    for one in (first, again):
        assert one is None or tuple(one.elements) == split_elements(body)
    return None if first is None else first.value


def refusal_or_value(body: bytes) -> Json | None:
    try:
        return parse_json(body)
    except InvalidJson:
        return None


long_texts = st.text(st.characters(exclude_categories=[]), max_size=12).map(lambda text: text + "y" * 2100)
leaves = st.one_of(st.none(), st.integers(), st.integers(10**20, 10**23), st.floats(), st.text(max_size=80), long_texts)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "é", "NaN"]), values), max_size=4),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:")]),
    st.booleans(),
)
def test_any_body_is_read_as_it_is_as_a_whole(
    members: list[tuple[str, object]], layout: tuple[str, str], plain: bool
) -> None:
    comma, colon = layout
    texts = [
        json.dumps(name) + colon + json.dumps(value, separators=layout, ensure_ascii=plain) for name, value in members
    ]
    body = ("{" + comma.join([*texts, f'"text"{colon}"{"z" * 2100}"']) + "}").encode("utf-8", "surrogatepass")
    found = read(body)
    assert found is None or found == refusal_or_value(body)


@given(
    st.binary(max_size=40) | st.sampled_from([b",", b"]", b",,", b"}", b" "]),
    st.integers(0, 6100) | st.integers(3005, 3020),
)
@example(b"NaN", 3)
def test_no_damage_makes_it_read_what_is_no_json(data: bytes, at: int) -> None:
    body = b'{"m":[{"a":"%s"},{"b":[1,2.50,"%s"]}],"n":1}' % (LONG, LONG)
    memory = ReadMemory()
    assert read(body, memory) == parse_json(body)
    body = body[:at] + data + body[at + len(data) :]
    for found in (read(body), read(body, memory)):
        assert found is None or found == refusal_or_value(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"%s","a":"%s"}' % (LONG, LONG),
        b'{"a":"%s","b":1,"b":2}' % LONG,
        b'{"a":"%s","b":NaN}' % LONG,
        b'{"a":["%s",Infinity]}' % LONG,
        b'{"a":["%s",{"b":1,"b":1}]}' % LONG,
        b'{"a":"%s","b":"\\ud800"}' % LONG,
        b'{"a":["\\ud800%s"]}' % LONG,
        b'{"a":["%s",%s]}' % (LONG, b"[" + NESTED + b"]"),
        b'{"a":"%s",}' % LONG,
        b'{"a":"%s"} x' % LONG,
        b'\xef\xbb\xbf{"a":"%s"}' % LONG,
        b'{"a":"%s\xff"}' % LONG,
        b'{"a":"%s","b":1e999999999999999999999}' % LONG,
    ],
)
def test_what_is_refused_as_a_whole_is_not_read(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        parse_json(body)
    assert read(body) is None


def test_elements_are_read_once_and_the_text_between_them_each_time() -> None:
    memory = ReadMemory()
    first = read(b'{"m":[{"a":"%s"},"%s"],"n":1}' % (LONG, LONG), memory)
    second = read(b'{"n":2, "m":[{"a":"%s"} , 7, "%s"]}' % (LONG, LONG), memory)
    assert second == {"n": 2, "m": [{"a": LONG.decode()}, 7, LONG.decode()]}
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert second["m"][0] is first["m"][0]


def test_a_value_that_equals_a_name_or_is_nested_as_deep_as_allowed_is_read_right() -> None:
    body = b'{"%s":"%s","c":["%s",%s]}' % (LONG, LONG, LONG, NESTED)
    assert read(body) in (None, parse_json(body))


def test_what_was_not_asked_for_lately_is_forgotten() -> None:
    recent = RecentValues[int, int](100)
    for number in range(50):
        recent.put(number, number, 10)
        assert recent.get(0) == 0
    assert [recent.get(number) for number in (1, 30, 49)] == [None, None, 49]


def test_of_an_array_that_begins_as_an_earlier_one_only_the_rest_is_read() -> None:
    memory = ReadMemory()
    items = [json.dumps({"number": number, "text": "x" * 100}) for number in range(40)]
    assert read(_messages(items[:30]), memory) == parse_json(_messages(items[:30]))
    for now, common, whole in (
        (items[:30], 30, True),
        (items, 30, False),
        ([*items[:20], "12", *items[30:]], 20, False),
        ([*items[:20], "123", *items[30:]], 20, False),
        (["1", *items], 0, False),
    ):
        body = _messages(now)
        found = read_body(body, memory)
        assert found is not None
        assert found.value == parse_json(body)
        assert tuple(found.elements) == split_elements(body)
        (array,) = found.arrays.values()
        assert (array.known_count, array.known is array.array) == (common, whole)
    assert read(_messages(items, " ,\n"), memory) == parse_json(_messages(items))
    damaged = _messages(items).replace(items[30].encode() + b",", items[30].encode() + b",,")
    assert read(damaged, memory) is None


def _messages(items: list[str], comma: str = ",") -> bytes:
    return b'{"n":"%s", "m":[%s]}' % (LONG, comma.join(items).encode())
