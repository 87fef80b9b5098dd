"""The SSE decoder against the standard's own examples, whatever the cuts and the line ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.framing.sse import Decoder, Message
from tests.calls.strategies import pieces


def read(*data: bytes) -> list[Message]:
    decoder = Decoder()
    messages = [message for piece in data for message in decoder.feed(piece)]
    return messages + decoder.finish()


def test_the_first_example_of_the_standard() -> None:
    stream = b"data: YHOO\ndata: +2\ndata: 10\n\n"
    assert read(stream) == [Message("", "YHOO\n+2\n10")]


def test_the_second_example_of_the_standard() -> None:
    stream = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert read(stream) == [
        Message("", "first event", "1"),
        Message("", "second event", ""),
        Message("", " third event", ""),
    ]


def test_the_third_example_of_the_standard() -> None:
    # The standard drops the last block, which no blank line closes; we give it, as `finish` says.
    assert read(b"data\n\ndata\ndata\n\ndata:") == [Message("", ""), Message("", "\n"), Message("", "")]


def test_a_stream_without_its_last_blank_line_gives_its_last_message() -> None:
    assert read(b"data: 1\n\ndata: [DONE]") == [Message("", "1"), Message("", "[DONE]")]


def test_an_event_has_a_name_until_it_is_sent() -> None:
    assert read(b"event: a\ndata: 1\n\ndata: 2\n\n") == [Message("a", "1"), Message("", "2")]


def test_an_event_without_data_is_no_message() -> None:
    assert read(b"event: ping\n\ndata: 1\n\n") == [Message("", "1")]


def test_comments_retries_and_fields_of_the_future_pass() -> None:
    assert read(b": OPENROUTER PROCESSING\nretry: 10\nfuture: x\ndata: 1\n\n") == [Message("", "1")]


def test_a_byte_order_mark_is_not_part_of_the_first_field() -> None:
    assert read(b"\xef\xbb", b"\xbfdata: 1\n\n") == [Message("", "1")]


def test_an_id_with_a_null_is_ignored() -> None:
    assert read(b"id: a\0b\ndata: 1\n\n") == [Message("", "1")]


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert read(b"data: \xff\n\n") == [Message("", "\ufffd")]


def test_a_message_is_given_as_soon_as_its_last_byte_is_there() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: 1\r\n") == []
    assert decoder.feed(b"\r") == [Message("", "1")]
    assert decoder.feed(b"\ndata: 2\r\n\r\n") == [Message("", "2")]


STREAM = "event: ü\ndata: {}\ndata: «é😀»\nid: 7\n\n: comment\ndata:1\n\n\n\ndata: last\n\n".encode()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(data=st.data())
def test_chunking_and_line_ends_do_not_matter(end: bytes, data: st.DataObject) -> None:
    cut = data.draw(pieces(STREAM.replace(b"\n", end)))
    assert read(*cut) == read(STREAM)


@given(
    st.lists(st.sampled_from([b"data: a", b"data", b":", b"\n", b"\r", b"\r\n", b"\xff", b"id: 1", b" "])), st.data()
)
def test_chunking_does_not_matter_for_any_bytes(tokens: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(tokens)
    assert read(*data.draw(pieces(stream))) == read(stream)


def test_a_long_line_in_small_pieces_is_linear_work() -> None:
    decoder = Decoder()
    text = b"data: " + b"x" * 200_000 + b"\n\n"
    messages = [message for index in range(len(text)) for message in decoder.feed(text[index : index + 1])]
    assert [len(message.data) for message in messages] == [200_000]
