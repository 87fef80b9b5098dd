"""A response of HTTP/1.1 on its way to a client of HTTP/2: the same, however the network cuts it."""

from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Headers
from proxy.door import Origin
from proxy.lane.admission import Tunnel
from proxy.lane.h2carriers import OverHttp1
from proxy.lane.h2heads import Asking, Told, asking
from proxy.lane.h2wire import Fields
from proxy.lane.upstream import Lender, Upstream
from proxy.mitm.problem import Problem


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

    def give_back(self) -> None:
        pass

    def returned(self, _: Any) -> None:
        self.returned_ = True


class Heard:
    """What a client is told."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.data = b""

    def interim(self, status: int, fields: Fields) -> None:
        self.said.append((status, fields))

    def response(self, told: Told, *, last: bool) -> None:
        self.said.append((told.status, told.reason, told.fields, told.wire, last))

    def body(self, data: bytes, *, last: bool) -> None:
        self.data += data
        if last:
            self.said.append(((), self.data))

    def ended(self, trailers: Headers) -> None:
        self.said.append((trailers, self.data))

    def malformed(self, fault: str) -> None:
        self.said.append("malformed")

    def broken(self, code: int, *, refused: bool = False, unheard: bool = False) -> None:
        self.said.append(("broken", unheard))

    def failed(self, fault: BaseException) -> None:
        raise fault

    def full(self, *, full: bool) -> None:
        pass


def _asking(method: str = "GET") -> Asking:
    origin, fields = Origin("https", "api.test", 443), [(b"x-a", b"1")]
    head = [(b":method", method.encode()), (b":path", b"/"), (b":authority", b"api.test"), *fields]
    engine: Any = type("Engine", (), {"contact": staticmethod(lambda target: target)})
    return asking(head, engine, "local", Tunnel("api.test", 443, None), origin, bodiless=True)


def _heard(pieces: list[bytes], *, method: str = "GET", closed: bool = False) -> tuple[list[Any], Wired]:
    wired, heard = Wired(), Heard()
    carrier = OverHttp1(cast(Upstream, wired), cast(Lender, wired))
    carrier.ask(heard, _asking(method), b"", ())
    assert wired.sent == f"{method} / HTTP/1.1\r\nHost: api.test\r\nx-a: 1\r\n\r\n".encode()
    for piece in pieces:
        if not wired.gone:
            carrier.answer(piece)
    if closed and not wired.gone:
        wired.gone = True
        carrier.broken(ragged=False)
    carrier.done()
    return heard.said, wired


HEAD = b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 200 Fine\r\nX-A: 1\r\nConnection: keep-alive\r\n"
WIRE = [(b":status", b"200"), (b"x-a", b"1")]
FIELDS = (("X-A", "1"), ("Connection", "keep-alive"))

RESPONSES = {
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-T: v\r\n\r\n",
    "sized": HEAD + b"Content-Length: 5\r\n\r\nabcde",
    "closed": HEAD + b"\r\nabcde",
}


@pytest.mark.parametrize("kind", list(RESPONSES))
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_chunking_does_not_matter(kind: str, cuts: list[int]) -> None:
    raw = RESPONSES[kind]
    edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(edges) if start < end]
    said, wired = _heard(pieces, closed=kind == "closed")
    interim, (status, reason, fields, wire, last), (trailers, body) = said
    assert interim == (103, [(b"link", b"</a>")])
    assert (status, reason, last, body) == (200, "Fine", False, b"abcde")
    assert fields[:2] == FIELDS
    assert [field for field in wire if field[0] != b"content-length"] == WIRE
    assert trailers == ((("X-T", "v"),) if kind == "chunked" else ())
    assert (wired.returned_, wired.dropped) == (kind != "closed", kind == "closed")


# Hypothesis knows the literals of our sources, and so finds a whole response among them.
@given(noise=st.binary(min_size=1, max_size=200).filter(lambda noise: not noise.startswith(b"HTTP/")))
def test_noise_is_malformed_or_waited_for(noise: bytes) -> None:
    said, _ = _heard([noise], closed=True)
    # It may be a 1xx by chance, which is not the last word.
    assert said[-1] in ("malformed", ("broken", False))


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
    said, wired = _heard([raw], method="HEAD")
    assert len(said) == 1
    assert said[0][-1] is True
    assert wired.returned_ is keeps


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * (1 << 20),
    ],
)
def test_what_could_mean_two_things_is_malformed(raw: bytes) -> None:
    said, wired = _heard([raw])
    assert (said, wired.dropped) == (["malformed"], True)


def test_another_host_is_refused() -> None:
    engine: Any = None
    head = [(b":method", b"GET"), (b":path", b"/"), (b":authority", b"evil.test")]
    with pytest.raises(Problem, match="host_mismatch"):
        asking(head, engine, "local", Tunnel("api.test", 443, None), Origin("https", "api.test", 443), bodiless=True)


@pytest.mark.parametrize("path", [b"@evil.test/", b":1/", b".evil.test/", b"*", b""])
def test_no_path_changes_the_host_that_the_record_names(path: bytes) -> None:
    engine: Any = None
    head = [(b":method", b"OPTIONS"), (b":scheme", b"x"), (b":path", path), (b":authority", b"api.test")]
    with pytest.raises(Problem, match="bad_path"):
        asking(head, engine, "local", Tunnel("api.test", 443, None), Origin("https", "api.test", 443), bodiless=True)
