"""A response of HTTP/1.1 on its way to a client: the same, however the network cuts it, and whatever the client speaks."""

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
from proxy.lane.h2.heads import asking
from proxy.lane.upstream import Upstream
from proxy.lane.upstream_http1 import ClientPool, Http1Carrier, ReframedForHttp2
from proxy.wire.access import EVERYBODY
from proxy.wire.config import Origin
from proxy.wire.problem import Problem


class Wired:
    """An upstream's connection and its lender, as far as a carrier sees them."""

    def __init__(self) -> None:
        self.gone = self.bound = self.dropped = self.returned_ = False
        self.used = 1
        self.sent = b""

    def lend(self, _: Any) -> None:
        self.used += 1

    def write(self, data: bytes) -> None:
        self.sent += data

    def read(self, *, on: bool) -> None:
        pass

    def drop(self) -> None:
        self.dropped = self.gone = True

    def returned(self, _: Any) -> None:
        self.returned_ = True


class Heard:
    """What a client is told."""

    def __init__(self) -> None:
        self.interim_: list[DownstreamHead] = []
        self.told: DownstreamHead | None = None
        self.sent: list[bytes] = []
        self.body_ = b""
        self.trailers: Headers | None = None
        """None until it is whole."""

        self.end: Any = None
        """How it went wrong."""

    def interim(self, told: DownstreamHead) -> None:
        self.interim_.append(told)

    def response(self, told: DownstreamHead, *, alone: bool) -> None:
        assert self.told is None
        self.told = told

    def body(self, go: bytes, pieces: Sequence[bytes]) -> None:
        assert self.told is not None
        assert self.trailers is None
        self.sent.append(go)
        self.body_ += b"".join(pieces)

    def ended(self, pieces: Sequence[bytes], before: bytes, end: bytes, trailers: Headers) -> None:
        self.body(before, pieces)
        self.sent.append(end)
        self.trailers = trailers

    def whole(self, told: DownstreamHead, body: bytes) -> None:
        self.response(told, alone=False)
        self.ended((body,), b"", body, ())

    def malformed(self, fault: str) -> None:
        self.end = "malformed"

    def broken(self, code: int, *, refused: bool = False, unheard: bool = False) -> None:
        self.end = "broken", unheard

    def failed(self, fault: BaseException) -> None:
        raise fault

    def full(self, *, full: bool) -> None:
        pass


def _asked(method: str = "GET") -> LaneRequest:
    origin, fields = Origin("https", "api.test", 443), [(b"x-a", b"1")]
    head = [(b":method", method.encode()), (b":path", b"/"), (b":authority", b"api.test"), *fields]
    engine: Any = SimpleNamespace(
        contact=lambda target: target, config=SimpleNamespace(is_only_run=lambda _run: False, access=EVERYBODY)
    )
    found = asking(head, engine, "local", TunnelTarget("api.test", 443, None), origin, bodiless=True)
    return found._replace(head=f"{method} / HTTP/1.1\r\nHost: api.test\r\nx-a: 1\r\n\r\n".encode())


def _heard(
    pieces: list[bytes], *, kind: type[Http1Carrier] = Http1Carrier, method: str = "GET", closed: bool = False
) -> tuple[Heard, Wired]:
    wired, heard = Wired(), Heard()
    carrier = kind(cast(Upstream, wired), cast(ClientPool, wired))
    asked = _asked(method)
    carrier.ask(heard, asked, b"", ())
    assert wired.sent == asked.head
    for piece in pieces:
        if not wired.gone:
            carrier.answer(piece)
    if closed and not wired.gone:
        wired.gone = True
        carrier.broken(ragged=False)
    carrier.done()
    return heard, wired


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
    heard, wired = _heard(pieces, kind=kind, closed=framed == "closed")
    told, sent = heard.told, b"".join(heard.sent)
    assert told is not None
    assert (told.status, told.reason, told.fields[:2], heard.body_) == (200, "Fine", FIELDS, b"abcde")
    assert heard.trailers == ((("X-T", "v"),) if framed == "chunked" else ())
    if kind is ReframedForHttp2:
        assert [interim.wire for interim in heard.interim_] == [[(b":status", b"103"), (b"link", b"</a>")]]
        assert [field for field in told.wire if field[0] != b"content-length"] == WIRE
        assert sent == b"abcde"
    else:
        assert [interim.raw for interim in heard.interim_] == [EARLY]
        assert told.raw + sent == raw.replace(b";x=y", b"")
    assert (wired.returned_, wired.dropped) == (framed != "closed", framed == "closed")


# Hypothesis knows the literals of our sources, and so finds a whole response among them.
@given(noise=st.binary(min_size=1, max_size=200).filter(lambda noise: not noise.startswith(b"HTTP/")))
def test_noise_is_malformed_or_waited_for(noise: bytes) -> None:
    heard, _ = _heard([noise], closed=True)
    assert heard.end in ("malformed", ("broken", False))


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
    heard, wired = _heard([raw], method="HEAD")
    assert (heard.body_, heard.trailers) == (b"", ())
    assert wired.returned_ is keeps


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
    heard, wired = _heard([raw], kind=kind)
    assert (heard.told, heard.end, wired.dropped) == (None, "malformed", True)


def test_another_host_is_refused() -> None:
    engine: Any = None
    head = [(b":method", b"GET"), (b":path", b"/"), (b":authority", b"evil.test")]
    with pytest.raises(Problem, match="host_mismatch"):
        asking(
            head, engine, "local", TunnelTarget("api.test", 443, None), Origin("https", "api.test", 443), bodiless=True
        )


@pytest.mark.parametrize("path", [b"@evil.test/", b":1/", b".evil.test/", b"*", b""])
def test_no_path_changes_the_host_that_the_record_names(path: bytes) -> None:
    engine: Any = None
    head = [(b":method", b"OPTIONS"), (b":scheme", b"x"), (b":path", path), (b":authority", b"api.test")]
    with pytest.raises(Problem, match="bad_path"):
        asking(
            head, engine, "local", TunnelTarget("api.test", 443, None), Origin("https", "api.test", 443), bodiless=True
        )
