"""Names of people in the settings are replaced, as whole words and in every encoding."""

import base64
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls.redaction.redactor import Redactor
from calls.redaction.rules.personal_names import MAX_LETTERS, find_unfit_name, read_names
from tests.calls.secrets import KEY, bodies
from tests.calls.strategies import pieces
from tests.support.examples import many_examples

NAMES = ("Ada Lovelace", "Ada Lovelace-Byron", "José García", "Zoë", "Élodie Dupont", "Sean O'Brien", "Al", "田中太郎")
REDACTOR = Redactor(key=KEY, names=NAMES)

FOUND = (
    *(
        "Ada Lovelace",
        "ADA LOVELACE",
        "ada  lovelace",
        "ada.lovelace",
        "ada_lovelace",
        "Ada%20Lovelace",
        "Ada\nLovelace",
    ),
    *(
        "Ada Lovelace-Byron",
        "José García",
        "JOSÉ GARCÍA",
        "Jose\u0301 Garci\u0301a",
        "Jos%C3%A9+Garc%c3%ada",
        "zoë",
        "ZOË",
    ),
    *("élodie dupont", "Sean O'Brien", "SEAN O’BRIEN", "al", "田中太郎"),
)
HARMLESS = (
    "Adam Lovelace",
    "Ada",
    "Lovelace",
    "Ada Lovelaces",
    "xAda Lovelace",
    "Algebra",
    "formal",
    "Zoëlle",
    "Aziz",
    "José",
)


def redact(text: str) -> str:
    return REDACTOR.redact_body(text.encode())[0].decode()


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("it is ", ", you see"), ("(", ")"), ("«", "»"), ("", "’s")])
def test_a_listed_name_is_replaced_at_its_own_length(name: str, before: str, after: str) -> None:
    new = redact(before + name + after)

    assert new.startswith(before)
    assert new.endswith(after)
    assert len(new.encode()) == len((before + name + after).encode())
    rest = new[len(before) : len(new) - len(after)]
    assert rest.startswith("PLAYHEAD_D") or rest == "*" * len(name.encode())
    assert redact(new) == new


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_in_json_and_in_strings_of_json_a_name_is_replaced_and_it_stays_json(
    name: str, depth: int, ascii_only: bool
) -> None:
    text = f"line\n{name}\nline"
    for _ in range(depth):
        text = json.dumps({"a": text}, ensure_ascii=ascii_only)

    new = REDACTOR.redact_body(text.encode(), "application/json")[0].decode()

    value = new
    for _ in range(depth):
        value = json.loads(value)["a"]
    assert value.startswith("line\n")
    assert value.endswith("\nline")
    assert set(value[5:-5]) <= set("*PLAYHEAD_ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_not_the_whole_name_stays(text: str) -> None:
    for one in (text, json.dumps({"a": f"b\n{text}"})):
        assert redact(one) == one


@settings(max_examples=many_examples(200), deadline=None)
@given(data=st.data())
def test_a_name_that_a_model_spells_out_is_replaced_in_each_piece(data: st.DataObject) -> None:
    text = f"I met {data.draw(st.sampled_from(FOUND))}, who lives there, and then we all went on to another place."
    cuts = data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8))
    parts = [text[low:high] for low, high in pairwise([0, *sorted(cuts), len(text)])]
    ascii_only = data.draw(st.booleans())
    body = b"".join(
        b"data: %s\n\n"
        % json.dumps({"choices": [{"index": 0, "delta": {"content": part}}]}, ensure_ascii=ascii_only).encode()
        for part in parts
    )

    new = REDACTOR.redact_body(body, "text/event-stream")[0]

    events = [json.loads(line[6:]) for line in new.splitlines() if line]
    said = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert set(said.removeprefix("I met ").partition(", who")[0]) <= set("*PLAYHEAD_ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    assert len(new) == len(body)
    assert REDACTOR.redact_body(new, "text/event-stream") == (new, 0, False)


@given(data=st.data())
def test_how_a_body_is_cut_does_not_matter(data: st.DataObject) -> None:
    text = " ".join(data.draw(st.lists(st.sampled_from((*FOUND, *HARMLESS, "words", "of it")), min_size=1, max_size=6)))
    body = REDACTOR.new_body_redactor("text/plain")
    fed = [piece for part in data.draw(pieces(text.encode())) for piece in body.feed(part, 0)]

    assert (
        b"".join(piece.data for piece in [*fed, *body.finish()]) == REDACTOR.redact_body(text.encode(), "text/plain")[0]
    )


def test_headers_addresses_and_base64_hold_no_listed_name() -> None:
    assert "Lovelace" not in REDACTOR.redact_url("https://x.example/people/Ada%20Lovelace?q=ada+lovelace")[0]
    assert "Lovelace" not in str(REDACTOR.redact_request_headers((("X-User", "Ada Lovelace"),)))
    text = base64.b64encode(b"it is Ada Lovelace who wrote this").decode()
    new = json.loads(REDACTOR.redact_body(json.dumps({"a": text}).encode(), "application/json")[0])["a"]
    assert b"Lovelace" not in base64.b64decode(new)


@given(body=bodies)
def test_a_list_changes_nothing_that_holds_none_of_its_names(body: bytes) -> None:
    names = Redactor(key=KEY, names=("Wilhelmina Featherstonehaugh",))
    assert names.redact_body(body)[0] == Redactor(key=KEY).redact_body(body)[0]


def test_a_file_has_one_name_a_line() -> None:
    assert read_names("\ufeff# staff\nAda  Lovelace\r\n\n Zoë \nZoë\n") == ("Ada Lovelace", "Zoë")


@pytest.mark.parametrize("name", ["", "A", "?!", "x" * (MAX_LETTERS + 1)])
def test_what_is_no_name_is_refused(name: str) -> None:
    assert find_unfit_name(("Ada Lovelace", name)) == name
