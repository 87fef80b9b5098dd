"""Parse the server name and the ALPN protocols from a TLS ClientHello, without taking part in the handshake."""

from collections.abc import Iterator
from typing import Final, NamedTuple

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_ALPN: Final = 16

MAX_HELLO_BYTES: Final = 64 << 10
"""Maximum size of a ClientHello. One with post-quantum keys has about 2 KiB."""


class Hello(NamedTuple):
    """A ClientHello (RFC 8446 4.1.2)."""

    name: str | None
    protocols: tuple[bytes, ...]
    """The ALPN protocols, in the client's order of preference."""


class NotTls(ValueError):
    """The bytes are not the beginning of a TLS handshake."""


def parse_client_hello(data: bytes) -> Hello | None:
    """Parse the ClientHello at the start of the data. Return None if it is incomplete. Raises NotTls."""
    message = b""
    at = 0
    while True:
        head = data[at : at + 5]
        if head[:1] not in (b"", bytes([_HANDSHAKE])) or head[1:2] not in (b"", b"\x03") or len(data) > MAX_HELLO_BYTES:
            raise NotTls("not a TLS handshake record")
        if len(head) < 5:
            return None
        size = int.from_bytes(head[3:])
        message += data[at + 5 : at + 5 + size]
        at += 5 + size
        if message[:1] not in (b"", bytes([_CLIENT_HELLO])) or not size:
            raise NotTls("not a ClientHello")
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4]):
            return _parse_body(message[4 : 4 + int.from_bytes(message[1:4])])
        if at > len(data):
            return None


def _parse_body(body: bytes) -> Hello:
    reader = _Reader(body)
    reader.read_bytes(2 + 32)  # version, random
    reader.read_vector(1)  # session
    reader.read_vector(2)  # cipher suites
    reader.read_vector(1)  # compression
    name: str | None = None
    protocols: tuple[bytes, ...] = ()
    if reader.remaining:
        for kind, value in _extensions(_Reader(reader.read_vector(2))):
            if kind == _SERVER_NAME:
                name = _server_name(_Reader(_Reader(value).read_vector(2)))
            elif kind == _ALPN:
                protocols = tuple(_byte_strings(_Reader(_Reader(value).read_vector(2))))
    return Hello(name, protocols)


def _extensions(reader: "_Reader") -> Iterator[tuple[int, bytes]]:
    while reader.remaining:
        yield int.from_bytes(reader.read_bytes(2)), reader.read_vector(2)


def _byte_strings(reader: "_Reader") -> Iterator[bytes]:
    while reader.remaining:
        yield reader.read_vector(1)


def _server_name(reader: "_Reader") -> str | None:
    """Return the host name from a server_name list (RFC 6066 3), which holds at most one."""
    while reader.remaining:
        kind, value = reader.read_bytes(1), reader.read_vector(2)
        if kind == b"\0":
            try:
                return value.decode("ascii")
            except UnicodeDecodeError as error:
                raise NotTls("the server name is not ASCII") from error
    return None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def read_bytes(self, size: int) -> bytes:
        if size > self.remaining:
            raise NotTls("a field is longer than the structure that contains it")
        self._at += size
        return self._data[self._at - size : self._at]

    def read_vector(self, width: int) -> bytes:
        """Read bytes that are preceded by their length in `width` bytes."""
        return self.read_bytes(int.from_bytes(self.read_bytes(width)))
