"""Messages of a known shape are searched together, with the result of parsing and searching each alone."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls.redaction.body import BodyRedactor
from calls.redaction.redactor import Redactor
from calls.redaction.streams import message_search
from calls.redaction.streams.json_leaves import Leaf, find_leaves
from calls.redaction.streams.message_shapes import ShapeMemory
from tests.calls.secrets import KEY
from tests.calls.strategies import pieces
from tests.support.examples import many_examples

REDACTOR = Redactor(key=KEY)
GHP = "ghp_aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3d"

texts = st.lists(
    st.one_of(
        st.sampled_from(
            ["the ", "key", " is ", GHP, GHP[:20], GHP[20:], '"password": "', "hunter-22Xy7q", '"', "\n", "://"]
        ),
        st.text('aghp_=:.\\"/é ', max_size=5),
        st.sampled_from(list(GHP)),
    ),
    min_size=2,
    max_size=24,
)


def openai(number: int, text: str, pad: int) -> bytes:
    choice = {"index": number % 2, "delta": {"content": text}}
    return b"data: %s%s\n\n" % (json.dumps({"id": "chatcmpl-1", "choices": [choice]})[:-1].encode(), b" " * pad + b"}")


def anthropic(number: int, text: str, pad: int) -> bytes:
    del number
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return b"event: content_block_delta\ndata: %s%s\n\n" % (json.dumps(event)[:-1].encode(), b" " * pad + b"}")


def numbered_event(number: int, text: str, pad: int) -> bytes:
    """Two texts, one of which mostly repeats that of the message before and spells out a secret nevertheless."""
    del pad
    event = {"note": GHP[number // 3 * 9 :][:9], "delta": text, "thought": text[::-1]}
    event["response_id"] = "r" if number < 12 else f"r{number % 2}"
    return b"id: %d\ndata: %s\n\n" % (number, json.dumps(event).encode())


def ollama(number: int, text: str, pad: int) -> bytes:
    del number
    return b"%s%s\n" % (json.dumps({"model": "m", "response": text, "done": False})[:-1].encode(), b" " * pad + b"}")


type Form = Callable[[int, str, int], bytes]

FORMS: dict[Form, str] = {
    openai: "text/event-stream",
    anthropic: "text/event-stream",
    numbered_event: "",
    ollama: "application/x-ndjson",
}


@contextmanager
def no_shapes() -> Iterator[None]:
    """Parse each message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_search, "_MAX_LEARNT_SHAPES", 0)
        patch.setattr(message_search, "MEMORY", ShapeMemory())
        yield


def redact_groups(body: BodyRedactor, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Redact groups of pieces as a recording does."""
    out: list[bytes] = []
    for number, group in enumerate(groups):
        if not group:
            continue
        if body.try_pass(b"".join(group)):
            out += group
        else:
            out += [piece.data for piece in body.feed_together([(number, piece) for piece in group])]
    return out + [piece.data for piece in body.finish()]


@settings(max_examples=many_examples(150), deadline=None)
@given(data=st.data())
def test_what_is_searched_together_is_redacted_as_each_message_alone(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(list(FORMS)))
    said = data.draw(texts)
    events = [form(number, text, data.draw(st.integers(0, 2))) for number, text in enumerate(said)]
    body = b"".join(events)
    with no_shapes():
        alone = b"".join(redact_groups(REDACTOR.new_body_redactor(FORMS[form]), [[event] for event in events]))
    # The second time, the shapes of the first are known.
    for _ in range(2):
        parts = data.draw(st.one_of(st.just(events), pieces(body)))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=5)))
        groups = [parts[start:end] for start, end in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
        together = redact_groups(REDACTOR.new_body_redactor(FORMS[form]), groups)
        assert [len(part) for part in together] == [len(part) for group in groups for part in group]
        assert b"".join(together) == alone


@pytest.mark.parametrize("form", [openai, anthropic, ollama])
def test_a_secret_in_pieces_is_replaced_in_a_group_of_events(form: Form) -> None:
    events = [form(0, text, 1) for text in ("it is ", *(GHP[at : at + 3] for at in range(0, len(GHP), 3)), " ok")]
    for _ in range(3):
        new = redact_groups(REDACTOR.new_body_redactor(FORMS[form]), [events[:2], events[2:7], events[7:]])
        assert not any(json.dumps(GHP[at : at + 3]).encode() in b"".join(new) for at in range(0, len(GHP), 3))
        assert new[0] == events[0]


@pytest.mark.parametrize("end", [b"\r\n", b" \n"])
def test_a_message_that_begins_like_a_known_one_is_read_once(end: bytes) -> None:
    lines = [ollama(0, text, 0) for text in ("it is ", *(GHP[at : at + 3] for at in range(0, len(GHP), 3)), " ok")]
    redact_groups(REDACTOR.new_body_redactor(FORMS[ollama]), [lines])
    others = [line.replace(b"\n", end) for line in lines]
    with no_shapes():
        alone = redact_groups(REDACTOR.new_body_redactor(FORMS[ollama]), [[line] for line in others])
    assert alone != others
    assert redact_groups(REDACTOR.new_body_redactor(FORMS[ollama]), [others]) == alone


def test_events_that_differ_in_their_padding_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_search, "MEMORY", ShapeMemory())
    parsed: list[bytes] = []

    def note_parsed(data: bytes, start: int, end: int, *, is_cut: bool) -> list[Leaf]:
        parsed.append(data)
        return find_leaves(data, start, end, is_cut=is_cut)

    monkeypatch.setattr("calls.redaction.streams.message_search.find_leaves", note_parsed)
    body = REDACTOR.new_body_redactor("text/event-stream")
    for number in range(40):
        assert body.try_pass(anthropic(number, "a word. ", number % 8))
    assert len(parsed) == 2


def test_a_shape_does_not_reach_over_the_end_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_search, "MEMORY", ShapeMemory())
    events = [*[openai(0, "a word. ", 0)] * 3, openai(0, GHP[:20], 0)]
    broken = openai(0, GHP[20:] + "AB", 0).replace(b"AB", b"\n\ndata: ")
    whole = redact_groups(REDACTOR.new_body_redactor("text/event-stream"), [events, [broken]])
    for cut in range(1, len(broken)):
        parts = [events, [broken[:cut]], [broken[cut:]]]
        assert b"".join(redact_groups(REDACTOR.new_body_redactor("text/event-stream"), parts)) == b"".join(whole)
