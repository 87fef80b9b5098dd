"""Weeks of running, clients that escape, a database that is away and no network at all."""

import asyncio
import json
import os
import shlex
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.drills.relay import relay
from tests.drills.up_processes import load_exchanges, until, up
from tests.peers.record_and_replay import (
    CHAT,
    OPENAI,
    TOOLS,
    RecordAndReplay,
    config,
    model_answer,
    resident,
    whole,
    worker,
)
from tests.support.service import command, surroundings

pytestmark = pytest.mark.slow


def test_13_each_client_is_recorded_or_reported_as_bypass(tmp_path: Path) -> None:
    """aiohttp without trust_env, Node's fetch, uv, git, Java …: whatever is on this machine has a verdict, as the matrix of
    `tests/live/test_clients.py` found it, and what goes by the recorder says how to stop it."""
    line = command("doctor", "--json", "--data", str(tmp_path / "data"))
    # The Python that it finds first is the one that has the SDKs.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        line, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=110, check=False
    )
    found = {one["client"]: one for one in json.loads(done.stdout)}
    assert {"curl", "git", "python httpx", "python requests", "python aiohttp"} <= set(found), done.stderr
    python = ("urllib", "requests", "httpx", "httpx2", "openai", "anthropic", "aiohttp, trust_env")
    for client in ("curl", "git", "node fetch", "node https", *(f"python {package}" for package in python)):
        one = found[client]
        assert (one["verdict"], one["names_run"], one["fix"]) == ("through", True, None), one
    assert found["python aiohttp"]["verdict"] == "escapes"
    assert "trust_env=True" in found["python aiohttp"]["fix"]
    # On a busy machine a client may not answer in time; its row says so.
    assert all(one["fix"] or one["said"] for one in found.values() if one["verdict"] not in ("through", "missing")), (
        found
    )
    assert done.returncode in (0, 1)


def test_17_a_soak_leaves_the_memory_flat(services: RecordAndReplay) -> None:
    """A day's worth would take a day: after a warm-up, six hundred calls of thirty runs leave the worker as it was."""
    services.answers("/v1/chat/completions", whole(model_answer("again " * 200)))
    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 400}]}

    def work(runs: range) -> None:
        for number in runs:
            with closing(services.recorder.connection(f"{services.run}-{number}", OPENAI)) as agent:
                for step in range(20):
                    body = json.dumps({**asked, "seed": step})
                    agent.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
                    answer = agent.getresponse()
                    assert (answer.status, answer.read() != b"") == (200, True)

    work(range(10))
    before = resident(worker(services.recorder))
    work(range(10, 40))
    assert resident(worker(services.recorder)) - before < 8


async def test_18_a_database_that_is_down_costs_the_agent_nothing_and_loses_nothing(
    services: RecordAndReplay, data: Path, database_url: str
) -> None:
    """Fail open, as the operations page says: what waits in the spool is stored when the database is back."""
    services.answers("/v1/chat/completions", whole(model_answer("one")), whole(model_answer("two")))
    place = config(services.upstream.port)
    async with relay(database_url) as database, up(data, "--database-url", database.url, config=place) as processes:
        context = ssl.create_default_context(cafile=processes.ready["ca"])
        proxy = f"http://{services.run}:@127.0.0.1:{processes.port}"
        async with httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False, timeout=60) as agent:

            async def ask(prompt: str) -> None:
                body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
                (await agent.post(CHAT, json=body)).raise_for_status()

            await ask("before")
            assert len(await load_exchanges(processes.api, services.run)) == 1
            database.disconnect()
            async with asyncio.timeout(60):
                await ask("while it is away")
            await until(lambda: _is_not_ready(processes.api))
            database.reconnect()
        exchanges = await load_exchanges(processes.api, services.run)
    assert [json.loads(one.request.body.data)["messages"][0]["content"] for one in exchanges] == [
        "before",
        "while it is away",
    ]


async def _is_not_ready(api: str) -> bool:
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
        return (await client.get(f"{api}/readyz")).status_code == 503


CLIENT = """
import sys, httpx
for path in ("/a", "/b", "/a"):
    print(httpx.get(sys.argv[1] + path, timeout=60).text)
"""


def test_20_replay_with_the_network_namespace_cut(
    services: RecordAndReplay, tmp_path: Path, forking_playhead: Path
) -> None:
    """No route, no name that resolves: the same answers, and nothing that was asked in vain."""
    services.answers("/a", whole(b"first", media="text/plain"), whole(b"second", media="text/plain"))
    services.answers("/b", whole(b"other", media="text/plain"))
    with services.recording() as agent:
        live = [agent.get(f"https://{TOOLS}{path}").text for path in ("/a", "/b", "/a")]
    (tmp_path / "run.jsonl").write_bytes(services.file())
    (tmp_path / "client.py").write_text(CLIENT)
    replay = (str(forking_playhead), "replay", "--data", str(tmp_path / "data"), "run.jsonl")
    done = _cut_off([*replay, "--", sys.executable, "client.py", f"https://{TOOLS}"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == live == ["first", "other", "second"]
    assert "3 served, 0 missed, 0 live, 0 unused" in done.stderr


def _cut_off(line: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a network namespace of its own, which has a loopback and no route."""
    apart = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    alone = "ip link set lo up && ! ip route | grep -q ."
    if subprocess.run([*apart, "sh", "-c", alone], check=False, capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    around = surroundings()
    script = f"ip link set lo up && exec {shlex.join(line)}"
    return subprocess.run(
        [*apart, "sh", "-c", script], cwd=place, env=around, capture_output=True, text=True, timeout=90, check=False
    )
