"""The HTTP client that uses its connections again."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from unittest.mock import patch

import pytest

from proxy.processes import http_reader
from proxy.processes.http_client import HttpError, HttpTimeout
from proxy.processes.http_reader import HttpReader
from tests.proxy.processes.test_http_client import read_head

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LAST = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


@contextmanager
def answering(*connections: Sequence[bytes], timeout: float = 30) -> Iterator[HttpReader]:
    """A client of a server that gives these answers on each of its connections, and then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                with listener.accept()[0] as connection:
                    for answer in answers:
                        assert b"/v1/x?project=p HTTP/1.1\r\n" in read_head(connection)
                        connection.sendall(answer)
                    if not answers:
                        connection.recv(1 << 16)

        server = Thread(target=serve, daemon=True)
        server.start()
        yield HttpReader(f"http://127.0.0.1:{listener.getsockname()[1]}", headers={"a": "b"}, timeout=timeout)
        server.join(10)
        assert not server.is_alive(), "a connection was not asked for"


def get(client: HttpReader) -> bytes:
    return client.get("/v1/x", {"project": "p"}).content


def test_requests_share_a_connection() -> None:
    with answering([WHOLE, WHOLE, WHOLE]) as client:
        assert [get(client) for _ in range(3)] == [b"ok"] * 3


def test_one_that_the_server_has_closed_is_replaced() -> None:
    with answering([WHOLE], [WHOLE]) as client:
        assert [get(client) for _ in range(2)] == [b"ok"] * 2


def test_one_that_the_server_is_about_to_close_is_not_kept() -> None:
    with answering([LAST]) as client:
        assert get(client) == b"ok"
        assert not client._idle


def test_one_that_was_idle_for_long_is_not_tried() -> None:
    with answering([WHOLE], [WHOLE]) as client:
        assert get(client) == b"ok"
        with patch.object(http_reader, "KEPT_FOR", 0.0), patch.object(client, "_ask", wraps=client._ask) as asked:
            assert get(client) == b"ok"
        assert asked.call_count == 1


def test_only_so_many_are_kept() -> None:
    with patch.object(http_reader, "MOST_KEPT", 0), answering([WHOLE]) as client:
        assert get(client) == b"ok"
        assert not client._idle


def test_a_server_that_has_ended_is_reported() -> None:
    with answering([WHOLE]) as client:
        assert get(client) == b"ok"
    with pytest.raises(HttpError, match="refused"):
        get(client)


def test_a_request_that_takes_too_long_is_not_repeated() -> None:
    with answering([WHOLE]) as client:
        assert get(client) == b"ok"
        connection = client._idle[0][1]
        silent, other = socket.socketpair()
        other.settimeout(0.01)
        another = patch.object(http_reader, "HTTPConnection", side_effect=AssertionError("it was repeated"))
        with silent, another, patch.object(connection, "sock", other), pytest.raises(HttpTimeout):
            get(client)
        connection.close()


def test_a_broken_answer_is_an_error() -> None:
    with answering([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok"]) as client, pytest.raises(HttpError):
        get(client)
