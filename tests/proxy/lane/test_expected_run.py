"""The run that a tunnel's credentials name is loaded while its TLS handshake goes on."""

import asyncio
import base64
from pathlib import Path

import httpx
import pytest

from proxy.wire.access import Access
from store.run_tokens import RunTokens
from tests.support.wire import ScriptedAnswerer, open_worker, whole


async def test_the_run_of_a_tunnel_is_expected_before_its_first_request(tmp_path: Path) -> None:
    answerer = ScriptedAnswerer(whole(b"hello"))
    async with (
        open_worker(tmp_path, answerer=answerer) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("night"), verify=worker.tls) as client,
    ):
        assert (await client.get("https://api.test/x")).content == b"hello"
    assert answerer.expected_runs == ["night", "night"], "for the tunnel, and for its request"
    assert [run for _, run, _ in answerer.asked] == ["night"]


@pytest.mark.parametrize(("run", "is_expected"), [("day", True), ("night", False), ("a b", False), ("", False)])
async def test_a_run_that_the_client_may_not_name_is_not_expected(tmp_path: Path, run: str, is_expected: bool) -> None:
    place = tmp_path / "claims"
    place.mkdir()
    tokens = RunTokens(b"k" * 32, place)
    tokens.claim("night")
    answerer = ScriptedAnswerer()
    async with open_worker(tmp_path, answerer=answerer, access=Access(run_tokens=tokens)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        credentials = base64.b64encode(f"{run}:x".encode()).decode()
        writer.write(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n")
        writer.write(f"Proxy-Authorization: Basic {credentials}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert answerer.expected_runs == (["day"] if is_expected else [])
