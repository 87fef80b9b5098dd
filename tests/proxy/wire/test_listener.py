"""Connections are accepted while files are free; further ones wait."""

import asyncio
import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.capture import transparent
from proxy.errors import Failure
from proxy.wire import listener
from proxy.wire.destinations import Destinations
from proxy.wire.listener import Listener, connection_limit

LIMIT = 3


class Echo(asyncio.Protocol):
    """Sends its response once the client may have one."""

    served: set["Echo"]
    most = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.served.add(self)
        Echo.most = max(Echo.most, len(self.served))

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.served.discard(self)


async def send_word(port: int, word: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(word)
    answer = await reader.readexactly(len(word))
    writer.close()
    await writer.wait_closed()
    return answer


async def test_clients_beyond_the_limit_wait_until_others_have_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "connection_limit", lambda: LIMIT)
    monkeypatch.setattr(listener, "RETRY_AFTER", 0.001)
    Echo.served, Echo.most = set(), 0
    accepting = Listener(lambda: len(Echo.served), Echo)
    _, port = await accepting.listen("127.0.0.1", 0, reuse_port=False)
    words = [b"%03d" % number for number in range(30)]

    async with asyncio.timeout(60):
        assert await send_word(port, b"alone") == b"alone"
        assert not caplog.messages
        answers = await asyncio.gather(*(send_word(port, word) for word in words))

    assert "3 clients are connected, which is all that the hard limit of open files (ulimit -Hn) allows" in caplog.text
    accepting.close()
    assert answers == words
    assert Echo.most == LIMIT


async def test_an_address_in_use_is_said_in_a_sentence() -> None:
    one = Listener(lambda: 0, Echo)
    _, port = await one.listen("127.0.0.1", 0, reuse_port=False)
    with pytest.raises(Failure, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use"):
        await Listener(lambda: 0, Echo).listen("127.0.0.1", port, reuse_port=False)
    one.close()


async def test_both_families_of_a_name_listen_on_one_port() -> None:
    one = Listener(lambda: 0, Echo)
    Echo.served = set()
    host, port = await one.listen("localhost", 0, reuse_port=False)
    assert await send_word(port, b"hello") == b"hello"
    assert host in ("127.0.0.1", "::1")
    one.close()


@pytest.mark.parametrize("listening_socket", [listener._listening_socket, transparent._listening_socket])
async def test_answers_in_two_pieces_do_not_wait_for_an_acknowledgement(listening_socket: Callable[..., Any]) -> None:
    accepted = asyncio.get_running_loop().create_future()

    class AcceptedConnection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    args = ("127.0.0.1", 0) if listening_socket is transparent._listening_socket else (("127.0.0.1", 0),)
    endpoint = listening_socket(socket.AF_INET, *args, reuse_port=False)
    server = await asyncio.get_running_loop().create_server(AcceptedConnection, sock=endpoint)
    _, writer = await asyncio.open_connection(*endpoint.getsockname())
    async with asyncio.timeout(60):
        assert await accepted
    writer.close()
    server.close()


def test_half_of_the_files_are_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {256: 96, 1024: 480, 40: 10, 3: 1}
    for files, clients in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert connection_limit() == clients


async def test_an_upstream_is_connected_to_once_there_is_a_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.wire.destinations.RETRY_AFTER", 0.001)
    tries, rooms = [], []

    async def connect(address: str) -> str:
        tries.append(address)
        if len(tries) < 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return address

    destinations = Destinations(
        ports=frozenset(),
        allow_private=True,
        exempt_origins=frozenset(),
        own_addresses=(),
        timeout=10.0,
        make_room=lambda: rooms.append(1),
    )
    opened: Callable[[str], Awaitable[str]] = connect
    assert await destinations.connect_with("127.0.0.1", 9, opened) == "127.0.0.1"
    assert (len(tries), len(rooms)) == (4, 3)


async def test_a_name_that_found_no_file_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the lookup has failed, one or two files may be free again."""
    monkeypatch.setattr("proxy.wire.destinations.RETRY_AFTER", 0.001)
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.open(os.devnull, os.O_RDONLY))
    failed: list[tuple[Any, ...]] = []

    async def short(*name: Any, **options: Any) -> Any:
        if not failed:
            failed.append(name)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return await look_up(*name, **options)

    monkeypatch.setattr(loop, "getaddrinfo", short)

    async def connect(address: str) -> str:
        return address

    destinations = Destinations(
        ports=frozenset(), allow_private=True, exempt_origins=frozenset(), own_addresses=(), timeout=10.0
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
    try:
        assert await destinations.connect_with("127.0.0.1", 9, connect) == "127.0.0.1"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(failed) == 1


def test_a_shortage_is_seen() -> None:
    # In a separate process: threads that other tests left behind may open files.
    code = """if True:
        import os, resource
        from proxy.wire.listener import is_short_of_files
        found = [is_short_of_files()]
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        found += [is_short_of_files()]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 4, hard))
        print(found + [is_short_of_files(spare) for spare in (1, 4, 5, 1)])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, True, False, False, True, False]\n"
