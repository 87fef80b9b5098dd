"""The keys of real requests: however they are spelled they stay, and whatever is load-bearing in them changes them."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.codec.json import MAX_DEPTH, dumps
from calls.keys.element_memory import ElementMemory
from calls.keys.key import KeyResult, make_key
from calls.model import Body, Json, Request
from tests.calls.recorded import exchange
from tests.calls.sample_requests import PROFILES
from tests.support.corpus import cassettes


@lru_cache(maxsize=1)
def requests() -> list[tuple[str, Request, KeyResult]]:
    """Every different request of the corpus whose body is JSON, and its key."""
    found: dict[tuple[str, str, bytes], tuple[str, Request]] = {}
    for cassette in cassettes():
        for recorded in cassette.exchanges:
            one = exchange(recorded).request
            found.setdefault((one.method, one.url, one.body.data), (cassette.name, one))
    made = [(name, one, make_key(one, PROFILES)) for name, one in found.values()]
    return [(name, one, key) for name, one, key in made if key.parsed_body.form == "json"]


def saying(one: Request, text: bytes) -> KeyResult:
    """The key of the same request with another body, which is not compressed."""
    headers = tuple((name, value) for name, value in one.headers if name.lower() != "content-encoding")
    return make_key(replace(one, headers=headers, body=Body(data=text, size=len(text))), PROFILES)


def respell_json(value: Json, chance: random.Random) -> str:
    """The same value in another spelling: order of members, blanks, escapes, forms of numbers."""
    blank = chance.choice(("", " ", "\n", "\t\r\n "))
    match value:
        case dict():
            members = [f"{_text(name, chance)}{blank}:{respell_json(item, chance)}" for name, item in value.items()]
            chance.shuffle(members)
            return "{" + f"{blank},{blank}".join(members) + blank + "}"
        case list():
            return "[" + blank + f",{blank}".join(respell_json(item, chance) for item in value) + "]"
        case str():
            return _text(value, chance)
        case bool() | None:
            return json.dumps(value)
        case int() | Decimal():
            return _number(Decimal(value), chance)
        case _:
            raise AssertionError(f"{value!r} came out of our own parser")


def _text(value: str, chance: random.Random) -> str:
    plain = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    if not value.isascii() or "\\" in plain or chance.random() < 0.9:
        return plain
    return '"' + "".join(f"\\u{ord(char):04{chance.choice('xX')}}" for char in value) + '"'


def _number(value: Decimal, chance: random.Random) -> str:
    if not value or abs(value.adjusted()) > 40:
        return str(value)
    spellings = [f"{value:f}", f"{value:e}", f"{value:E}"]
    spellings += [f"{value:f}.000"] if value == value.to_integral_value() and "." not in f"{value:f}" else []
    return chance.choice(spellings)


def test_a_request_that_is_written_otherwise_keeps_its_keys() -> None:
    assert len(requests()) > 800
    for name, one, key in requests():
        chance = random.Random(name)
        again = saying(one, respell_json(key.request_body, chance).encode())
        assert (again.key, again.selected_fields == key.selected_fields) == (key.key, True), name
        assert again.warnings == key.warnings, name
        assert again.strict_key == saying(one, dumps(key.request_body)).strict_key, name


def test_a_key_that_is_made_with_a_memory_of_earlier_requests_is_the_same() -> None:
    memory = ElementMemory()
    known = 0
    # Twice: the second time, all elements are known.
    for name, one, key in [*requests(), *requests()]:
        again = make_key(one, PROFILES, memory)
        known += again.parsed_body.read is not None
        assert (again, again.request_body) == (key, key.request_body), name
        for noted in ("left_out_fields", "renamed_ids", "normalized_fields"):
            assert getattr(again, noted) == getattr(key, noted), (name, noted)
    assert known > 200


type Leaf = tuple[tuple[str | int, ...], Json]


def leaves(value: Json, at: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    match value:
        case dict():
            for name, item in value.items():
                yield from leaves(item, (*at, name))
        case list():
            for number, item in enumerate(value):
                yield from leaves(item, (*at, number))
        case _:
            yield at, value


def with_leaf(value: Any, at: tuple[str | int, ...], now: Json) -> Any:
    if not at:
        return now
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = with_leaf(value[at[0]], at[1:], now)
    return copy


def other(value: Json) -> Json:
    match value:
        case bool():
            return not value
        case str():
            return value + "x"
        case int() | Decimal():
            return value + 1
        case _:
            return "x"


def pointers(at: tuple[str | int, ...]) -> list[str]:
    """The pointers of a place and of all above it."""
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in at]
    return ["/body" + "".join(f"/{step}" for step in steps[:end]) for end in range(len(steps) + 1)]


def fate(key: KeyResult, at: tuple[str | int, ...]) -> str:
    """What became of a place: `key`, the rule that left it or something above it out, or `unsure`."""
    above = set(pointers(at))
    for note in key.left_out_fields:
        if note.pointer in above:
            return note.rule
    if above & {note.pointer for note in key.renamed_ids} or any(
        note.rule == "names" for note in key.normalized_fields
    ):
        return "unsure"
    return "key"


def change_leaf(one: Request, key: KeyResult, leaf: Leaf) -> KeyResult:
    at, value = leaf
    return saying(one, dumps(with_leaf(key.request_body, at, other(value))))


def check(name: str, one: Request, key: KeyResult, leaf: Leaf) -> str:
    """Change one value, and see that the key does what its explanation says."""
    found, now = fate(key, leaf[0]), change_leaf(one, key, leaf)
    assert now.strict_key != key.strict_key, (name, leaf)
    if found == "key":
        assert now.key != key.key, (name, leaf)
    elif found in ("transient", "identity", "secret"):
        assert now.key == key.key, (name, leaf)
    return found


def test_a_load_bearing_value_that_changes_changes_the_key_and_no_other_does() -> None:
    seen: Counter[str] = Counter()
    for name, one, key in requests():
        found = list(leaves(key.request_body))
        for leaf in random.Random(name).sample(found, min(3, len(found))):
            seen[check(name, one, key, leaf)] += 1
    assert seen["key"] > 1000
    assert seen["transient"] > 50
    assert seen["identity"] > 10


@given(st.data())
def test_any_value_of_any_request_does_what_explain_says(data: st.DataObject) -> None:
    name, one, key = data.draw(st.sampled_from(requests()), label="request")
    found = list(leaves(key.request_body))
    check(name, one, key, data.draw(st.sampled_from(found), label="place") if found else ((), key.request_body))


def test_a_member_that_nobody_knows_is_in_the_key_and_says_so() -> None:
    for name, one, key in requests()[::7]:
        if not isinstance(key.request_body, dict) or key.profile == "rest/1" or fate(key, ()) != "key":
            continue
        now = saying(one, dumps({**key.request_body, "novelty": 1}))
        assert now.key != key.key, name
        if now.profile == key.profile and not now.profile.startswith(_OPEN):
            assert any("novelty" in word for word in now.warnings), (name, now.profile)


_OPEN = ("vectors/", "bedrock_invoke/", "graphql/", "text_generation/", "replicate/", "openai_rest/", "rerank/")
"""Profiles of which the whole body is the question."""


def test_real_requests_are_far_from_our_limit_of_depth() -> None:
    deepest = max(_depth(key.request_body) for _, _, key in requests())
    assert deepest < MAX_DEPTH / 2


def _depth(value: Json) -> int:
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", dumps(value).decode())
    depth = most = 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        most = max(most, depth)
    return most


@pytest.mark.parametrize("value", [0.1, 1e-7, 123456.789, -2.5e-300])
def test_the_spellings_here_are_of_one_value(value: float) -> None:
    chance = random.Random(1)
    assert {Decimal(_number(Decimal(repr(value)), chance)) for _ in range(20)} == {Decimal(repr(value))}
