"""HTTP/2 responses that their client does not read."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.lane import lane as lanes
from proxy.lane.h2.client import H2Downstream
from proxy.trust.ca import ensure_ca
from proxy.wire.config import EngineConfig, Limits
from proxy.wire.engine_state import EngineState
from tests.support.h2wire import Peer, StreamBroken
from tests.support.wire import answering, connect_through, open_worker

CANCEL = 8


async def test_a_client_that_never_takes_the_rest_of_an_answer_does_not_keep_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "CHECK_INTERVAL", 0.05)
    body = bytes(200_000)
    async with open_worker(
        tmp_path,
        limits=Limits(idle=1.5, grace=0.5),
        upstream=answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)),
    ) as worker:
        peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True, acknowledge=False)
        stream = peer.ask("api.test", "/")
        async with asyncio.timeout(60):
            with pytest.raises(StreamBroken, match=rf"code {CANCEL}$"):
                await peer.answer(stream)
        peer.writer.close()
    assert 0 < len(peer.streams[stream].body) < len(body)


def test_a_slow_client_is_not_taken_for_one_that_never_reads(tmp_path: Path) -> None:
    idle = 600.0
    engine = EngineState(
        config=EngineConfig(authority=ensure_ca(tmp_path), limits=Limits(idle=idle)),
        recorder=None,
        answerer=None,
        trust=tmp_path,
    )
    seat = H2Downstream(SimpleNamespace(engine=engine), 1)  # type: ignore[arg-type]  # it asks for no more
    assert not any(seat.is_stuck(untaken, now=number * idle) for number, untaken in enumerate((3, 2, 1)))
    assert not seat.is_stuck(1, now=3 * idle)
    assert seat.is_stuck(1, now=3 * idle + 1)
