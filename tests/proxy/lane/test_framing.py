"""The end of a body: independent of how the network splits it, and equal to llhttp's result."""

from collections.abc import Iterable
from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.lane.framing import Body, BodyUntilClose, ChunkedBody, MalformedBody, SizedBody

CHUNK = st.binary(min_size=1, max_size=40)
TRAILERS = st.lists(st.tuples(st.text("abXZ-9", min_size=1, max_size=6), st.text("xyz ,;=", max_size=8)), max_size=3)


def _write_chunked(chunks: Iterable[bytes], trailers: Iterable[tuple[str, str]] = (), extension: bytes = b"") -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return body + b"0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in trailers).encode() + b"\r\n"


def _cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(marks) if start < end]


def _feed_pieces(body: Body, pieces: Iterable[bytes]) -> tuple[bytes, bytes, bytes | None, bytes]:
    """The forwarded bytes, the payload, the bytes that completed the message, and those after it."""
    gone, payload = b"", b""
    pieces = iter(pieces)
    for piece in pieces:
        cut = body.feed(piece)
        gone += cut.forwardable
        payload += b"".join(cut.pieces)
        if cut.end is not None:
            return gone, payload, cut.end, cut.rest + b"".join(pieces)
    return gone, payload, None, b""


@given(
    st.lists(CHUNK, max_size=6),
    TRAILERS,
    st.sampled_from([b"", b";a=b", b';q="x y"']),
    st.binary(max_size=20),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_however_chunks_are_cut_the_same_bytes_go_on_but_for_extensions(
    chunks: list[bytes], trailers: list[tuple[str, str]], extension: bytes, rest: bytes, places: list[int]
) -> None:
    body = ChunkedBody()
    gone, payload, end, behind = _feed_pieces(body, _cut(_write_chunked(chunks, trailers, extension) + rest, places))
    assert end is not None
    assert (gone + end, behind, payload) == (_write_chunked(chunks, trailers), rest, b"".join(chunks))
    assert body.trailers == tuple((name, value.strip(" \t")) for name, value in trailers)


@given(st.lists(CHUNK, min_size=1, max_size=6))
def test_each_chunk_that_comes_whole_is_a_piece_of_its_own(chunks: list[bytes]) -> None:
    cut = ChunkedBody().feed(_write_chunked(chunks))
    assert list(cut.pieces) == chunks
    assert cut.end == b"0\r\n\r\n"


class _Outside:
    """llhttp's result for the same body."""

    def __init__(self) -> None:
        self.body = b""
        self.over = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.over = True


def _outside_judgement(data: bytes) -> _Outside | None:
    outside = _Outside()
    parser = httptools.HttpRequestParser(outside)
    parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
    try:
        parser.feed_data(data)
    except httptools.HttpParserError:
        return outside if outside.over else None
    return outside


ODD = st.lists(
    st.sampled_from([b"0", b"3", b"a", b"\r\n", b"\r", b"\n", b"abc", b";x", b" ", b"x:y", b"\0"]), max_size=12
)


@given(ODD.map(b"".join))
def test_nothing_is_taken_for_a_body_that_llhttp_refuses(data: bytes) -> None:
    body, outside = ChunkedBody(), _outside_judgement(data)
    try:
        _, payload, end, _ = _feed_pieces(body, [data])
    except MalformedBody:
        return
    if end is not None:
        assert outside is not None
        assert outside.over
        assert outside.body == payload


@given(ODD.map(b"".join), st.lists(st.integers(0, 1000), max_size=6))
def test_however_it_is_cut_the_same_goes_on_before_what_is_refused(data: bytes, places: list[int]) -> None:
    assert _sound(_cut(data, places)) == _sound([data] if data else [])


def _sound(pieces: Iterable[bytes]) -> tuple[bytes, bytes, bool]:
    """The forwarded bytes, their payload, and whether the body is incomplete."""
    body, gone, payload = ChunkedBody(), b"", b""
    for piece in pieces:
        try:
            cut = body.feed(piece)
        except MalformedBody as fault:
            return gone + fault.forwardable, payload + b"".join(fault.pieces), True
        gone, payload = gone + cut.forwardable, payload + b"".join(cut.pieces)
        if cut.end is not None:
            break
    return gone, payload, False


@pytest.mark.parametrize("line", [b"0x3", b"+3", b"-3", b" 3", b"3 ", b"", b"3;\0", b"1" * 16, b"3_0", b"\xb3"])
def test_what_is_no_size_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedBody):
        ChunkedBody().feed(line + b"\r\nabc\r\n0\r\n\r\n")


def test_old_servers_may_pad_their_sizes() -> None:
    assert ChunkedBody(padded=True).feed(b"3   \r\nabc\r\n0\r\n\r\n").pieces == [b"abc"]


@pytest.mark.parametrize("endless", [b"1" * 5000, b"0\r\n" + b"x" * (1 << 17), b"3;" + b"x" * 5000])
def test_what_never_ends_is_refused_before_it_fills_the_memory(endless: bytes) -> None:
    with pytest.raises(MalformedBody):
        _feed_pieces(ChunkedBody(), (endless[at : at + 1000] for at in range(0, len(endless), 1000)))


@given(st.binary(min_size=1, max_size=60), st.binary(max_size=20), st.lists(st.integers(0, 1000), max_size=6))
def test_a_sized_body_ends_at_its_size(data: bytes, rest: bytes, places: list[int]) -> None:
    gone, payload, end, behind = _feed_pieces(SizedBody(len(data)), _cut(data + rest, places))
    assert end is not None
    assert (gone + end, payload, behind) == (data, data, rest)
    assert end, "something is left to be held back until all is kept"


@given(st.lists(st.binary(min_size=1), max_size=5))
def test_a_body_without_an_end_goes_on_as_it_comes(pieces: list[bytes]) -> None:
    gone, payload, end, _ = _feed_pieces(BodyUntilClose(), pieces)
    assert (gone, payload, end) == (b"".join(pieces), b"".join(pieces), None)
