"""Captured connections without a namespace: names get addresses in 127.0.0.0/8, on all of which a socket can listen."""

import asyncio
import inspect
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.capture.dns import message as dns_message
from proxy.capture.dns import resolver
from proxy.capture.dns import synthetic_addresses as names
from tests.support import wire


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function) and "capturing" in metafunc.fixturenames:
        metafunc.parametrize("engine", list(wire.ENGINES), indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine under test."""
    name: str = getattr(request, "param", "mitmproxy")
    monkeypatch.setattr(wire, "engine", name)
    return name


@pytest.fixture(autouse=True)
def _loopback_names(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = ipaddress.IPv4Network("127.18.0.0/16")
    monkeypatch.setattr(names, "IPV4", loopback)
    monkeypatch.setattr(resolver, "IPV4", loopback)


class Launcher:
    """The command's end of the control socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)

    async def send(self, message: bytes | dict[str, Any], sockets: Sequence[socket.socket] = ()) -> dict[str, Any]:
        """Send a message, and return the answer."""
        if self._socket.getsockname() == "" and not _is_connected(self._socket):
            self._socket.connect(str(self._path))
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self._socket, [data], [one.fileno() for one in sockets])
        return dict(json.loads(await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)))

    def close(self) -> None:
        """End the capture."""
        self._socket.close()


def _is_connected(endpoint: socket.socket) -> bool:
    try:
        endpoint.getpeername()
    except OSError:
        return False
    return True


@dataclass
class Capture:
    """A capture that a worker serves."""

    worker: wire.Worker
    port: int
    dns_port: int
    launcher: Launcher
    resolved: dict[str, str] = field(default_factory=dict)

    async def report(self) -> list[dict[str, Any]]:
        """Return the worker's report of the connections."""
        found: list[dict[str, Any]] = (await self.launcher.send({"report": True}))["connections"]
        return found

    async def query(self, name: str, kind: int) -> bytes:
        """Return the response of the worker's DNS server."""
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        asked = b"\x12\x34\x01\x00\0\1\0\0\0\0\0\0" + labels + b"\0" + kind.to_bytes(2) + b"\0\1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as client:
            # The answer has to come from this address, which is not the socket's own.
            client.connect(("127.0.0.53", self.dns_port))
            client.send(asked)
            return await asyncio.get_running_loop().sock_recv(client, 4096)

    async def address(self, name: str) -> str:
        """Return the IPv4 address of a name."""
        reply = await self.query(name, dns_message.A)
        assert reply[3] & 15 == 0, reply
        assert reply[6:8] == b"\0\1", reply
        return socket.inet_ntoa(reply[-4:])

    async def connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a name like a captured command."""
        return await asyncio.open_connection(await self.address(name), self.port)


def listening(number: int, port: int) -> socket.socket:
    """Bind a socket to the address that the first, second, … resolved name gets."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((f"127.18.0.{number}", port))
    listener.listen()
    return listener


def _datagrams() -> socket.socket:
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.bind(("0.0.0.0", 0))
    return endpoint


type Capturing = Callable[..., Any]


@pytest.fixture
def capturing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capturing:
    """Start a worker and begin a capture on one port. `hosts` are the names that the host's resolver knows."""

    @asynccontextmanager
    async def capture(
        recorder: wire.MemoryRecorder | None = None,
        answerer: Any = None,
        *,
        port: int = 0,
        hosts: dict[str, str] | None = None,
        message: dict[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Capture]:
        known = hosts or {}
        _resolve_with(monkeypatch, known)
        control = tmp_path / "control" / "worker.sock"
        async with wire.open_worker(
            tmp_path, recorder, answerer, finds_owners=True, control=control, **settings
        ) as worker:
            launcher = Launcher(control)
            with listening(1, port) as tcp, listening(2, tcp.getsockname()[1]) as second, _datagrams() as dns:
                ports = tcp.getsockname()[1], dns.getsockname()[1]
                kinds = [{"kind": "tcp", "destination": "local"}] * 2 + [{"kind": "dns"}]
                asked = {"run": "run-1", "sockets": kinds}
                reply = await launcher.send(asked | (message or {}), [tcp, second, dns])
            assert reply == {"ready": True, "recorded_ports": []}
            try:
                yield Capture(worker, *ports, launcher)
            finally:
                launcher.close()

    return capture


def _resolve_with(monkeypatch: pytest.MonkeyPatch, known: dict[str, str]) -> None:
    def resolution(name: str) -> resolver.Resolution:
        if name not in known:
            return resolver.Resolution(dns_message.NO_SUCH_NAME, None)
        # The resolver must see a public address, because it returns a loopback address unchanged.
        return resolver.Resolution(dns_message.NO_ERROR, (ipaddress.ip_address("192.0.2.1"),))

    async def getaddrinfo(loop: Any, host: str, port: Any, **more: Any) -> Any:
        return await asyncio.to_thread(socket.getaddrinfo, known.get(host, host), port, type=socket.SOCK_STREAM)

    monkeypatch.setattr(resolver, "host_resolution", resolution)
    from proxy.wire import destinations

    async def resolve(host: str, port: int) -> list[Any]:
        return [ipaddress.ip_address(known.get(host, host))]

    monkeypatch.setattr(destinations, "_resolve", resolve)
