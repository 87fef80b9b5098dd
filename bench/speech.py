"""HTTP/1.1 and HTTP/2 as little as a benchmark needs of them, for who asks and for who is asked; no sockets.

What they are given is what came; what they give is what is to be sent.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import ngh2

from bench.wire import MeasurementFailed

ASKED: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "bench/1.0 Python/3.13",
    "Authorization": "Bearer sk-bench-0f9d2c4b8a7e61350f9d2c4b8a7e6135",
    "Content-Type": "application/json",
}
ANSWERED: Final = {
    "Date": "Sat, 21 Nov 2026 20:00:00 GMT",
    "Server": "bench",
    "X-Request-Id": "req_4f1c2a90d7",
}
JSON: Final = {"Content-Type": "application/json"}
EVENTS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}

WINDOW: Final = 1 << 30
"""Bytes that may come unasked on HTTP/2: nobody waits for who measures."""


class ClientGone(Exception):
    """Nobody waits for that answer any more."""


class Asking(Protocol):
    """One connection, seen by who asks."""

    def ask(self, body: bytes) -> bytes:
        """A request."""

    def take_answer(self, data: bytes) -> bool:
        """Whether this makes an answer whole. Raises Broken when it is not a good one."""

    def take_output(self) -> bytes:
        """What is to be sent besides."""


class ClientConnection(Protocol):
    """One connection, seen by who is asked. Answering raises Gone where nobody listens any more."""

    def paths(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The requests that this makes whole: a number to answer them by, and their paths."""

    def answer(self, number: int, body: bytes, /) -> bytes:
        """A whole answer."""

    def stream(self, number: int, /) -> bytes:
        """The head of an answer that goes on."""

    def piece(self, number: int, data: bytes, /) -> bytes:
        """A piece of it."""

    def take_output(self) -> bytes:
        """What is to be sent besides."""


def _lines(*headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for some in headers for name, value in some.items())


class Http1Asking:
    """The head of every request of a length is the same, and made once."""

    def __init__(self, path: str, host: str) -> None:
        self._before = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{_lines(ASKED)}Content-Length: "
        self._heads: dict[int, bytes] = {}
        self._buffer = b""

    def ask(self, body: bytes) -> bytes:
        head = self._heads.get(len(body))
        if head is None:
            head = self._heads[len(body)] = f"{self._before}{len(body)}\r\n\r\n".encode()
        return head + body

    def take_answer(self, data: bytes) -> bool:
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            raise MeasurementFailed(f"answered with {self._buffer[:400]!r}")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length is None:
            raise MeasurementFailed(f"an answer without a length: {head!r}")
        if len(body) < int(length[1]):
            return False
        self._buffer = b""
        return True

    def take_output(self) -> bytes:
        return b""


class Http1Asked:
    """One request after the other."""

    def __init__(self) -> None:
        self._buffer = b""
        self._head = f"HTTP/1.1 200 OK\r\n{_lines(ANSWERED, JSON)}Content-Length: ".encode()
        self._stream = f"HTTP/1.1 200 OK\r\n{_lines(ANSWERED, EVENTS)}Transfer-Encoding: chunked\r\n\r\n".encode()

    def paths(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self._buffer += data
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if blank and len(rest) >= _length(head):
            self._buffer = b""
            yield 0, head.split(b" ", 2)[1]

    def answer(self, _number: int, body: bytes) -> bytes:
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)

    def stream(self, _number: int) -> bytes:
        return self._stream

    def piece(self, _number: int, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    def take_output(self) -> bytes:
        return b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line[:15].lower() == b"content-length:":
            return int(line[15:])
    return 0


def _fields(*headers: Mapping[str, str]) -> list[ngh2.Header]:
    return [(name.lower().encode(), value.encode()) for some in headers for name, value in some.items()]


class _Http2:
    def __init__(self, role: ngh2.Role) -> None:
        self._session = ngh2.Connection(role)
        self._session.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: WINDOW})
        self._session.set_local_window_size(WINDOW)

    def take_output(self) -> bytes:
        return self._session.data_to_send()

    def _came(self, data: bytes) -> Iterator[Any]:
        try:
            self._session.receive_data(data)
        except ngh2.NGH2Error as error:
            raise MeasurementFailed(f"not HTTP/2: {error}") from None
        yield from self._session.events()


class Http2Asking(_Http2):
    """One stream at a time."""

    def __init__(self, path: str, host: str) -> None:
        super().__init__(ngh2.Role.CLIENT)
        pseudo_headers = {":method": "POST", ":scheme": "https", ":authority": host, ":path": path}
        self._head = _fields(pseudo_headers, ASKED)

    def ask(self, body: bytes) -> bytes:
        number = self._session.send_request([*self._head, (b"content-length", b"%d" % len(body))])
        self._session.send_data(number, body, end_stream=True)
        return self._session.data_to_send()

    def take_answer(self, data: bytes) -> bool:
        whole = False
        for event in self._came(data):
            match event:
                case ngh2.ResponseReceived(headers=headers) if (b":status", b"200") not in headers:
                    raise MeasurementFailed(f"answered with {headers!r}")
                case ngh2.StreamReset() | ngh2.GoAwayReceived():
                    raise MeasurementFailed(f"broken off: {event!r}")
                case ngh2.DataReceived(end_stream=True) | ngh2.ResponseReceived(end_stream=True):
                    whole = True
        return whole


class Http2Asked(_Http2):
    """As many streams as come."""

    def __init__(self) -> None:
        super().__init__(ngh2.Role.SERVER)
        pseudo_headers = {":status": "200"}
        self._head, self._stream = _fields(pseudo_headers, ANSWERED, JSON), _fields(pseudo_headers, ANSWERED, EVENTS)
        self._paths: dict[int, bytes] = {}

    def paths(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        for event in self._came(data):
            if isinstance(event, ngh2.RequestReceived):
                self._paths[event.stream_id] = dict(event.headers)[b":path"]
            if isinstance(event, ngh2.RequestReceived | ngh2.DataReceived) and event.end_stream:
                yield event.stream_id, self._paths.pop(event.stream_id)

    def answer(self, number: int, body: bytes) -> bytes:
        with _listening():
            self._session.send_response(number, [*self._head, (b"content-length", b"%d" % len(body))])
            self._session.send_data(number, body, end_stream=True)
            return self._session.data_to_send()

    def stream(self, number: int) -> bytes:
        with _listening():
            self._session.send_response(number, self._stream)
            return self._session.data_to_send()

    def piece(self, number: int, data: bytes) -> bytes:
        with _listening():
            self._session.send_data(number, data)
            return self._session.data_to_send()


@contextmanager
def _listening() -> Iterator[None]:
    try:
        yield
    except ngh2.NGH2Error as error:
        raise ClientGone(str(error)) from None
