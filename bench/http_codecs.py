"""Minimal HTTP/1.1 and HTTP/2 codecs for the load generators and upstreams of the benchmarks, without sockets.

They take the bytes that were received and return the bytes that are to be sent.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import ngh2

from bench.wire import MeasurementFailed

REQUEST_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "bench/1.0 Python/3.13",
    "Authorization": "Bearer sk-bench-0f9d2c4b8a7e61350f9d2c4b8a7e6135",
    "Content-Type": "application/json",
}
RESPONSE_HEADERS: Final = {
    "Date": "Sat, 21 Nov 2026 20:00:00 GMT",
    "Server": "bench",
    "X-Request-Id": "req_4f1c2a90d7",
}
JSON: Final = {"Content-Type": "application/json"}
EVENTS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}

WINDOW: Final = 1 << 30
"""The HTTP/2 flow-control window in bytes, so large that no sender waits for it."""


class ClientGone(Exception):
    """The client has closed the stream before its response was complete."""


class ClientCodec(Protocol):
    """The client's side of one connection."""

    def ask(self, body: bytes) -> bytes:
        """Return a request with this body."""

    def take_answer(self, data: bytes) -> bool:
        """Process received data; whether the response is complete now. Raises MeasurementFailed if it is not a 200."""

    def take_output(self) -> bytes:
        """Return further bytes that are to be sent, such as HTTP/2 acknowledgements."""


class ServerCodec(Protocol):
    """The server's side of one connection. Its methods that respond raise ClientGone if the client has closed the
    stream.
    """

    def paths(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Process received data, and yield the stream number and the path of each request that is complete now."""

    def answer(self, number: int, body: bytes, /) -> bytes:
        """Return a whole response."""

    def stream(self, number: int, /) -> bytes:
        """Return the head of a streamed response."""

    def piece(self, number: int, data: bytes, /) -> bytes:
        """Return a piece of a streamed response."""

    def take_output(self) -> bytes:
        """Return further bytes that are to be sent, such as HTTP/2 acknowledgements."""


def _lines(*headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for some in headers for name, value in some.items())


class Http1Client:
    """HTTP/1.1, one request at a time. The head is made once for each length of body."""

    def __init__(self, path: str, host: str) -> None:
        self._before = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{_lines(REQUEST_HEADERS)}Content-Length: "
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


class Http1Server:
    """HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._head = f"HTTP/1.1 200 OK\r\n{_lines(RESPONSE_HEADERS, JSON)}Content-Length: ".encode()
        self._stream = (
            f"HTTP/1.1 200 OK\r\n{_lines(RESPONSE_HEADERS, EVENTS)}Transfer-Encoding: chunked\r\n\r\n".encode()
        )

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

    def _receive(self, data: bytes) -> Iterator[Any]:
        try:
            self._session.receive_data(data)
        except ngh2.NGH2Error as error:
            raise MeasurementFailed(f"not HTTP/2: {error}") from None
        yield from self._session.events()


class Http2Client(_Http2):
    """HTTP/2, one stream at a time."""

    def __init__(self, path: str, host: str) -> None:
        super().__init__(ngh2.Role.CLIENT)
        pseudo_headers = {":method": "POST", ":scheme": "https", ":authority": host, ":path": path}
        self._head = _fields(pseudo_headers, REQUEST_HEADERS)

    def ask(self, body: bytes) -> bytes:
        number = self._session.send_request([*self._head, (b"content-length", b"%d" % len(body))])
        self._session.send_data(number, body, end_stream=True)
        return self._session.data_to_send()

    def take_answer(self, data: bytes) -> bool:
        whole = False
        for event in self._receive(data):
            match event:
                case ngh2.ResponseReceived(headers=headers) if (b":status", b"200") not in headers:
                    raise MeasurementFailed(f"answered with {headers!r}")
                case ngh2.StreamReset() | ngh2.GoAwayReceived():
                    raise MeasurementFailed(f"broken off: {event!r}")
                case ngh2.DataReceived(end_stream=True) | ngh2.ResponseReceived(end_stream=True):
                    whole = True
        return whole


class Http2Server(_Http2):
    """HTTP/2, with any number of streams."""

    def __init__(self) -> None:
        super().__init__(ngh2.Role.SERVER)
        pseudo_headers = {":status": "200"}
        self._head, self._stream = (
            _fields(pseudo_headers, RESPONSE_HEADERS, JSON),
            _fields(pseudo_headers, RESPONSE_HEADERS, EVENTS),
        )
        self._paths: dict[int, bytes] = {}

    def paths(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        for event in self._receive(data):
            if isinstance(event, ngh2.RequestReceived):
                self._paths[event.stream_id] = dict(event.headers)[b":path"]
            if isinstance(event, ngh2.RequestReceived | ngh2.DataReceived) and event.end_stream:
                yield event.stream_id, self._paths.pop(event.stream_id)

    def answer(self, number: int, body: bytes) -> bytes:
        with _raise_client_gone():
            self._session.send_response(number, [*self._head, (b"content-length", b"%d" % len(body))])
            self._session.send_data(number, body, end_stream=True)
            return self._session.data_to_send()

    def stream(self, number: int) -> bytes:
        with _raise_client_gone():
            self._session.send_response(number, self._stream)
            return self._session.data_to_send()

    def piece(self, number: int, data: bytes) -> bytes:
        with _raise_client_gone():
            self._session.send_data(number, data)
            return self._session.data_to_send()


@contextmanager
def _raise_client_gone() -> Iterator[None]:
    try:
        yield
    except ngh2.NGH2Error as error:
        raise ClientGone(str(error)) from None
