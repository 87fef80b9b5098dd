"""The client matrix: every client gets through a real worker what it gets without it, and the record holds what was sent.

A client that a worker cannot catch is no failure here, as long as `doctor` says so (tests/proxy/doctor/test_doctor.py, and below).
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import trustme

from proxy.trust.client_environment import proxy_url_for_run, proxy_variables
from tests.live import npm, upstream
from tests.support.postgres import memory_directory
from tests.support.service import Service, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CLIENTS = Path(__file__).parent / "clients"
HOSTS = ("api.model.example", "api.other.example")
OVER_H2 = "h2.model.example"

BYTES = (
    "urllib",
    "requests",
    "httpx",
    "httpx2",
    "httpx_async",
    "aiohttp",
    "curl_h1",
)
SDKS = (
    "openai_whole",
    "openai_streamed",
    "openai_async",
    "openai_async_streamed",
    "anthropic_whole",
    "anthropic_streamed",
    "anthropic_async",
    "anthropic_async_streamed",
)
NODE = ("fetch", "https", "https_own_agent")
NODE_PACKAGES = ("openai", "openai_streamed", "openai4_streamed", "undici", "axios")
LEAVING = tuple(client for client in (*SDKS, *NODE_PACKAGES) if client.endswith("_streamed"))
"""Those that may close a stream at its end mark, a moment before HTTP's end or after it (`calls.model.client_outcome`)."""

WHOLE = ("openai", "openai_whole", "openai_async", "anthropic_whole", "anthropic_async")
"""Those that do not ask for a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A running service, with the upstream behind it."""

    service: Service
    port: int

    def environment(self, run: str) -> dict[str, str]:
        ca = self.service.ca
        proxy = proxy_url_for_run(self.service.proxy, run, None)
        ours = proxy_variables(proxy=proxy, ca=ca, ca_bundle=ca.with_name("ca-bundle.pem"), base=os.environ, run=run)
        return {**os.environ, **ours}

    async def calls(self, run: str) -> list[dict[str, Any]]:
        async with httpx2.AsyncClient(
            base_url=self.service.api, headers=self.service.headers, timeout=30, trust_env=False, verify=False
        ) as client:
            answer = await client.get(f"/v1/runs/{run}/calls", params={"settled": "true", "fields": "*"})
            if answer.status_code == 404:
                return []
            return list(answer.raise_for_status().json()["items"])

    async def exchange(self, call: dict[str, Any], what: str = "") -> httpx2.Response:
        (exchange,) = call["exchanges"]
        async with httpx2.AsyncClient(
            base_url=self.service.api, headers=self.service.headers, timeout=30, trust_env=False, verify=False
        ) as client:
            return (await client.get(f"/v1/exchanges/{exchange}{what}")).raise_for_status()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with upstream.upstream() as server:
        yield server.server_port


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Outside pytest's own directories: as root Postgres runs as another user, who must be able to pass through."""
    with tempfile.TemporaryDirectory(prefix="playhead-live-", dir=memory_directory()) as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.fixture(scope="module")
def authority(place: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(place / "upstream-ca.pem")
    return authority


@pytest.fixture(scope="module")
def h2_port(place: Path, authority: trustme.CA) -> Iterator[int]:
    """An upstream over TLS that speaks HTTP/2, by Node, so that nothing of ours is on both sides."""
    identity = authority.issue_cert("127.0.0.1", OVER_H2)
    identity.private_key_and_cert_chain_pem.write_to_path(place / "upstream.pem")
    (place / "body").write_bytes(upstream.response_body("/v1/chat/completions", streamed=True))
    line = [npm.node(), str(CLIENTS / "h2upstream.mjs"), str(place / "upstream.pem"), str(place / "body")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def matrix(
    port: int, place: Path, authority: trustme.CA, module_database_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Matrix]:
    origins = dict.fromkeys(HOSTS, f"http://127.0.0.1:{port}")
    if shutil.which("node"):
        origins[OVER_H2] = f"https://127.0.0.1:{request.getfixturevalue('h2_port')}"
    lines = "".join(f'"{host}" = "{origin}"\n' for host, origin in origins.items())
    config = f'upstream_ca = "{place / "upstream-ca.pem"}"\n[upstreams]\n{lines}'
    async with running(place / "data", "--database-url", module_database_url, config=config) as service:
        yield Matrix(service=service, port=port)


async def run_client(line: list[str], env: dict[str, str], cwd: Path | None = None) -> list[Any]:
    """What a client got from each address on its command line."""
    process = await asyncio.create_subprocess_exec(
        *line, env=env, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, error.decode()[-2000:]
    answers = [json.loads(line) for line in out.splitlines()]
    for got in answers:
        if isinstance(got, dict):
            got.pop("http", None)
    return answers


async def check(matrix: Matrix, clients: Sequence[str], line: list[str], cwd: Path | None = None) -> None:
    """Ask with each client without and with us, and compare.

    One process for all, because an SDK takes longer to start than to ask.
    """
    run = f"live-{Path(line[0]).name}-{clients[0]}"
    env = matrix.environment(run)
    words = [*line, ",".join(clients), f"http://127.0.0.1:{matrix.port}", f"https://{HOSTS[0]}"]
    answers = await run_client(words, env, cwd)
    calls = await matrix.calls(run)
    assert len(answers) == 2 * len(calls) == 2 * len(clients)
    pairs = zip(answers[::2], answers[1::2], strict=True)
    for client, (straight, through), call in zip(clients, pairs, calls, strict=True):
        assert through == straight, client
        assert (call["complete"], call["status"], call["host"]) == (True, 200, HOSTS[0]), client
        assert call["outcome"] == "completed" or (client in LEAVING and call["outcome"] == "client_closed"), client
        path = "/v1/messages" if client.startswith("anthropic") else "/v1/chat/completions"
        assert call["path"] == path, client
        expected = upstream.response_body(path, streamed=client not in WHOLE)
        assert (await matrix.exchange(call, "/response")).content == expected, client


async def test_python_clients_and_curl_are_recorded_as_they_were_answered(matrix: Matrix) -> None:
    await check(matrix, BYTES, [sys.executable, str(CLIENTS / "ask.py")])


async def test_python_sdks_get_the_same_answer_through_us(matrix: Matrix, programs: Path) -> None:
    await check(matrix, SDKS, [str(programs / "python"), str(CLIENTS / "ask.py")])


async def test_clients_of_nodes_own_are_recorded_as_they_were_answered(matrix: Matrix) -> None:
    await check(matrix, NODE, [npm.node(), str(CLIENTS / "ask.mjs")])


async def test_node_packages_get_the_same_answer_through_us(matrix: Matrix) -> None:
    await check(matrix, NODE_PACKAGES, [npm.node(), str(CLIENTS / "ask.mjs")], cwd=npm.packages())


async def test_plain_http_is_recorded_too(matrix: Matrix, programs: Path) -> None:
    line = [str(programs / "python"), str(CLIENTS / "ask.py"), "requests", f"http://{HOSTS[1]}"]
    await run_client(line, matrix.environment("live-plain"))
    (call,) = await matrix.calls("live-plain")
    assert (await matrix.exchange(call)).json()["url"] == f"http://{HOSTS[1]}/v1/chat/completions"


async def test_a_secret_that_the_client_sent_is_not_in_the_record(matrix: Matrix, programs: Path) -> None:
    line = [str(programs / "python"), str(CLIENTS / "ask.py"), "requests", f"https://{HOSTS[0]}"]
    await run_client(line, matrix.environment("live-secret"))
    (call,) = await matrix.calls("live-secret")
    answer = (await matrix.exchange(call)).text
    assert "sk-live-0123456789abcdef" not in answer
    assert "uthorization" in answer or "redact" in answer.lower()


async def test_aiohttp_without_proxy_settings_escapes_and_leaves_no_record(matrix: Matrix, programs: Path) -> None:
    line = [str(programs / "python"), str(CLIENTS / "ask.py"), "aiohttp_alone", f"https://{HOSTS[0]}"]
    with pytest.raises(AssertionError, match="Cannot connect to host"):
        await run_client(line, matrix.environment("live-escaped"))
    assert await matrix.calls("live-escaped") == []


async def test_http2_is_spoken_on_both_sides_and_recorded(matrix: Matrix) -> None:
    expected = upstream.response_body("/v1/chat/completions", streamed=True)
    lines = {
        "curl_h2": [sys.executable, str(CLIENTS / "ask.py")],
        "http2": [npm.node(), str(CLIENTS / "ask.mjs")],
        # Last, because it names HTTP/1.1 first: it gets HTTP/2 from a worker that has learnt that the upstream has it.
        "httpx_h2": [sys.executable, str(CLIENTS / "ask.py")],
    }
    for client, line in lines.items():
        (got,) = await run_client([*line, client, f"https://{OVER_H2}"], matrix.environment(f"live-{client}"))
        assert got["sha256"] == hashlib.sha256(expected).hexdigest(), client
        (call,) = await matrix.calls(f"live-{client}")
        assert (await matrix.exchange(call)).json()["http_version"].startswith("HTTP/2"), client
        assert (await matrix.exchange(call, "/response")).content == expected
