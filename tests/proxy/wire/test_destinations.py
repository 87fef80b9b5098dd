"""Which destinations agents may reach through the proxy, and which clients may use it."""

import asyncio
import base64
import ipaddress
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.processes.ports import free_port
from proxy.wire.access import Access
from proxy.wire.destinations import Destinations
from tests.support.wire import MemoryRecorder, Worker, answering, open_worker

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def _rules(**more: Any) -> Destinations:
    rules: dict[str, Any] = {
        "ports": frozenset({80, 443}),
        "allow_private": False,
        "exempt_origins": frozenset(),
        "own_addresses": (("127.0.0.1", 8081),),
        "timeout": 5.0,
    }
    return Destinations(**(rules | more))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_an_address_that_is_not_public_is_prohibited(address: str) -> None:
    problem = _rules().address_refusal("name.test", ipaddress.ip_address(address), 443)
    assert problem is not None
    assert (problem.status, problem.code) == (403, "destination_prohibited")


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]
)
def test_a_public_address_is_allowed(address: str) -> None:
    assert _rules().address_refusal("name.test", ipaddress.ip_address(address), 443) is None


@given(st.ip_addresses())
def test_no_address_is_both_refused_and_allowed_by_permission(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert _rules(allow_private=True).address_refusal("name.test", address, 443) is None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_every_disguise(address: ipaddress.IPv4Address) -> None:
    plain = _rules().address_refusal("name.test", address, 443)
    for disguise in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert (_rules().address_refusal("name.test", ipaddress.ip_address(disguise), 443) is None) == (plain is None)


@pytest.mark.parametrize("port", [22, 25, 5432, 8080])
def test_only_the_ports_of_the_web_are_open(port: int) -> None:
    assert _rules().name_refusal("api.test", port) is not None
    assert _rules(ports=frozenset({80, 443, port})).name_refusal("api.test", port) is None


def test_a_configured_upstream_is_exempt() -> None:
    rules = _rules(exempt_origins=frozenset({("127.0.0.1", 9000)}))
    assert rules.name_refusal("127.0.0.1", 9000) is None
    assert rules.address_refusal("127.0.0.1", ipaddress.ip_address("127.0.0.1"), 9000) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"])
def test_our_own_address_is_never_reached_whatever_is_allowed(address: str) -> None:
    rules = _rules(allow_private=True, exempt_origins=frozenset({(address, 8081), ("name.test", 8081)}))
    problem = rules.address_refusal("name.test", ipaddress.ip_address(address), 8081)
    assert problem is not None
    assert "own address" in problem.detail


async def _connect(worker: Worker, target: str, *fields: str) -> tuple[int, dict[str, Any]]:
    return await _send_head(worker, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n", *fields)


async def _get(worker: Worker, url: str, *fields: str) -> tuple[int, dict[str, Any]]:
    return await _send_head(worker, f"GET {url} HTTP/1.1\r\nHost: x.test\r\n", *fields)


async def _send_head(worker: Worker, head: str, *fields: str) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write((head + "".join(f"{field}\r\n" for field in fields) + "\r\n").encode())
    try:
        got = await reader.readuntil(b"\r\n\r\n")
        length = got.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length)) if length else b""
        return int(got[9:12]), json.loads(body) if body.startswith(b"{") else {}
    finally:
        writer.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://[::1]/",
        "http://2852039166/",
        "http://0xA9FEA9FE/",
        "http://0251.0376.0251.0376/",
        "http://127.1/",
        "http://0.0.0.0/",
    ],
)
async def test_an_agent_does_not_get_inside(tmp_path: Path, url: str) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder) as worker:
        status, problem = await _get(worker, url)
    assert (status, problem["error"]["code"]) == (403, "destination_prohibited")
    assert [exchange.outcome for exchange in recorder.exchanges] == ["refused"]


async def test_a_request_with_a_body_to_a_loopback_address_is_refused(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MemoryRecorder()) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"POST http://127.1/ HTTP/1.1\r\nHost: 127.1\r\nContent-Length: 5\r\n\r\nhello")
        assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")
        writer.close()


@pytest.mark.parametrize("target", ["api.test:22", "api.test:25", "127.0.0.1:443", "[::1]:443"])
async def test_a_tunnel_inside_is_refused_at_once(tmp_path: Path, target: str) -> None:
    async with open_worker(tmp_path, MemoryRecorder()) as worker:
        status, problem = await _connect(worker, target)
    assert (status, problem["error"]["code"]) == (403, "destination_prohibited")


async def test_a_name_that_points_inside_is_refused_at_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is resolved once, and that address is both checked and used, which defeats DNS rebinding."""
    lookups: list[str] = []

    def resolve(host: str, port: int, *_: Any, **__: Any) -> Any:
        lookups.append(host)
        address = "93.184.216.34" if len(lookups) > 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async with (
        answering(OK) as upstream,
        open_worker(tmp_path, MemoryRecorder(), connect_ports=(upstream.port,)) as worker,
    ):
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        status, _ = await _get(worker, f"http://rebinding.test:{upstream.port}/")
        monkeypatch.undo()
        assert (status, upstream.connections) == (403, 0)
    assert lookups == ["rebinding.test"]


async def test_of_several_addresses_only_an_allowed_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(host: str, port: int, **_: Any) -> Any:
        tried.append(host)
        raise ConnectionRefusedError(111, "refused")

    tried: list[str] = []
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 443, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(asyncio, "open_connection", nobody)
    with pytest.raises(Exception, match="refused"):
        await _rules().connect("both.test", 443)
    assert tried == ["93.184.216.34"]


async def test_private_addresses_can_be_allowed(tmp_path: Path) -> None:
    async with (
        answering(OK) as upstream,
        open_worker(tmp_path, MemoryRecorder(), allow_private=True, connect_ports=(upstream.port,)) as worker,
    ):
        assert (await _get(worker, f"http://127.0.0.1:{upstream.port}/"))[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_our_own_api_is_out_of_reach(tmp_path: Path, host: str) -> None:
    async with answering(OK) as api:
        settings: dict[str, Any] = {
            "allow_private": True,
            "connect_ports": (api.port,),
            "own_addresses": (("127.0.0.1", api.port),),
            "upstreams": {"api.test": f"http://127.0.0.1:{api.port}"},
        }
        async with open_worker(tmp_path, MemoryRecorder(), **settings) as worker:
            status, problem = await _get(worker, f"http://{host}:{api.port}/v1/runs")
            assert (status, problem["error"]["code"]) == (403, "destination_prohibited")
            assert (await _get(worker, "http://api.test/v1/runs"))[0] == 403
        assert api.connections == 0


async def test_one_origin_may_stand_in_for_all_hosts_below_a_name(tmp_path: Path) -> None:
    async with answering(OK) as near, answering(OK) as far:
        origins = {name: f"http://127.0.0.1:{one.port}" for name, one in (("*.Tools.test", near), ("*.test", far))}
        async with open_worker(tmp_path, MemoryRecorder(), upstreams=origins) as worker:
            for host, connections in (("a.b.tools.test", (1, 0)), ("tools.test", (1, 1))):
                assert (await _get(worker, f"http://{host}/"))[0] == 200
                assert (near.connections, far.connections) == connections


async def test_we_do_not_call_ourselves(tmp_path: Path) -> None:
    port = free_port("127.0.0.1", 0)
    async with open_worker(tmp_path, MemoryRecorder(), port=port, allow_private=True, connect_ports=(port,)) as worker:
        assert (await _get(worker, f"http://127.0.0.1:{port}/"))[0] == 403


# Which clients may use the proxy


def _basic(user: str, password: str) -> str:
    return "Proxy-Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [_basic("run-1", "wrong")],
        [_basic("run-1", "")],
        ["Proxy-Authorization: Basic !!!"],
        ["Proxy-Authorization: Bearer secret"],
    ],
)
async def test_without_the_token_nobody_gets_anything(
    tmp_path: Path, fields: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Destinations, "connect", None)  # not even a name may be resolved
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, access=Access(tokens=("secret",))) as worker:
        for status, problem in (
            await _connect(worker, "api.test:443", *fields),
            await _get(worker, "http://api.test/", *fields),
        ):
            assert (status, problem["error"]["code"]) == (407, "token_required")
    assert not recorder.exchanges


async def test_the_token_opens(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, access=Access(tokens=("sécret",)), upstream=answering(OK)) as worker:
        assert (await _get(worker, "http://api.test/", _basic("team:night-1", "sécret")))[0] == 200
        assert (await _connect(worker, "api.test:443", _basic("run-1", "sécret")))[0] == 200
    assert recorder.only.begun["run"] == "team:night-1"


async def test_on_loopback_any_token_will_do_where_none_is_set(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MemoryRecorder()) as worker:
        assert (await _connect(worker, "api.test:443", _basic("run-1", "anything")))[0] == 200
        assert (await _connect(worker, "api.test:443"))[0] == 200


@pytest.mark.parametrize("run", ["a b", "x/../y", "é", "a" * 129])
async def test_a_client_that_cannot_name_a_run_gets_the_reason(tmp_path: Path, run: str) -> None:
    async with open_worker(tmp_path, MemoryRecorder()) as worker:
        status, problem = await _connect(worker, "api.test:443", _basic(run, "x"))
    assert (status, problem["error"]["code"]) == (400, "bad_run")
