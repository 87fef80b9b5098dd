"""Which sockets a command would inherit, and what passed on them."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from proxy.capture.inherited import UNCONNECTED, InheritedSocket, inherited_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are read from /proc")


@pytest.fixture
def open_sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _connect(stack: ExitStack) -> tuple[socket.socket, socket.socket, socket.socket]:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(socket.create_connection(listener.getsockname()))
    server = stack.enter_context(listener.accept()[0])
    return listener, client, server


def _find(one: socket.socket, *allowed: tuple[str, int]) -> InheritedSocket | None:
    return next((found for found in inherited_sockets(allowed) if found.descriptor == one.fileno()), None)


def test_a_connection_of_the_shell_is_found_with_the_bytes_that_pass_later(open_sockets: ExitStack) -> None:
    _, client, server = _connect(open_sockets)
    assert _find(client) is None
    client.set_inheritable(True)
    client.send(b"before")
    assert server.recv(10) == b"before"
    found = _find(client)
    assert found is not None
    place = f"127.0.0.1:{client.getpeername()[1]}"
    assert found.destination == place
    assert (found.passage()["sent"], found.passage()["received"]) == (0, 0)
    client.send(b"question")
    server.send(b"an answer")
    assert client.recv(9, socket.MSG_WAITALL) == b"an answer"
    assert (found.passage()["sent"], found.passage()["received"]) == (8, 9)
    assert _find(client, client.getpeername()) is None


def test_only_sockets_that_can_reach_others_are_found(open_sockets: ExitStack) -> None:
    listener, client, server = _connect(open_sockets)
    own, other = map(open_sockets.enter_context, socket.socketpair())
    datagrams = open_sockets.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
    for one in (listener, client, server, own, other, datagrams):
        one.set_inheritable(True)
    assert _find(listener) is None
    assert _find(own) is None
    assert _find(other) is None
    assert _find(server) is not None
    found = _find(datagrams)
    assert found is not None
    assert found.destination == UNCONNECTED
    datagrams.connect(("::1", 9))
    found = _find(datagrams)
    assert found is not None
    assert found.destination == "[::1]:9"
