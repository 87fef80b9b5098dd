"""HTTP/1.1 responses: the result does not depend on how the network splits them, for clients of either version."""

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Headers
from proxy.lane.admission import LaneRequest, TunnelTarget
from proxy.lane.exchange import DownstreamHead
from proxy.lane.h2.heads import admitted_h2_request
from proxy.lane.heads import ResponseHeadReader
from proxy.lane.upstream import Upstream
from proxy.lane.upstream_http1 import ClientPool, Http1Carrier, ReframedForHttp2
from proxy.wire.access import OPEN_ACCESS
from proxy.wire.config import Origin
from proxy.wire.problem import Problem


class FakeUpstream:
    """A fake upstream connection and client pool, for a carrier."""

    def __init__(self) -> None:
        self.is_gone = self.is_bound = self.dropped = self.returned_ = False
        self.exchange_count = 1
        self.head_reader = ResponseHeadReader()
        self.sent = b""

    def lend(self, _: Any) -> None:
        self.exchange_count += 1

    def write(self, data: bytes) -> None:
        self.sent += data

    def set_reading(self, *, on: bool) -> None:
        pass

    def drop(self) -> None:
        self.dropped = self.is_gone = True

    def take_back(self, _: Any) -> None:
        self.returned_ = True


class FakeSink:
    """A response sink that remembers what it receives."""

    def __init__(self) -> None:
        self.interim_: list[DownstreamHead] = []
        self.head: DownstreamHead | None = None
        self.sent: list[bytes] = []
        self.body_ = b""
        self.trailers: Headers | None = None
        """None until the response is complete."""

        self.end: Any = None
        """The error, if there was one."""

    def handle_interim(self, head: DownstreamHead) -> None:
        self.interim_.append(head)

    def handle_response(self, head: DownstreamHead, *, is_head_alone: bool) -> None:
        assert self.head is None
        self.head = head

    def handle_data(self, forwardable: bytes, pieces: Sequence[bytes]) -> None:
        assert self.head is not None
        assert self.trailers is None
        self.sent.append(forwardable)
        self.body_ += b"".join(pieces)

    def handle_end(self, pieces: Sequence[bytes], before: bytes, end: bytes, trailers: Headers) -> None:
        self.handle_data(before, pieces)
        self.sent.append(end)
        self.trailers = trailers

    def handle_whole_response(self, head: DownstreamHead, body: bytes) -> None:
        self.handle_response(head, is_head_alone=False)
        self.handle_end((body,), b"", body, ())

    def handle_malformed(self, fault: str) -> None:
        self.end = "malformed"

    def handle_disconnect(
        self, code: int, *, is_refused: bool = False, is_unanswered: bool = False, is_reset: bool = False
    ) -> None:
        self.end = "broken", is_unanswered

    def handle_fault(self, fault: BaseException) -> None:
        raise fault

    def set_upstream_full(self, *, is_full: bool) -> None:
        pass


def _request(method: str = "GET") -> LaneRequest:
    origin, fields = Origin("https", "api.test", 443), [(b"x-a", b"1")]
    head = [(b":method", method.encode()), (b":path", b"/"), (b":authority", b"api.test"), *fields]
    engine: Any = SimpleNamespace(
        contacted_origin=lambda target: target,
        config=SimpleNamespace(is_only_run=lambda _run: False, access=OPEN_ACCESS),
    )
    found = admitted_h2_request(head, engine, "local", TunnelTarget("api.test", 443, None), origin, is_bodiless=True)
    return found._replace(http1_head=f"{method} / HTTP/1.1\r\nHost: api.test\r\nx-a: 1\r\n\r\n".encode())


def _receive_pieces(
    pieces: list[bytes], *, kind: type[Http1Carrier] = Http1Carrier, method: str = "GET", closed: bool = False
) -> tuple[FakeSink, FakeUpstream]:
    upstream, sink = FakeUpstream(), FakeSink()
    carrier = kind(cast(Upstream, upstream), cast(ClientPool, upstream))
    asked = _request(method)
    carrier.send_request(sink, asked, b"", ())
    assert upstream.sent == asked.http1_head
    for piece in pieces:
        if not upstream.is_gone:
            carrier.handle_data(piece)
    if closed and not upstream.is_gone:
        upstream.is_gone = True
        carrier.handle_disconnect(is_truncated=False)
    carrier.finish()
    return sink, upstream


KINDS = pytest.mark.parametrize("kind", [Http1Carrier, ReframedForHttp2])

EARLY = b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n"
HEAD = b"HTTP/1.1 200 Fine\r\nX-A: 1\r\nConnection: keep-alive\r\n"
WIRE = [(b":status", b"200"), (b"x-a", b"1")]
FIELDS = (("X-A", "1"), ("Connection", "keep-alive"))

RESPONSES = {
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-T: v\r\n\r\n",
    "sized": HEAD + b"Content-Length: 5\r\n\r\nabcde",
    "closed": HEAD + b"\r\nabcde",
}


@KINDS
@pytest.mark.parametrize("framed", list(RESPONSES))
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_chunking_does_not_matter(kind: type[Http1Carrier], framed: str, cuts: list[int]) -> None:
    raw = RESPONSES[framed]
    edges = [0, *sorted(cut for cut in cuts if cut < len(EARLY + raw)), len(EARLY + raw)]
    pieces = [(EARLY + raw)[start:end] for start, end in pairwise(edges) if start < end]
    sink, upstream = _receive_pieces(pieces, kind=kind, closed=framed == "closed")
    text, sent = sink.head, b"".join(sink.sent)
    assert text is not None
    assert (text.status, text.reason, text.fields[:2], sink.body_) == (200, "Fine", FIELDS, b"abcde")
    assert sink.trailers == ((("X-T", "v"),) if framed == "chunked" else ())
    if kind is ReframedForHttp2:
        assert [interim.h2_fields for interim in sink.interim_] == [[(b":status", b"103"), (b"link", b"</a>")]]
        assert [field for field in text.h2_fields if field[0] != b"content-length"] == WIRE
        assert sent == b"abcde"
    else:
        assert [interim.raw for interim in sink.interim_] == [EARLY]
        assert text.raw + sent == raw.replace(b";x=y", b"")
    assert (upstream.returned_, upstream.dropped) == (framed != "closed", framed == "closed")


# Hypothesis draws from the literals in the sources, which include complete responses.
@given(noise=st.binary(min_size=1, max_size=200).filter(lambda noise: not noise.startswith(b"HTTP/")))
def test_noise_is_malformed_or_waited_for(noise: bytes) -> None:
    sink, _ = _receive_pieces([noise], closed=True)
    assert sink.end in ("malformed", ("broken", False))


@pytest.mark.parametrize(
    ("raw", "keeps"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", False),
    ],
)
def test_the_answer_to_a_head_has_no_body(raw: bytes, keeps: bool) -> None:
    sink, upstream = _receive_pieces([raw], method="HEAD")
    assert (sink.body_, sink.trailers) == (b"", ())
    assert upstream.returned_ is keeps


@KINDS
@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * (1 << 20),
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\nabcde",
    ],
)
def test_what_could_mean_two_things_is_malformed(kind: type[Http1Carrier], raw: bytes) -> None:
    sink, upstream = _receive_pieces([raw], kind=kind)
    assert (sink.head, sink.end, upstream.dropped) == (None, "malformed", True)


def test_another_host_is_refused() -> None:
    engine: Any = None
    head = [(b":method", b"GET"), (b":path", b"/"), (b":authority", b"evil.test")]
    with pytest.raises(Problem, match="host_mismatch"):
        admitted_h2_request(
            head,
            engine,
            "local",
            TunnelTarget("api.test", 443, None),
            Origin("https", "api.test", 443),
            is_bodiless=True,
        )


@pytest.mark.parametrize("path", [b"@evil.test/", b":1/", b".evil.test/", b"*", b""])
def test_no_path_changes_the_host_that_the_record_names(path: bytes) -> None:
    engine: Any = None
    head = [(b":method", b"OPTIONS"), (b":scheme", b"x"), (b":path", path), (b":authority", b"api.test")]
    with pytest.raises(Problem, match="bad_path"):
        admitted_h2_request(
            head,
            engine,
            "local",
            TunnelTarget("api.test", 443, None),
            Origin("https", "api.test", 443),
            is_bodiless=True,
        )
