"""Connections of a captured command: TLS and HTTP are recorded or answered like any other call."""

import asyncio
import contextlib
import shutil
from typing import Any

import pytest

from tests.proxy.capture.conftest import Capturing
from tests.support.h2wire import Peer, StreamBroken
from tests.support.h2workers import answer_all
from tests.support.wire import MemoryRecorder, ScriptedAnswerer, answering, api_test_at, serving, upstream_tls, whole

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_plain_request_is_recorded(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        capturing(recorder, port=upstream.port, hosts={"tools.test": "127.0.0.1"}) as capture,
    ):
        reader, writer = await capture.connect("tools.test")
        writer.write(b"GET /x HTTP/1.1\r\nHost: tools.test\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert recorder.only.begun["run"] == "run-1"
        assert recorder.only.begun["url"] == f"http://tools.test:{upstream.port}/x"


async def test_a_request_by_tls_is_recorded(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK, tls=upstream_tls("api.test")) as upstream,
        capturing(recorder, port=upstream.port, hosts={"api.test": "127.0.0.1"}) as capture,
    ):
        reader, writer = await capture.connect("api.test")
        await writer.start_tls(capture.worker.tls, server_hostname="api.test")
        writer.write(b"POST /x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 2\r\n\r\nhi")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert recorder.only.begun["url"] == f"https://api.test:{upstream.port}/x"
        assert recorder.only.body("request") == b"hi"
        assert await capture.report() == []


async def test_a_replay_answers_without_any_upstream(capturing: Capturing) -> None:
    answerer = ScriptedAnswerer(whole(b"recorded"))
    async with capturing(None, answerer) as capture:
        reader, writer = await capture.connect("gone.test")
        await writer.start_tls(capture.worker.tls, server_hostname="gone.test")
        writer.write(b"GET / HTTP/1.1\r\nHost: gone.test\r\n\r\n")
        assert (await reader.readuntil(b"recorded")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert answerer.asked[0][1] == "run-1"


async def test_what_speaks_neither_is_reset_and_named(capturing: Capturing) -> None:
    async with capturing(None, ScriptedAnswerer()) as capture:
        reader, writer = await capture.connect("db.test")
        writer.write(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        [entry] = await capture.report()
        assert entry["destination"] == f"db.test:{capture.port}"
        assert (entry["outcome"], entry["count"]) == ("refused", 1)


async def test_the_handshake_names_whom_the_certificate_is_of_and_the_address_where_it_goes(
    capturing: Capturing,
) -> None:
    """A client that resolves one name and sends a request for another, like curl with --connect-to."""
    recorder = MemoryRecorder()
    async with (
        answering(OK, tls=upstream_tls("api.test")) as upstream,
        capturing(recorder, port=upstream.port, hosts={"edge.test": "127.0.0.1", "api.test": "127.0.0.9"}) as capture,
    ):
        reader, writer = await capture.connect("edge.test")
        await writer.start_tls(capture.worker.tls, server_hostname="api.test")
        writer.write(b"GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert recorder.only.begun["url"] == f"https://api.test:{upstream.port}/x"


async def test_an_address_without_a_name_is_called_by_what_the_request_names(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        capturing(recorder, port=upstream.port, hosts={"127.18.0.2": "127.0.0.1"}) as capture,
    ):
        reader, writer = await asyncio.open_connection("127.18.0.2", capture.port)
        for host in (b"one.test", b"two.test"):
            writer.write(b"GET /x HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        urls = [exchange.begun["url"] for exchange in recorder.exchanges]
        assert urls == [f"http://{name}.test:{upstream.port}/x" for name in ("one", "two")]


async def test_a_client_of_an_address_needs_to_name_nobody_in_its_handshake(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK, tls=upstream_tls("127.18.0.2")) as upstream,
        capturing(recorder, port=upstream.port, hosts={"127.18.0.2": "127.0.0.1"}) as capture,
    ):
        reader, writer = await asyncio.open_connection("127.18.0.2", capture.port)
        await writer.start_tls(capture.worker.tls, server_hostname="127.18.0.2")
        writer.write(b"GET /x HTTP/1.1\r\nHost: 127.18.0.2\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert recorder.only.begun["url"] == f"https://127.18.0.2:{upstream.port}/x"


async def test_a_configured_upstream_stands_in_for_a_captured_host(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        capturing(recorder, upstreams=api_test_at(upstream)) as capture,
    ):
        reader, writer = await capture.connect("api.test")
        await writer.start_tls(capture.worker.tls, server_hostname="api.test")
        writer.write(b"GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert recorder.only.begun["url"] == f"https://api.test:{capture.port}/x"


async def test_the_worker_s_own_services_are_not_reached(capturing: Capturing) -> None:
    """The worker's API is at a port of this machine, by any name."""
    recorder = MemoryRecorder()
    async with (
        answering(OK) as api,
        capturing(
            recorder, port=api.port, hosts={"api.test": "127.0.0.1"}, own_addresses=(("127.0.0.1", api.port),)
        ) as capture,
    ):
        reader, writer = await capture.connect("api.test")
        writer.write(b"GET /v1/runs HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 403")
        writer.close()
        assert api.connections == 0


async def test_a_websocket_is_recorded(capturing: Capturing) -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    switch += b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

    async def upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(switch + b"\x81\x02hi")
        await reader.read()

    recorder = MemoryRecorder()
    async with (
        serving(upgrade) as upstream,
        capturing(recorder, port=upstream.port, hosts={"ws.test": "127.0.0.1"}) as capture,
    ):
        reader, writer = await capture.connect("ws.test")
        writer.write(b"GET /ws HTTP/1.1\r\nHost: ws.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        writer.write(b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 101")
        await recorder.until(lambda: recorder.only.body("response") == b"hi")
        writer.close()


async def curl(capture: Any, name: str, *options: str) -> tuple[int, str]:
    """Return curl's exit code, and the HTTP version of its response."""
    resolve = f"{name}:{capture.port}:{await capture.address(name)}"
    ca = str(capture.worker.config.authority.certificate)
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"),
        *("--cacert", ca, "--resolve", resolve, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_both_ways_to_http2(capturing: Capturing) -> None:
    """By ALPN, and in cleartext by prior knowledge, like gRPC without TLS."""
    answerer = ScriptedAnswerer(whole(b"one"), whole(b"two"), alpn=("h2", "http/1.1"))
    async with capturing(None, answerer) as capture:
        by_tls = await curl(capture, "api.test", "--http2", f"https://api.test:{capture.port}/")
        plain = await curl(capture, "api.test", "--http2-prior-knowledge", f"http://api.test:{capture.port}/")
        assert (by_tls, plain) == ((0, "2 200"), (0, "2 200"))
        urls = [asked.url for asked, _, _ in answerer.asked]
        assert urls == [f"https://api.test:{capture.port}/", f"http://api.test:{capture.port}/"]


async def test_http2_by_prior_knowledge_reaches_a_server_that_speaks_nothing_else(capturing: Capturing) -> None:
    recorder = MemoryRecorder()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(StreamBroken):
            await answer_all(Peer(reader, writer, client=False))

    async with (
        serving(speak) as upstream,
        capturing(recorder, port=upstream.port, hosts={"grpc.test": "127.0.0.1"}) as capture,
    ):
        url = f"http://grpc.test:{capture.port}/x"
        assert await curl(capture, "grpc.test", "--http2-prior-knowledge", url) == (0, "2 200")
        assert recorder.only.begun["url"] == url


async def test_a_proxy_above_is_asked_for_a_captured_host(capturing: Capturing) -> None:
    """By a name that only that proxy can resolve."""
    recorder = MemoryRecorder()
    heads: list[bytes] = []

    async def serve_tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        there, back = await asyncio.open_connection("127.0.0.1", upstream.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(pump_bytes(reader, back))
            group.create_task(pump_bytes(there, writer))

    async with (
        answering(OK, tls=upstream_tls("api.test")) as upstream,
        serving(serve_tunnel) as above,
        capturing(recorder, upstream_proxy=f"http://127.0.0.1:{above.port}") as capture,
    ):
        reader, writer = await capture.connect("api.test")
        await writer.start_tls(capture.worker.tls, server_hostname="api.test")
        writer.write(b"GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert heads[0].startswith(f"CONNECT api.test:{capture.port} ".encode())
        assert recorder.only.begun["url"] == f"https://api.test:{capture.port}/x"


async def pump_bytes(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy the bytes of one side to the other."""
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
