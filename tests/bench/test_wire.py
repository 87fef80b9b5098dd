"""Connections that never block lose nothing."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import trustme

from bench.wire import Connection


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Who trusts, and who is trusted."""
    authority = trustme.CA()
    client, server = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(client)
    authority.issue_cert("localhost").configure_cert(server)
    return client, server


def test_what_comes_with_the_end_of_the_handshake_is_received() -> None:
    trust, trusted = contexts()
    here, there = socket.socketpair(socket.AF_UNIX)

    def ask() -> Connection:
        connection = Connection(here, trust, server_hostname="localhost")
        connection.send(b"question")
        return connection

    with ThreadPoolExecutor() as threads:
        asking = threads.submit(ask)
        with closing(Connection(there, trusted, server_side=True)) as server, closing(asking.result()):
            while (data := server.receive()) is None:
                server.wait(reading=True)
            assert data == b"question"


def test_what_does_not_go_at_once_goes_later_and_in_order() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    data = bytes(range(256)) * 8192
    with closing(Connection(here, None)) as sending, closing(Connection(there, None)) as receiving:
        sending.send(data)
        assert sending.waits
        came = b""
        while len(came) < len(data):
            came += receiving.receive() or b""
            sending.send()
        assert came == data
        assert not sending.waits


def test_the_end_is_not_half_a_record() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with closing(Connection(there, None)) as receiving:
        assert receiving.receive() is None
        here.close()
        assert receiving.receive() == b""
