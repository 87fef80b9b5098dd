"""A cached head is compared by all of its bytes: the cached request equals the one that parsing would return."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.lane.admission import LaneRequest, TunnelTarget, admitted_request
from proxy.lane.head_cache import MAX_HEAD_BYTES, MAX_HEADS, HeadCache
from proxy.lane.heads import request_head
from proxy.trust.ca import ensure_ca
from proxy.wire.config import EngineConfig, Origin
from proxy.wire.engine_state import EngineState

TUNNEL, WITHIN = TunnelTarget("api.test", 443, ("run-1", "x")), Origin("https", "api.test", 443)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineState:
    directory = tmp_path_factory.mktemp("keys")
    config = EngineConfig(authority=ensure_ca(directory / "keys"), mode="passthrough")
    return EngineState(config=config, recorder=None, answerer=None, trust=Path("unused"))


def _parse_head(engine: EngineState, raw: bytes) -> LaneRequest | None:
    head = request_head(raw)
    return admitted_request(head, engine, "local", TUNNEL, WITHIN) if head else None


NAMES = st.sampled_from(
    ["Content-Length", "content-length", "CONTENT-LENGTH", "X-Playhead-Run", "X-A", "Expect", "Connection"]
)
VALUES = st.sampled_from(["0", "5", "17", "run-2", "100-continue", "close", ""])
HEADS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda fields: (
        "POST /x HTTP/1.1\r\nHost: api.test\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
    ).encode()
)


@given(st.lists(HEADS, min_size=1, max_size=12))
def test_what_is_remembered_is_what_would_be_found(engine: EngineState, heads: list[bytes]) -> None:
    repeated = HeadCache()
    for raw in heads:
        fresh, known = _parse_head(engine, raw), repeated.find(raw)
        assert known is None or known._replace(memo=None) == fresh
        if known is None and fresh is not None:
            repeated.remember(raw, fresh)


def test_only_the_length_may_differ(engine: EngineState) -> None:
    repeated = HeadCache()
    raw = b"POST /x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 10\r\nX-Playhead-Run: r\r\nX-A: b\r\n\r\n"
    fresh = _parse_head(engine, raw)
    assert fresh is not None
    repeated.remember(raw, fresh)
    again = repeated.find(raw.replace(b": 10", b": 4711"))
    assert again is not None
    assert (again.length, again.headers) == (4711, (("Host", "api.test"), ("Content-Length", "4711"), ("X-A", "b")))
    assert again.http1_head == b"POST /x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 4711\r\nX-A: b\r\n\r\n"
    for other in (b"X-A: c", b"x-a: b", b"X-A: b\r\nContent-Length: 5"):
        assert repeated.find(raw.replace(b"X-A: b", other)) is None
    for length in (b"+10", b"1 0", b"", b"1" * 16, b"-1"):
        assert repeated.find(raw.replace(b": 10", b": " + length)) is None


def test_it_does_not_grow_without_bound(engine: EngineState) -> None:
    repeated = HeadCache()
    for number in range(MAX_HEADS + 10):
        raw = b"GET /%d HTTP/1.1\r\nHost: api.test\r\n\r\n" % number
        fresh = _parse_head(engine, raw)
        assert fresh is not None
        repeated.remember(raw, fresh)
    assert repeated.find(b"GET /0 HTTP/1.1\r\nHost: api.test\r\n\r\n") is not None
    assert repeated.find(b"GET /%d HTTP/1.1\r\nHost: api.test\r\n\r\n" % (MAX_HEADS + 5)) is None
    long = b"GET / HTTP/1.1\r\nHost: api.test\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"
    fresh = _parse_head(engine, long)
    assert fresh is not None
    other = HeadCache()
    other.remember(long, fresh)
    assert other.find(long) is None
