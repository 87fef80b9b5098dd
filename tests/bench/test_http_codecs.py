"""Who asks and who is asked understand each other, however the network cuts what they say."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.http_codecs import ClientCodec, ClientGone, Http1Client, Http1Server, Http2Client, Http2Server, ServerCodec
from bench.wire import MeasurementFailed

PATH = "/v1/json?size=2048"
BOTH = pytest.mark.parametrize(
    ("asking", "asked"), [(Http1Client, Http1Server), (Http2Client, Http2Server)], ids=["http/1.1", "http/2"]
)

type Pair = tuple[Callable[[str, str], ClientCodec], Callable[[], ServerCodec]]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@BOTH
@given(question=st.binary(min_size=1, max_size=3000), answer=st.binary(max_size=3000), size=st.integers(1, 2000))
def test_every_question_is_answered_once(
    asking: Callable[[str, str], ClientCodec],
    asked: Callable[[], ServerCodec],
    question: bytes,
    answer: bytes,
    size: int,
) -> None:
    client, server = asking(PATH, "api.example"), asked()
    for _ in range(2):
        heard = [found for piece in pieces(client.ask(question), size) for found in server.paths(piece)]
        assert [path for _, path in heard] == [PATH.encode()]
        said = server.take_output() + server.answer(heard[0][0], answer)
        assert sum(client.take_answer(piece) for piece in pieces(said, size)) == 1
        assert not list(server.paths(client.take_output()))


@BOTH
def test_events_of_a_stream_can_be_found_in_what_comes(
    asking: Callable[[str, str], ClientCodec], asked: Callable[[], ServerCodec]
) -> None:
    client, server = asking(PATH, "api.example"), asked()
    ((number, _),) = server.paths(client.ask(b"{}"))
    said = server.stream(number) + server.piece(number, b"data: 1\n\n") + server.piece(number, b"data: 2\n\n")
    assert said.count(b"data: ") == 2


def test_a_refusal_is_no_answer() -> None:
    with pytest.raises(MeasurementFailed, match="503"):
        Http1Client(PATH, "api.example").take_answer(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")


def test_no_event_is_made_for_a_stream_that_was_never_opened() -> None:
    with pytest.raises(ClientGone):
        Http2Server().piece(1, b"data: 1\n\n")
