"""Placeholders keep a secret's length and equality, and nothing else of it."""

import re

from hypothesis import given
from hypothesis import strategies as st

from calls.placeholder import MIN_SIZE, PATTERN, is_placeholder, make_placeholder, number_placeholders

KEY = b"k" * 32
kinds = st.sampled_from("AHCUQTJP")


@given(st.binary(max_size=400), kinds)
def test_a_placeholder_is_as_long_as_its_secret(secret: bytes, kind: str) -> None:
    assert len(make_placeholder(secret, kind, KEY)) == len(secret)


@given(st.binary(min_size=MIN_SIZE, max_size=400), kinds)
def test_a_placeholder_is_ascii_and_says_what_it_is(secret: bytes, kind: str) -> None:
    text = make_placeholder(secret, kind, KEY).decode("ascii")

    assert re.fullmatch(PATTERN, text)
    assert text.startswith(f"PLAYHEAD_{kind}")


@given(st.binary(max_size=400), kinds, kinds)
def test_a_placeholder_stands_for_itself(secret: bytes, kind: str, other: str) -> None:
    once = make_placeholder(secret, kind, KEY)

    assert make_placeholder(once, other, b"another key") == once
    assert not secret or is_placeholder(once)


def test_a_short_secret_becomes_asterisks() -> None:
    assert make_placeholder(b"hunter2", "J", KEY) == b"*******"


@given(st.lists(st.binary(min_size=24, max_size=64), unique=True, max_size=8))
def test_equal_secrets_stay_equal_and_different_ones_different(secrets: list[bytes]) -> None:
    assert len({make_placeholder(secret, "T", KEY) for secret in secrets}) == len(secrets)
    assert [make_placeholder(secret, "T", KEY) for secret in secrets] == [
        make_placeholder(secret, "T", KEY) for secret in secrets
    ]


def test_another_key_and_another_kind_give_another_placeholder() -> None:
    secret = b"sk-0123456789abcdef"

    assert len({make_placeholder(secret, kind, key) for kind in "TJ" for key in (KEY, b"other")}) == 4


def test_what_was_made_once_is_made_for_ever() -> None:
    # A change of this changes every recording's placeholders: it needs a version and a migration.
    assert make_placeholder(b"sk-0123456789abcdef", "T", KEY) == b"PLAYHEAD_T57B6DDBKW"


def test_no_part_of_a_long_placeholder_repeats() -> None:
    text = make_placeholder(b"x" * 8192, "J", KEY)

    assert len({text[n : n + 16] for n in range(10, len(text) - 16, 16)}) == (len(text) - 16 - 10 + 15) // 16


def test_folding_counts_placeholders_by_their_first_occurrence() -> None:
    one, two = make_placeholder(b"a" * 20, "T", KEY).decode(), make_placeholder(b"b" * 30, "J", KEY).decode()

    assert number_placeholders(f"{two} {one} {two}") == "PLAYHEAD:1 PLAYHEAD:2 PLAYHEAD:1"


@given(st.lists(st.sampled_from([b"a" * 20, b"b" * 20, b"c" * 33]), max_size=8))
def test_folded_text_does_not_depend_on_the_key(secrets: list[bytes]) -> None:
    def text(key: bytes) -> str:
        return "/".join(make_placeholder(secret, "T", key).decode() for secret in secrets)

    assert number_placeholders(text(KEY)) == number_placeholders(text(b"the key of another machine"))


def test_other_text_is_not_folded() -> None:
    text = "PLAYHEAD is a name; PLAYHEAD_ is no placeholder, and ******** is a short one"

    assert number_placeholders(text) == text
