"""Where requests go: overrides, reverse mode, tunnels, upstream proxies and certificates."""

import asyncio
import base64
import datetime
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from proxy.errors import Failure, first_exception
from proxy.wire.access import Access
from tests.support.h2wire import Peer
from tests.support.wire import (
    MemoryRecorder,
    ScriptedAnswerer,
    Upstream,
    Worker,
    answering,
    api_test_at,
    connect_through,
    open_worker,
    serving,
    upstream_ca,
    upstream_tls,
    whole,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


async def _get(worker: Worker, url: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls) as client:
        return await client.get(url, **more)


# Overrides


@pytest.mark.parametrize("url", ["https://api.test/x", "http://api.test/x", "https://api.test:8443/x"])
async def test_another_origin_is_contacted_and_the_record_keeps_the_host(tmp_path: Path, url: str) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        open_worker(
            tmp_path,
            recorder,
            upstreams={"API.test": f"http://127.0.0.1:{upstream.port}"},
        ) as worker,
    ):
        assert (await _get(worker, url)).text == "hello"
    host = url.split("/")[2]
    assert f"\r\nHost: {host}\r\n".encode() in upstream.heads[0]
    assert recorder.only.begun["url"] == url


async def test_an_override_may_be_for_one_port(tmp_path: Path) -> None:
    async with (
        answering(OK) as upstream,
        open_worker(
            tmp_path, MemoryRecorder(), upstreams={"api.test:443": f"http://127.0.0.1:{upstream.port}"}
        ) as worker,
    ):
        assert (await _get(worker, "https://api.test/x")).text == "hello"
        response = await _get(worker, "http://api.test/x")
    assert response.status_code == 502


@pytest.mark.parametrize("names", [("127.0.0.1",), ("localhost",)])
async def test_an_override_may_lead_to_tls(tmp_path: Path, names: tuple[str, ...]) -> None:
    async with (
        answering(OK, tls=upstream_tls(*names)) as upstream,
        open_worker(
            tmp_path, MemoryRecorder(), upstreams={"api.test": f"https://{names[0]}:{upstream.port}"}
        ) as worker,
    ):
        assert (await _get(worker, "https://api.test/x")).text == "hello"
        assert (await _get(worker, "http://api.test/x")).text == "hello"


# Certificates


@asynccontextmanager
async def _with_certificate(configure: Any) -> AsyncIterator[Upstream]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    configure(context)
    async with answering(OK, tls=context) as upstream:
        yield upstream


def _use_expired_certificate(context: ssl.SSLContext) -> None:
    upstream_ca().issue_cert(
        "localhost", not_after=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    ).configure_cert(context)


def _for_another(context: ssl.SSLContext) -> None:
    upstream_ca().issue_cert("other.test").configure_cert(context)


def _by_a_stranger(context: ssl.SSLContext) -> None:
    trustme.CA().issue_cert("localhost").configure_cert(context)


@pytest.mark.parametrize("alpn", ["h2", "http/1.1"])
@pytest.mark.parametrize(
    ("configure", "why"),
    [(_use_expired_certificate, "expired"), (_for_another, "mismatch"), (_by_a_stranger, "unable to get local issuer")],
)
async def test_a_certificate_that_is_not_valid_is_never_accepted(
    tmp_path: Path, configure: Any, why: str, alpn: str
) -> None:
    recorder = MemoryRecorder()
    async with (
        _with_certificate(configure) as upstream,
        open_worker(tmp_path, recorder, allow_private=True, connect_ports=(upstream.port,)) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls, http2=alpn == "h2") as client,
    ):
        response = await client.post(f"https://localhost:{upstream.port}/x", content=b"secret")
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "tls_certificate_error"
    assert why in response.json()["detail"]
    assert not upstream.heads
    assert recorder.only.outcome == "server_closed"


@pytest.mark.engine("mitmproxy")
async def test_a_failed_handshake_is_tried_again_for_the_next_request(tmp_path: Path) -> None:
    """The first upstream handshake happens before the client's, to learn the upstream's protocol."""
    upstream = Upstream()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if upstream.connections == 1:
            return
        await writer.start_tls(upstream_tls("localhost"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()

    async with (
        serving(handler, upstream=upstream),
        open_worker(tmp_path, MemoryRecorder(), allow_private=True, connect_ports=(upstream.port,)) as worker,
    ):
        reader, writer = await connect_through(worker, f"localhost:{upstream.port}", alpn=("http/1.1", "h2"))
        assert upstream.connections == 1
        writer.write(f"GET / HTTP/1.1\r\nHost: localhost:{upstream.port}\r\n\r\n".encode())
        assert await reader.readexactly(len(OK)) == OK
        writer.close()


async def test_an_upstream_that_does_not_speak_tls_is_a_502(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"220 smtp.test ESMTP\r\n")
        await reader.read()

    async with (
        serving(handler) as upstream,
        open_worker(tmp_path, MemoryRecorder(), upstreams={"api.test": f"https://127.0.0.1:{upstream.port}"}) as worker,
    ):
        response = await _get(worker, "https://api.test/x")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "tls_failed")


async def test_a_private_ca_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with open_worker(tmp_path, upstream_ca=str(tmp_path / "none.pem")):
            pass
    assert raised.group_contains(Failure, match=r"none\.pem cannot be read")
    assert isinstance(first_exception(raised.value), Failure), "what a worker says of itself, out of its task groups"


async def test_a_private_ca_without_a_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("-----BEGIN NOTHING-----\n")
    with pytest.raises(ExceptionGroup) as raised:
        async with open_worker(tmp_path, upstream_ca=str(tmp_path / "none.pem")):
            pass
    assert raised.group_contains(Failure, match=r"none\.pem holds no certificate")


# Reverse mode


async def test_a_worker_in_front_of_one_origin(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        open_worker(tmp_path, recorder, reverse=f"http://127.0.0.1:{upstream.port}") as worker,
        httpx.AsyncClient(timeout=60) as client,
    ):
        assert (await client.get(f"{worker.url}/~run-8/v1/x?y=/~z/")).text == "hello"
        assert (await client.get(f"{worker.url}/v1/x", headers={"X-Playhead-Run": "run-9"})).text == "hello"
        assert (await client.get(f"{worker.url}/~run-8")).text == "hello"
    host = f"127.0.0.1:{upstream.port}"
    assert [head.split(b" HTTP")[0] for head in upstream.heads] == [b"GET /v1/x?y=/~z/", b"GET /v1/x", b"GET /"]
    assert all(f"\r\nHost: {host}\r\n".encode() in head for head in upstream.heads)
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == ["run-8", "run-9", "run-8"]
    assert recorder.exchanges[0].begun["url"] == f"http://{host}/v1/x?y=/~z/"


async def test_a_worker_in_front_of_an_origin_with_tls(tmp_path: Path) -> None:
    async with (
        answering(OK, tls=upstream_tls("localhost")) as upstream,
        open_worker(tmp_path, MemoryRecorder(), reverse=f"https://localhost:{upstream.port}") as worker,
        httpx.AsyncClient(timeout=60) as client,
    ):
        assert (await client.post(f"{worker.url}/~run-8/v1/x", content=b"a" * 2_000_000)).text == "hello"
    assert upstream.bodies == [b"a" * 2_000_000]


async def test_in_reverse_a_client_may_begin_with_http2(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK, tls=upstream_tls("localhost")) as upstream,
        open_worker(tmp_path, recorder, reverse=f"https://localhost:{upstream.port}") as worker,
        httpx.AsyncClient(timeout=60, http1=False, http2=True) as client,
    ):
        answer = await client.post(f"{worker.url}/~run-8/v1/x", content=b"question")
        assert (answer.http_version, answer.text) == ("HTTP/2", "hello")
    assert upstream.bodies == [b"question"]
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == ["run-8"]


async def test_in_reverse_a_token_may_stand_in_the_path(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        open_worker(
            tmp_path, recorder, access=Access(tokens=("s3cret",)), reverse=f"http://127.0.0.1:{upstream.port}"
        ) as worker,
        httpx.AsyncClient(timeout=60) as client,
    ):
        refused = await client.get(f"{worker.url}/~run-8/v1/x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "token_required")
        assert (await client.get(f"{worker.url}/~run-8~s3cret/v1/x")).text == "hello"
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == ["run-8"]
    assert upstream.heads[0].startswith(b"GET /v1/x HTTP")


async def test_in_reverse_a_recording_answers(tmp_path: Path) -> None:
    answerer = ScriptedAnswerer(whole(b"recorded"))
    async with (
        open_worker(tmp_path, answerer=answerer, reverse="https://api.nowhere.invalid") as worker,
        httpx.AsyncClient(timeout=60) as client,
    ):
        assert (await client.get(f"{worker.url}/~run-8/v1/x")).text == "recorded"
    request, run, _ = answerer.asked[0]
    assert (request.url, run) == ("https://api.nowhere.invalid/v1/x", "run-8")


# Tunnels


async def test_a_host_on_the_tunnel_list_passes_undecrypted_and_is_noted(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    settings: dict[str, Any] = {"allow_private": True, "tunnel": ("localhost", "*.pinned.test")}
    trust = ssl.create_default_context()
    upstream_ca().configure_trust(trust)
    async with (
        answering(OK, tls=upstream_tls("localhost")) as upstream,
        open_worker(tmp_path, recorder, connect_ports=(upstream.port,), **settings) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("run-5"), verify=trust) as client,
    ):
        assert (await client.get(f"https://localhost:{upstream.port}/x")).text == "hello"
    assert not recorder.exchanges
    assert recorder.gaps == [("run-5", "localhost is on the tunnel list and was forwarded undecrypted", None)]


async def test_a_client_that_does_not_trust_the_ca_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder) as worker:
        for run in ("run-5", "run-5", "run-6"):
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await asyncio.to_thread(_get_without_trust, worker.proxy(run))
        await _wait_for_count(worker, "errors/ca_not_trusted", 3)
    assert not recorder.exchanges
    assert [(run, why.partition(" (")[0]) for run, why, _ in recorder.gaps] == [
        (run, "a connection to api.test was refused by its client: the client does not trust Playhead's certificate")
        for run in ("run-5", "run-6")
    ]
    assert caplog.text.count("a connection to api.test was refused by its client") == 1


async def _wait_for_count(worker: Worker, counter: str, count: int) -> None:
    async with asyncio.timeout(60):
        while worker.config.counts[counter] < count:  # noqa: ASYNC110 - a counter sends no events
            await asyncio.sleep(0.01)


def _get_without_trust(proxy: str) -> None:
    # Blocking, since clients on asyncio leave without an alert.
    with httpx.Client(timeout=60, proxy=proxy, verify=ssl.create_default_context()) as client:
        client.get("https://api.test/x")


async def test_a_client_that_leaves_in_the_handshake_is_named_and_its_run_lacks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder) as worker:
        # Without an alert, as clients on asyncio.
        async with httpx.AsyncClient(proxy=worker.proxy("run-5"), verify=ssl.create_default_context()) as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get("https://api.test/x")
        await _wait_for_count(worker, "errors/client_left_handshake", 1)
    assert not recorder.gaps
    assert "a connection to api.test was refused by its client: the client left in the TLS handshake" in caplog.text


async def test_a_tunnel_is_not_let_inside_either(tmp_path: Path) -> None:
    async with (
        answering(OK) as upstream,
        open_worker(tmp_path, MemoryRecorder(), tunnel=("localhost",), connect_ports=(upstream.port,)) as worker,
    ):
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await connect_through(worker, f"localhost:{upstream.port}")
        assert upstream.connections == 0


async def test_a_tunnel_cannot_be_answered_from_a_recording(tmp_path: Path) -> None:
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(), tunnel=("*.pinned.test",)) as worker:
        with pytest.raises(ConnectionRefusedError, match="tunnel_in_replay"):
            await connect_through(worker, "api.pinned.test:443")


async def test_what_is_neither_tls_nor_http_is_noted(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(8)).upper())
        await reader.read()

    recorder = MemoryRecorder()
    async with (
        serving(handler) as upstream,
        open_worker(tmp_path, recorder, allow_private=True, connect_ports=(upstream.port,)) as worker,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(f"CONNECT localhost:{upstream.port} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x01\x02ab cde")
        assert await reader.readexactly(8) == b"\x01\x02AB CDE"
        writer.close()
    assert len(recorder.gaps) == 1
    assert "neither TLS nor HTTP" in recorder.gaps[0][1]


async def test_in_replay_it_is_not_let_through(tmp_path: Path) -> None:
    async with open_worker(tmp_path, answerer=ScriptedAnswerer()) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"CONNECT localhost:443 HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x01\x02ab cde")
        assert await reader.read() == b""
        writer.close()


# Upstream proxies


@asynccontextmanager
async def _proxy_above(heads: list[bytes], origin: int) -> AsyncIterator[Upstream]:
    """A forward proxy that connects everything to one port."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        if not head.startswith(b"CONNECT "):
            writer.write(OK)
            return
        if b"denied.test" in head:
            writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
            return
        there, back = await asyncio.open_connection("127.0.0.1", origin)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, back))
            group.create_task(_pump(there, writer))

    async with serving(handler) as proxy:
        yield proxy


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
    except OSError:
        pass
    finally:
        sink.close()


async def test_a_proxy_above_is_asked_for_everything(tmp_path: Path) -> None:
    heads: list[bytes] = []
    recorder = MemoryRecorder()
    async with answering(OK, tls=upstream_tls("api.test")) as upstream, _proxy_above(heads, upstream.port) as above:
        settings: dict[str, Any] = {"upstream_proxy": f"http://user:p%40ss@127.0.0.1:{above.port}"}
        async with open_worker(tmp_path, recorder, **settings) as worker:
            assert (await _get(worker, "https://api.test/x")).text == "hello"
            assert (await _get(worker, "http://plain.test/y?z")).text == "hello"
            denied = await _get(worker, "https://denied.test/x")
    credentials = b"Proxy-Authorization: Basic " + base64.b64encode(b"user:p@ss")
    assert heads[0].startswith(b"CONNECT api.test:443 HTTP/1.1\r\n")
    assert heads[1].startswith(b"GET http://plain.test/y?z HTTP/1.1\r\n")
    assert all(credentials in head for head in heads)
    assert credentials not in upstream.heads[0]
    assert denied.status_code == 502
    assert [exchange.begun["url"] for exchange in recorder.exchanges[:2]] == [
        "https://api.test/x",
        "http://plain.test/y?z",
    ]
    assert all(
        "p@ss" not in str(exchange.begun) and "Basic" not in str(exchange.begun) for exchange in recorder.exchanges
    )


async def test_a_proxy_above_speaks_http_2_through(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, client=False)
        stream, _ = await peer.request()
        peer.respond(stream, [(":status", "200")], [b"two"])
        await reader.read()

    heads: list[bytes] = []
    async with (
        serving(handler, tls=upstream_tls("api.test", alpn=("h2",))) as upstream,
        _proxy_above(heads, upstream.port) as above,
        open_worker(tmp_path, MemoryRecorder(), upstream_proxy=f"http://127.0.0.1:{above.port}") as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2", "http/1.1"))
        peer = Peer(reader, writer, client=True)
        assert (await peer.answer(peer.ask("api.test", "/x"))).body == b"two"
        writer.close()


async def test_an_override_does_not_go_by_the_proxy_above(tmp_path: Path) -> None:
    heads: list[bytes] = []
    async with answering(OK) as upstream, _proxy_above(heads, 1) as above:
        settings: dict[str, Any] = {
            "upstream_proxy": f"http://127.0.0.1:{above.port}",
            "upstreams": api_test_at(upstream),
        }
        async with open_worker(tmp_path, MemoryRecorder(), **settings) as worker:
            assert (await _get(worker, "https://api.test/x")).text == "hello"
            assert (await _get(worker, "http://api.test/x")).text == "hello"
    assert not heads
    assert upstream.heads[1].startswith(b"GET /x HTTP/1.1\r\n")


# Many workers, one port; other clients


async def test_several_workers_share_a_port(tmp_path: Path) -> None:
    one, two = ScriptedAnswerer(*[whole(b"1")] * 40), ScriptedAnswerer(*[whole(b"2")] * 40)
    async with (
        open_worker(tmp_path, answerer=one, reuse_port=True) as first,
        open_worker(tmp_path, answerer=two, reuse_port=True, port=first.port) as second,
    ):
        assert second.port == first.port
        texts = {(await _get(first, "http://nowhere.invalid/")).text for _ in range(40)}
    # The kernel spreads connections by their addresses: forty at one worker only would be a chance of 1 in 2^39.
    assert texts == {"1", "2"}


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with open_worker(tmp_path) as worker:
        with pytest.raises(ExceptionGroup) as raised:
            async with open_worker(tmp_path, port=worker.port):
                pass
    assert raised.group_contains(Failure, match=f"cannot listen on 127.0.0.1:{worker.port}: .*choose another port")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("flag", ["--http1.1", "--http2"])
async def test_curl_goes_through(tmp_path: Path, flag: str) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        command = [
            "curl",
            "-sS",
            flag,
            "--proxy",
            worker.proxy("run-c"),
            "--cacert",
            str(worker.config.authority.certificate),
        ]
        curl = await asyncio.create_subprocess_exec(
            *command, "-d", "asked", "https://api.test/x", stdout=subprocess.PIPE
        )
        out, _ = await curl.communicate()
    assert out == b"hello"
    assert (recorder.only.begun["run"], recorder.only.body("request")) == ("run-c", b"asked")


NODE = """
const https = require('https'), net = require('net'), tls = require('tls');
const [port, ca] = process.argv.slice(1);
const s = net.connect(port, '127.0.0.1', () => s.write('CONNECT api.test:443 HTTP/1.1\\r\\nHost: api.test:443\\r\\n\\r\\n'));
s.once('data', () => {
  const t = tls.connect({ socket: s, servername: 'api.test', ca: require('fs').readFileSync(ca) });
  https.get({ host: 'api.test', path: '/x', createConnection: () => t }, r => {
    r.on('data', d => console.log(JSON.stringify([r.statusCode, d.toString(), t.authorized])));
    r.on('end', () => t.destroy());
  });
});
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
async def test_node_trusts_our_leaves(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MemoryRecorder(), upstream=answering(OK)) as worker:
        node = await asyncio.create_subprocess_exec(
            "node", "-e", NODE, str(worker.port), str(worker.config.authority.certificate), stdout=subprocess.PIPE
        )
        out, _ = await node.communicate()
    assert json.loads(out) == [200, "hello", True]
