"""Personal data is found by its form and check digits and replaced if the settings enable it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.redaction.redactor import Redactor
from calls.redaction.rules.personal_data import has_check_digit, is_iban
from tests.calls.secrets import KEY, bodies
from tests.calls.strategies import pieces

PERSONAL = Redactor(key=KEY, personal_data=True)
PLAIN = Redactor(key=KEY)

FOUND = (
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "5555555555554444",
    "378282246310005",
    "DE89 3704 0044 0532 0130 00",
    "GB82WEST12345698765432",
    "NO9386011117947",
    "ada.lovelace+notes@mail.example.co.uk",
    "+49 30 901820-11",
    "+1 (415) 555-2671",
    "(415) 555-2671",
    "415-555-2671",
)
HARMLESS = (
    "4111 1111 1111 1112",
    "5555555555554445",
    "DE88 3704 0044 0532 0130 00",
    "1732298400123 2024-11-22T18:00:00Z 127.0.0.1:8080 550e8400-e29b-41d4-a716-446655440000",
    "user@localhost git@github uses: actions/checkout@v4 @ada a@b",
    "version 4.15.5552671, +1 more, +12.5 %, 415-555 and (415)",
    "chatcmpl-4111111111111111abc",
    '{"embedding": [0.4111111111111111,-1.5555555555554444, 2.378282246310005], "at": 4111111111111111} c1234567-2222-2222-3333-444444444444',
)


def redact(text: str) -> str:
    return PERSONAL.redact_body(text.encode())[0].decode()


@pytest.mark.parametrize("text", FOUND)
@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("it is ", ", you see"), ('{"a": "', '"}'), ("(", ")"), ("", ". Next"), ('{"a": "b\\n', '\\n"}')],
)
def test_what_has_the_form_is_replaced_at_its_own_length(text: str, before: str, after: str) -> None:
    new = redact(before + text + after)

    assert new.startswith(before)
    assert new.endswith(after)
    assert new[len(before) : len(new) - len(after)].startswith("PLAYHEAD_D")
    assert len(new) == len(before + text + after)
    assert redact(new) == new


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_it_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", FOUND)
def test_it_stays_where_nobody_asked(text: str) -> None:
    assert PLAIN.redact_body(text.encode()) == (text.encode(), 0, False)


def test_the_same_data_gets_the_same_placeholder_and_another_key_another_one() -> None:
    other = Redactor(key=b"another key, of thirty-two bytes", personal_data=True)

    assert redact("to ada@example.com")[3:] == redact("of ada@example.com")[3:]
    assert other.redact_body(b"to ada@example.com")[0] != PERSONAL.redact_body(b"to ada@example.com")[0]


def test_headers_and_urls_are_searched_too() -> None:
    ((_, value),), count = PERSONAL.redact_response_headers((("X-Owner", "ada@example.com"),))
    url, in_url = PERSONAL.redact_url("https://x.example/users/ada@example.com/cards")

    assert (value[:10], count, in_url) == ("PLAYHEAD_D", 1, 1)
    assert "ada@" not in url


def test_one_wrong_digit_is_noticed() -> None:
    for number in ("4111111111111111", "5555555555554444", "378282246310005"):
        assert has_check_digit(number.encode())
        for at in range(len(number)):
            assert not has_check_digit((number[:at] + str((int(number[at]) + 1) % 10) + number[at + 1 :]).encode())
    assert is_iban(b"GB82WEST12345698765432")
    assert not is_iban(b"GB82WEST12345698765433")


_made = st.lists(
    st.one_of(
        st.sampled_from(FOUND + HARMLESS),
        bodies.map(lambda data: data.decode("latin-1")),
        st.sampled_from([" ", "@", "+", "4", "("]),
    ),
    max_size=8,
)


@given(_made.map(lambda parts: "".join(parts).encode("latin-1")), st.data())
def test_chunking_does_not_matter_and_it_is_done_once(body: bytes, data: st.DataObject) -> None:
    once = PERSONAL.redact_body(body)[0]
    stream = PERSONAL.new_body_redactor()
    out = [
        piece for at, part in enumerate(data.draw(pieces(body))) for piece in stream.feed(part, at)
    ] + stream.finish()

    assert b"".join(piece.data for piece in out) == once
    assert len(once) == len(body)
    assert PERSONAL.redact_body(once)[0] == once


def test_random_digits_are_hardly_ever_a_card() -> None:
    rnd = random.Random(5)
    numbers = [str(rnd.randrange(10**15, 10**16)) for _ in range(1000)]
    # Half of them may be card numbers, and a tenth of those have a correct check digit by chance.
    assert sum(redact(number) != number for number in numbers) < 100
