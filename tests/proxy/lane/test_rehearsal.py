"""The request that is served in memory before the first real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from calls.model import Body, Request
from calls.redaction.redactor import Redactor
from proxy.lane import rehearsal, tls
from proxy.lane.lane import Lane
from proxy.lane.rehearsal import LARGEST_BODY, rehearse
from proxy.trust.ca import ensure_ca
from proxy.wire.access import Access
from proxy.wire.config import EngineConfig
from replay.replay_options import ReplayOptions
from replay.replays import Replays, ReplaySource
from tests.replay.strategies import PROFILES, chat, exchange, model_answer, run_of
from tests.support.wire import ScriptedAnswerer, connect_through, open_worker, whole

HOST = "api.openai.com"


async def load_replays() -> Replays:
    """Replays of a run of two calls."""
    replays = Replays(
        redactor=Redactor(key=b"k" * 32), profiles=PROFILES, options=ReplayOptions(), on_change=lambda _: None
    )
    exchanges = exchange(chat("a"), model_answer("one")), exchange(chat("b"), model_answer("two"))
    await replays.start([ReplaySource(replay="r", bundle=run_of(*exchanges))])
    return replays


def make_lane(directory: Path, replays: Replays, **settings: Any) -> Lane:
    config: dict[str, Any] = {"mode": "replay"} | settings
    return Lane(EngineConfig(authority=ensure_ca(directory / "keys"), **config), None, replays)


async def test_it_is_answered_as_a_client_would_be_and_leaves_no_trace(tmp_path: Path) -> None:
    replays = await load_replays()
    lane = make_lane(tmp_path, replays)
    before = replays.report("r")
    found = replays.rehearsal()
    assert found is not None
    received = await rehearse(lane, *found)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"one" in received
    assert replays.report("r") == before
    assert not lane.config.counts
    assert not lane._open_connections()
    # The real request still gets the first answer.
    answer = await replays.answer(chat("a"), run=None, owner="x")
    assert answer is not None
    assert answer.status == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"access": Access(tokens=("secret",))},
        {"mode": "auto", "modes": {HOST: "record"}, "upstreams": {HOST: "http://127.0.0.1:9"}},
        {"mode": "auto", "run_mode": lambda _run: "passthrough"},
        {"tunnel": (HOST,)},
        {"upstream_proxy": "http://127.0.0.1:9"},
        {"reverse": "http://127.0.0.1:9"},
    ],
    ids=["token", "host", "run", "tunnel", "proxy", "reverse"],
)
async def test_no_setting_lets_it_out(tmp_path: Path, settings: dict[str, Any]) -> None:
    replays = await load_replays()
    lane = make_lane(tmp_path, replays, **settings)
    contacted: list[Any] = []
    lane.upstreams.connect = lane.hand_over = lambda *what, **_: contacted.append(what)  # type: ignore[method-assign,assignment]
    found = replays.rehearsal()
    assert found is not None
    assert (await rehearse(lane, *found)).startswith(b"HTTP/1.1 200 ")
    assert not contacted


@pytest.mark.parametrize(
    "request_",
    [
        Request(method="GET", url="http://api.test/"),
        Request(method="GET", url="https://"),
        Request(method="POST", url="https://api.test/", body=Body(data=b"x" * (LARGEST_BODY + 1))),
    ],
    ids=["plain", "no host", "large"],
)
async def test_one_unlike_most_is_not_served(tmp_path: Path, request_: Request) -> None:
    lane = make_lane(tmp_path, await load_replays())
    assert await rehearse(lane, request_, ScriptedAnswerer(whole(b"ok"))) == b""


@pytest.mark.parametrize("mode", ["replay", "auto"])
async def test_one_without_an_answer_goes_to_nobody(tmp_path: Path, mode: str) -> None:
    lane = make_lane(tmp_path, await load_replays(), mode=mode)
    assert (await rehearse(lane, chat("unknown"), ScriptedAnswerer(None))).startswith(b"HTTP/1.1 502 ")


async def test_several_recordings_have_none() -> None:
    replays = await load_replays()
    await replays.start(
        [ReplaySource(replay="other", bundle=run_of(exchange(chat("a"), model_answer("one")), run="o"))]
    )
    assert replays.rehearsal() is None


@asynccontextmanager
async def prepared_worker(directory: Path) -> AsyncIterator[Any]:
    """A worker that has served its request in memory."""
    done = asyncio.Event()

    async def note_end(*what: Any) -> bytes:
        received = await rehearse(*what)
        done.set()
        return received

    with patch.object(rehearsal, "rehearse", note_end):
        async with open_worker(directory, answerer=await load_replays()) as worker:
            worker.config.prepared.set()
            await asyncio.wait_for(done.wait(), 30)
            yield worker


async def test_it_and_all_clients_without_http2_share_one_context(tmp_path: Path) -> None:
    with patch("proxy.lane.tls.server_context", wraps=tls.server_context) as made:
        async with prepared_worker(tmp_path) as worker:
            for alpn in ((), ("http/1.1",), ("h2", "http/1.1")):
                _, writer = await connect_through(worker, f"{HOST}:443", alpn=alpn)
                chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
                assert chosen == ("http/1.1" if alpn else None)
                writer.close()
    assert made.call_count == 1
