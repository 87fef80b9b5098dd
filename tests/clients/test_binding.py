"""Runs that overlap in one process: each call is in the run in which it was made, and in no other."""

import asyncio
import json
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import playhead
import pytest
import trustme
import websockets.asyncio.server
from cryptography.hazmat.primitives.serialization import Encoding
from playhead.binding import RUN_ID
from playhead.proxied import has_playhead_certificate, is_playhead_address

from calls import project_runs
from proxy.trust.ca import ensure_ca
from tests.clients.suite_directory import PLAYHEAD, SuiteDirectory
from tests.support.service import Service, running

PROGRAM = Path(__file__).parent / "programs" / "overlapping.py"


async def test_no_call_is_in_the_wrong_run(data: Path, suite: SuiteDirectory, database_url: str) -> None:
    async def echo(connection: websockets.asyncio.server.ServerConnection) -> None:
        assert connection.request is not None
        named = [name for name in connection.request.headers if name.lower().startswith("x-playhead-")]
        suite.upstream_requests.append(f"WS {connection.request.path}{' NAMED' if named else ''}")
        async for message in connection:
            await connection.send(message)

    sockets = await websockets.asyncio.server.serve(echo, "127.0.0.1", 0)
    port = sockets.sockets[0].getsockname()[1]
    config = (suite.directory / "playhead.toml").read_text() + f'"sockets.example.com" = "http://127.0.0.1:{port}"\n'
    async with sockets, running(data, "--database-url", database_url, config=config) as service:
        words = [sys.executable, str(PROGRAM), f"http://127.0.0.1:{suite.server.server_port}"]
        around = suite.environment(PLAYHEAD_API=service.api, PLAYHEAD_COMMAND=PLAYHEAD, PLAYHEAD_DATA=str(data))
        ran = partial(subprocess.run, words, env=around, capture_output=True, text=True, check=False)
        done = await asyncio.to_thread(ran)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        runs = await asyncio.to_thread(calls_by_run, service)

    named = {run: labels for run, labels in runs.items() if any(label == run for label in labels)}
    others = sum((labels for run, labels in runs.items() if run not in named), Counter[str]())
    assert {run: set(labels) for run, labels in named.items()} == {run: {run} for run in named}
    assert set(others) == {"None"}, "what is called outside of all blocks is in no run of theirs"
    assert {run: labels[run] for run, labels in named.items()} == {
        "thread-0": 11,
        "thread-1": 8,
        "thread-2": 8,
        **{f"nested-{number}": 4 for number in range(3)},
        "executor-1": 12,
        "executor-2": 16,
        **{f"task-{number}": 23 for number in range(3)},
        # Each task sends two requests over the HTTP/2 connection and opens three WebSockets.
        "stream-1": 10,
        "stream-2": 10,
        "generator-1": 8,
        "generator-2": 8,
        "generator-3": 8,
        "generator-4": 4,
        "block-1": 4,
        "async-generator-1": 16,
        "async-generator-2": 16,
        "process-1": 5,
        "process-2": 1,
    }
    assert others["None"] == 46
    assert len([asked for asked in suite.upstream_requests if asked.startswith("WS ")]) == 18
    assert "GET /direct" in suite.upstream_requests
    assert not [asked for asked in suite.upstream_requests if "NAMED" in asked], "a run's name reached an upstream"


def calls_by_run(service: Service) -> dict[str, Counter[str]]:
    """The number of stored calls by run and label."""
    runs = [run["id"] for run in get_json(service, "/v1/runs?limit=200&settled=true")["items"]]
    return {
        run: Counter(
            call["path"].split("/")[1] for call in get_json(service, f"/v1/runs/{run}/calls?limit=500")["items"]
        )
        for run in runs
    }


def get_json(service: Service, path: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(service.api + path, headers=service.headers), timeout=60) as answer:
        return json.load(answer)


@pytest.fixture
def playhead_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that Playhead started."""
    monkeypatch.setenv("PLAYHEAD_RUN", "outer")
    monkeypatch.setenv("PLAYHEAD_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://outer:tok%3An@127.0.0.1:9")
    monkeypatch.delenv("https_proxy", raising=False)


def test_a_run_may_be_named_here_as_it_may_at_the_proxy() -> None:
    assert project_runs.RUN_ID.pattern == RUN_ID.pattern


@pytest.mark.usefixtures("playhead_environment")
def test_the_innermost_block_counts_and_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert playhead.current_run() is None
    with playhead.run("a"), playhead.run("b:1"):
        assert playhead.current_run() == "b:1"
        assert playhead.proxy() == "http://b%253A1:tok%3An@127.0.0.1:9"
        assert playhead.variables()["PLAYHEAD_RUN"] == "b:1"
        assert playhead.variables("c")["HTTPS_PROXY"] == "http://c:tok%3An@127.0.0.1:9"
        assert playhead.variables()["PATH"]
    assert playhead.current_run() is None
    assert playhead.proxy() == "http://outer:tok%3An@127.0.0.1:9"
    monkeypatch.setenv("HTTP_PROXY", "http://company:3128")
    assert playhead.variables("c")["HTTP_PROXY"] == "http://company:3128", "a proxy that is not ours is told nothing"


def test_a_captive_process_needs_no_proxy_but_its_programs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLAYHEAD_RUN", "outer")
    monkeypatch.setenv("PLAYHEAD_PROXY", "http://outer:tok@127.0.0.1:9")
    assert playhead.variables("a")["https_proxy"] == playhead.proxy("a") == "http://a:tok@127.0.0.1:9"
    assert is_playhead_address("tickets.example.com", 80)
    assert is_playhead_address(b"127.0.0.1", 9)
    assert not is_playhead_address("127.0.0.1", 8000)
    assert not is_playhead_address("localhost", 80)


def test_a_certificate_that_is_not_playheads_is_recognised(tmp_path: Path) -> None:
    """A host that is reached without Playhead, or tunnelled undecrypted."""
    leaf = ensure_ca(tmp_path).leaf("pinned.example.com").certificate.public_bytes(Encoding.DER)
    other = trustme.CA().issue_cert("pinned.example.com").cert_chain_pems[0].bytes()
    assert has_playhead_certificate(SimpleNamespace(getpeercert=lambda _binary: leaf))
    assert not has_playhead_certificate(
        SimpleNamespace(getpeercert=lambda _binary: ssl.PEM_cert_to_DER_cert(other.decode()))
    )
    assert not has_playhead_certificate(SimpleNamespace(getpeercert=lambda _binary: None))
    assert not has_playhead_certificate(object())


@pytest.mark.usefixtures("playhead_environment")
def test_a_block_is_left_after_an_error_and_in_any_order() -> None:
    with pytest.raises(ZeroDivisionError), playhead.run("a"):
        _ = 1 / 0
    assert playhead.current_run() is None
    one, other = playhead.run("one"), playhead.run("other")
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert playhead.current_run() == "other"
    other.__exit__(None, None, None)
    assert playhead.current_run() is None


@pytest.mark.usefixtures("playhead_environment")
async def test_a_block_decorates_functions_of_both_kinds() -> None:
    @playhead.run("sync")
    def work(*, more: int) -> tuple[str | None, int]:
        return playhead.current_run(), more

    @playhead.run("async")
    async def work_async() -> str | None:
        await asyncio.sleep(0)
        return playhead.current_run()

    assert work(more=1) == ("sync", 1)
    assert list(await asyncio.gather(work_async(), work_async())) == ["async", "async"]
    with pytest.raises(TypeError, match="is a generator"):

        @playhead.run("generator")
        def steps() -> Iterator[None]:
            yield


@pytest.mark.usefixtures("playhead_environment")
def test_a_generator_in_another_threads_hands_keeps_its_run() -> None:
    def steps() -> Iterator[str | None]:
        with playhead.run("outer-block"), playhead.run("a"):
            yield playhead.current_run()
            yield playhead.current_run()

    found: list[str | None] = []
    running = steps()
    found.append(next(running))
    thread = threading.Thread(target=lambda: found.extend([*running, playhead.current_run()]))
    with playhead.run("b"):
        thread.start()
        thread.join()
        found.append(playhead.current_run())
    assert found == ["a", "a", "b", "b"]


@pytest.mark.usefixtures("playhead_environment")
def test_programs_with_an_environment_that_does_not_lead_to_playhead_keep_it() -> None:
    show = [sys.executable, "-c", "import os; print(os.environ.get('PLAYHEAD_RUN'), os.environ.get('HTTPS_PROXY'))"]

    def run_program(**more: Any) -> str:
        ran: subprocess.CompletedProcess[str] = subprocess.run(show, capture_output=True, text=True, check=True, **more)
        return ran.stdout.strip()

    with playhead.run("a"):
        assert run_program() == "a http://a:tok%3An@127.0.0.1:9"
        assert run_program(env={"HTTPS_PROXY": "http://company:3128"}) == "None http://company:3128"
        assert run_program(env={b"HTTPS_PROXY": b"http://company:3128"}) == "None http://company:3128"
    assert run_program() == "outer http://outer:tok%3An@127.0.0.1:9"


def test_without_playhead_nothing_is_bound_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAYHEAD_RUN", "PLAYHEAD_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLAYHEAD_COMMAND", "no-such-playhead")
    with pytest.raises(playhead.Unreachable, match="cannot run no-such-playhead"), playhead.run("r"):
        pass
    assert playhead.current_run() is None
