"""Every framing gives the same messages however the network cuts it; botocore judges Amazon's."""

import base64
import json
from functools import lru_cache
from typing import Any

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer, InvalidPayloadLength
from hypothesis import given
from hypothesis import strategies as st

from calls.framing import Framing, Message, MessageDecoder, eventstream, json_array, ndjson, nul, sse
from calls.framing.eventstream import Decoder, Frame
from tests.calls.frames import json_frame
from tests.calls.strategies import pieces
from tests.support.corpus import cassettes

FRAMINGS: list[Framing] = [sse, ndjson, nul, json_array, eventstream]


def read(decoder: MessageDecoder, *data: bytes) -> list[Message]:
    messages = [message for piece in data for message in decoder.feed(piece)]
    return messages + decoder.finish()


BODIES: list[tuple[Framing, bytes]] = [
    (sse, "data: «é😀»\r\n\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\n".encode()),
    (ndjson, '{"a": "é😀\\n"}\n\n{"b": [1,\t2]}\r\n{"c": 1}'.encode()),
    (nul, '{"a": "é😀\\n"}\0{\n"b": [1,\t2]}\0{"c": 1}\0'.encode()),
    (json_array, '[{"a": "é😀, ]}\\"\\\\"}\n,\r\n[1, [2]], "x,\\"", 3\n]'.encode()),
    (eventstream, json_frame("a", {"é": "😀"}) + json_frame("b", {}) + json_frame("c", {"x": 1})),
]


@pytest.mark.parametrize(("framing", "body"), BODIES)
@given(data=st.data())
def test_chunking_does_not_matter(framing: Framing, body: bytes, data: st.DataObject) -> None:
    whole = read(framing.Decoder(), body)
    assert len(whole) > 1
    assert read(framing.Decoder(), *data.draw(pieces(body))) == whole


TOKENS = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"', b"\\", b",", b"\n", b"a", b"data: x", b"\xff", b"\0\0\0\x10", b" "]
)


@pytest.mark.parametrize("framing", FRAMINGS)
@given(tokens=st.lists(TOKENS), data=st.data())
def test_chunking_does_not_matter_for_any_bytes(framing: Framing, tokens: list[bytes], data: st.DataObject) -> None:
    body = b"".join(tokens)
    assert read(framing.Decoder(), *data.draw(pieces(body))) == read(framing.Decoder(), body)


@pytest.mark.parametrize(("framing", "body"), BODIES)
def test_a_message_is_given_as_soon_as_its_last_byte_is_there(framing: Framing, body: bytes) -> None:
    decoder, found = framing.Decoder(), 0
    for at in range(len(body)):
        found += len(decoder.feed(body[at : at + 1]))
        assert found >= len(read(framing.Decoder(), body[: at + 1])) - 1
    assert found >= len(read(framing.Decoder(), body)) - 1


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (ndjson, b'{"a": "' + b"x" * 200_000 + b'"}\n'),
        (json_array, b'[{"a": "' + b"x," * 100_000 + b'"}]'),
        (eventstream, json_frame("a", {"a": "x" * 200_000})),
    ],
)
def test_a_long_message_in_small_pieces_is_linear_work(framing: Framing, body: bytes) -> None:
    decoder = framing.Decoder()
    messages = [message for index in range(len(body)) for message in decoder.feed(body[index : index + 1])]
    assert [len(message.data) > 200_000 for message in messages] == [True]


def test_lines_are_messages_and_empty_ones_are_not() -> None:
    assert read(ndjson.Decoder(), b'{"a":1}\r\n\n{"b":2}') == [Message("", '{"a":1}'), Message("", '{"b":2}')]


@pytest.mark.parametrize(
    ("head", "media", "verdict"),
    [
        (b'{"a":1}\n{"a":2}', "application/json", True),
        (b'{"a":1}\n', "application/json", False),
        (b'{"a":1}\n', "application/x-ndjson", True),
        (b'{"a":1}', "application/stream+json", True),
        (b'{\n  "a": 1\n}', "application/json", False),
        (b"data: 1", "application/x-ndjson", False),
    ],
)
def test_one_line_alone_is_a_stream_only_by_its_label(head: bytes, media: str, verdict: bool) -> None:
    assert ndjson.matches(head, media, is_whole=True) is verdict
    assert ndjson.matches(head, media, is_whole=False) in (verdict, None)


@pytest.mark.parametrize(
    ("head", "verdict"), [(b'{"a":1}\0{"a":2}\0', True), (b'{"a":1}', False), (b"data: 1\0", False)]
)
def test_a_byte_of_zeros_is_in_no_json(head: bytes, verdict: bool) -> None:
    assert nul.matches(head, "application/json", is_whole=True) is verdict
    assert nul.matches(head, "application/json", is_whole=False) in (verdict, None)


def elements(*data: bytes) -> list[Any]:
    return [json.loads(message.data) for message in read(json_array.Decoder(), *data)]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(values), st.sampled_from([None, 2]))
def test_an_array_has_its_elements(value: list[Any], indent: int | None) -> None:
    assert elements(json.dumps(value, indent=indent, ensure_ascii=False).encode()) == value


def test_an_element_that_was_cut_is_no_element() -> None:
    assert elements(b'[{"a": 1}, {"b": 2') == [{"a": 1}]


def test_what_follows_the_array_is_nothing() -> None:
    assert elements(b"[1, 2]\n\n ") == [1, 2]


HEADERS = st.dictionaries(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=30), st.text(max_size=30)),
    max_size=4,
)


@given(HEADERS, st.binary(max_size=60))
def test_a_frame_is_what_botocore_reads(headers: dict[str, Any], payload: bytes) -> None:
    frame = eventstream.encode_frame(headers, payload)
    theirs = EventStreamBuffer()
    theirs.add_data(frame)
    message = theirs.next()
    [ours] = Decoder().feed_frames(frame)
    assert (ours.headers, ours.payload) == (message.headers, message.payload)
    assert (ours.headers, ours.payload) == (headers, payload)


@lru_cache(maxsize=1)
def corpus_streams() -> list[bytes]:
    """Every event stream of the corpus."""
    streams = []
    for one in (exchange for cassette in cassettes() for exchange in cassette.exchanges):
        media = {name.lower(): value for name, value in one.response_headers}.get("content-type", "")
        if "eventstream" in media:
            streams.append(one.response_body)
    return streams


def by_botocore(data: bytes) -> list[Frame]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [Frame(headers=dict(event.headers), payload=event.payload) for event in buffer]


def test_every_recorded_event_stream_is_what_botocore_reads() -> None:
    found = corpus_streams()
    assert len(found) > 50
    for body in found:
        decoder = Decoder()
        assert decoder.feed_frames(body) == by_botocore(body)
        decoder.finish()
        assert not decoder.is_broken


@given(st.data())
def test_a_recorded_event_stream_may_be_cut_anywhere(data: st.DataObject) -> None:
    body = data.draw(st.sampled_from(corpus_streams()))
    decoder = Decoder()
    found = [frame for piece in data.draw(pieces(body)) for frame in decoder.feed_frames(piece)]
    assert found == by_botocore(body)


@given(st.data())
def test_a_bit_that_flips_anywhere_ends_the_reading(data: st.DataObject) -> None:
    first, second = json_frame("a", {"x": 1}), json_frame("b", {"y": 2})
    at = data.draw(st.integers(0, len(second) - 1))
    bent = bytearray(second)
    bent[at] ^= 1 << data.draw(st.integers(0, 7))
    decoder = Decoder()
    messages = read(decoder, first + bytes(bent) + json_frame("c", {}))
    assert messages == [Message("a", '{"x":1}')]
    assert decoder.is_broken
    with pytest.raises((ChecksumMismatch, InvalidPayloadLength)):
        by_botocore(bytes(bent) + json_frame("c", {}) * 2**17)


def test_a_frame_that_was_cut_leaves_the_stream_broken() -> None:
    decoder = Decoder()
    assert len(read(decoder, json_frame("a", {}) + json_frame("b", {})[:-1])) == 1
    assert decoder.is_broken


def test_an_exception_says_so_in_its_name() -> None:
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    error = {":message-type": "error", ":error-code": "InternalError", ":error-message": "no"}
    frames = eventstream.encode_frame(headers, b'{"message":"slow"}') + eventstream.encode_frame(error, b"")
    assert read(Decoder(), frames) == [
        Message("exception:throttlingException", '{"message":"slow"}'),
        Message("error:InternalError", '{"message":"no"}'),
    ]


def test_bytes_in_base64_are_not_bytes_in_a_frame() -> None:
    inner = base64.b64encode(b"{}").decode()
    assert json.loads(read(Decoder(), json_frame("chunk", {"bytes": inner}))[0].data) == {"bytes": inner}
