"""Every form restores exactly the encoded bytes, and the history of a conversation is stored once."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calls.codec.elements import MIN_ELEMENT_SIZE, MIN_SPLIT_SIZE, split_elements
from store.database.blobs import (
    CorruptData,
    ElementPlace,
    Primer,
    pack,
    plan_form,
    referenced_parts,
    restore_body,
    unpack,
)
from store.database.rows import EMPTY_DIGEST, body_digest, digest_bytes, digest_text, storable_text
from tests.store import samples


class Shelf:
    """Stores bodies one after another, as ingest does."""

    def __init__(self) -> None:
        self.places: dict[bytes, ElementPlace] = {}
        self.parts: dict[bytes, bytes] = {}
        self.size = 0

    def put(self, body: bytes) -> bytes:
        """Encode a body and keep its new parts."""
        made = plan_form(body, split_elements(body), self.places.get)
        self.size += len(made.form) + sum(map(len, made.parts.values()))
        self.parts |= made.parts
        self.places |= made.places
        return made.form

    def get(self, form: bytes) -> bytes:
        return restore_body(form, {part: unpack(self.parts[part]) for part in referenced_parts(form)})


def kept_once(bodies: Iterable[bytes]) -> Shelf:
    """A shelf with these bodies, after checking that each is restored."""
    shelf = Shelf()
    forms = [(body, shelf.put(body)) for body in bodies]
    for body, form in forms:
        assert shelf.get(form) == body
    return shelf


@given(st.binary(max_size=9000), st.binary(max_size=5000), st.binary(max_size=300))
def test_what_leans_on_a_primer_comes_back_with_it_and_not_without(data: bytes, head: bytes, body: bytes) -> None:
    primer = Primer.create(head, body)
    for written in (data, primer.data + data):
        form = pack(written, primer)
        assert len(form) <= len(written) + 1
        assert referenced_parts(form) <= {primer.part}
        assert unpack(form, {primer.part: primer.data}) == written
        if referenced_parts(form):
            with pytest.raises(CorruptData, match="is missing"):
                unpack(form)


def test_a_run_s_own_words_make_the_next_ones_short() -> None:
    first, then = samples.prose("a run", 500).encode(), samples.prose("the same run", 120).encode()
    primer = Primer.create(b"", first)
    assert len(pack(then, primer)) < 0.9 * len(pack(then))


@given(st.binary(max_size=20_000) | st.binary(max_size=40).map(lambda data: data * 1000))
def test_bytes_that_stand_alone_come_back(data: bytes) -> None:
    assert unpack(pack(data)) == data
    assert len(pack(data)) <= len(data) + 1


texts = st.text(max_size=30) | st.text(max_size=8).map(lambda text: text * 100)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12)
layouts = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@settings(max_examples=25)
@given(
    st.lists(st.dictionaries(texts, values, min_size=1), min_size=1, max_size=5),
    st.lists(st.lists(values, max_size=8), max_size=5),
    layouts,
)
def test_json_of_any_shape_comes_back_byte_for_byte(
    tops: list[dict[str, object]], histories: list[list[object]], layout: dict[str, object]
) -> None:
    made = [*tops, *({"messages": history, **top} for history in histories for top in tops)]
    bodies = [json.dumps(one, **layout).encode("utf-8", "surrogatepass") for one in made]  # type: ignore[arg-type]
    kept_once(body for body in bodies for _ in range(2))


@given(st.binary(max_size=3000).map(lambda data: b'{"messages": [' + data))
@example(b'{"a": "' + b"x" * MIN_ELEMENT_SIZE + b'", "a": "' + b"y" * MIN_SPLIT_SIZE + b'"}')
@example(b'{"a": "' + b"x" * MIN_SPLIT_SIZE + b'", "a": 1}')
@example(b'{"' + b"x" * MIN_SPLIT_SIZE + b'": "' + b"x" * MIN_SPLIT_SIZE + b'"}')
@example(b'{"a":' * 3000 + b"1" + b"}" * 3000)
@example(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
@example(b'{"a": "\xff' + b"x" * MIN_SPLIT_SIZE + b'"}')
@example(b'{"a": "\\ud800' + b"x" * MIN_SPLIT_SIZE + b'"}')
@example(b'\xef\xbb\xbf{"a": "' + b"x" * MIN_SPLIT_SIZE + b'"}')
@example(b'{"a": [' + b" " * MIN_SPLIT_SIZE + b"]}")
def test_what_is_no_good_json_comes_back_all_the_same(body: bytes) -> None:
    kept_once([body, body])


def test_a_conversation_is_kept_once() -> None:
    bodies = [one.request.body.data for one in samples.conversation("talk")]
    shelf = kept_once(bodies)
    assert shelf.size < 0.06 * sum(map(len, bodies))


def test_a_message_that_changes_in_the_middle_costs_itself_and_no_more() -> None:
    turns = [{"role": "user", "content": samples.prose(str(turn), 60)} for turn in range(40)]
    shelf = kept_once([json.dumps({"messages": turns}).encode()])
    before = shelf.size
    turns[20] = {"role": "user", "content": samples.prose("changed", 60)}
    shelf.put(json.dumps({"messages": turns}).encode())
    assert shelf.size - before < 600


def test_a_history_that_loses_its_beginning_is_still_known() -> None:
    turns = [{"role": "user", "content": samples.prose(str(turn), 60)} for turn in range(40)]
    shelf = kept_once([json.dumps({"messages": turns}).encode()])
    before = shelf.size
    for dropped in range(1, 20):
        body = json.dumps({"messages": turns[dropped:]}).encode()
        assert shelf.get(shelf.put(body)) == body
    assert shelf.size - before < 19 * 120


@pytest.mark.parametrize("name", ["messages", "input", "contents", "anything"])
def test_the_name_of_the_history_does_not_matter(name: str) -> None:
    turns = [{"content": samples.prose(str(turn), 60)} for turn in range(30)]
    bodies = [json.dumps({"model": "m", name: turns[:n], "stream": True}).encode() for n in range(1, 31)]
    assert kept_once(bodies).size < 0.12 * sum(map(len, bodies))


def test_a_part_that_is_gone_is_named() -> None:
    body = json.dumps({"messages": [samples.prose(str(n), 60) for n in range(10)]}).encode()
    form = Shelf().put(body)
    with pytest.raises(CorruptData, match="missing"):
        restore_body(form, {})


@given(st.binary(min_size=1, max_size=1).flatmap(lambda tag: st.binary(max_size=60).map(lambda data: tag + data)))
@example(b"\x06\xe1mp")
@example(b"\x04short")
@example(b"")
def test_damaged_bytes_are_decoded_or_said_to_be_damaged(form: bytes) -> None:
    try:
        assert isinstance(unpack(form), bytes)
    except CorruptData:
        pass


def test_a_form_of_a_later_playhead_is_refused() -> None:
    with pytest.raises(CorruptData, match="unknown form"):
        restore_body(b"\x77abc", {})


@given(st.text() | st.text(st.characters(), max_size=5).map(lambda text: text + "\0\ud800\udfff"))
def test_clean_text_is_what_postgres_can_hold(text: str) -> None:
    made = storable_text(text)
    assert "\0" not in made
    assert len(made.encode()) >= len(text)
    assert storable_text(made) == made


def test_text_that_is_clean_already_stays() -> None:
    assert storable_text("naïve 🎈 x", 200) == "naïve 🎈 x"
    assert storable_text("abc", 2) == "ab"


def test_digests_are_read_as_they_are_written() -> None:
    assert digest_bytes(digest_text(EMPTY_DIGEST)) == body_digest(b"") == EMPTY_DIGEST
    for wrong in ("", "sha256:", "md5:" + "0" * 64, "sha256:" + "g" * 64):
        with pytest.raises(ValueError, match=r"sha256:<hex>|non-hexadecimal"):
            digest_bytes(wrong)
