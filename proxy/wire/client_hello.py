"""Read the first message of a TLS handshake: the name and the protocols, without taking part in it."""

from collections.abc import Iterator
from typing import Final, NamedTuple

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_ALPN: Final = 16

LONGEST: Final = 64 << 10
"""A hello that is not over by then is none (one with post-quantum keys has 2 KiB)."""


class Hello(NamedTuple):
    """A ClientHello (RFC 8446 4.1.2)."""

    name: str | None
    protocols: tuple[bytes, ...]
    """ALPN, the client's favourite first."""


class NotTls(ValueError):
    """These bytes begin no TLS handshake."""


def client_hello(data: bytes) -> Hello | None:
    """The hello that these bytes begin with; None where more of it is to come. Raises NotTls."""
    message = b""
    at = 0
    while True:
        head = data[at : at + 5]
        if head[:1] not in (b"", bytes([_HANDSHAKE])) or head[1:2] not in (b"", b"\x03") or len(data) > LONGEST:
            raise NotTls("no record of a handshake")
        if len(head) < 5:
            return None
        size = int.from_bytes(head[3:])
        message += data[at + 5 : at + 5 + size]
        at += 5 + size
        if message[:1] not in (b"", bytes([_CLIENT_HELLO])) or not size:
            raise NotTls("no ClientHello")
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4]):
            return _read(message[4 : 4 + int.from_bytes(message[1:4])])
        if at > len(data):
            return None


def _read(body: bytes) -> Hello:
    reader = _Reader(body)
    reader.take(2 + 32)  # version, random
    reader.vector(1)  # session
    reader.vector(2)  # cipher suites
    reader.vector(1)  # compression
    name: str | None = None
    protocols: tuple[bytes, ...] = ()
    if reader.left:
        for kind, value in _extensions(_Reader(reader.vector(2))):
            if kind == _SERVER_NAME:
                name = _name(_Reader(_Reader(value).vector(2)))
            elif kind == _ALPN:
                protocols = tuple(_vectors(_Reader(_Reader(value).vector(2))))
    return Hello(name, protocols)


def _extensions(reader: "_Reader") -> Iterator[tuple[int, bytes]]:
    while reader.left:
        yield int.from_bytes(reader.take(2)), reader.vector(2)


def _vectors(reader: "_Reader") -> Iterator[bytes]:
    while reader.left:
        yield reader.vector(1)


def _name(reader: "_Reader") -> str | None:
    """RFC 6066 3: a list, in which one host name can be."""
    while reader.left:
        kind, value = reader.take(1), reader.vector(2)
        if kind == b"\0":
            try:
                return value.decode("ascii")
            except UnicodeDecodeError as error:
                raise NotTls("a name that is not ASCII") from error
    return None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise NotTls("a field is longer than what it stands in")
        self._at += size
        return self._data[self._at - size : self._at]

    def vector(self, width: int) -> bytes:
        """Bytes with their length before them."""
        return self.take(int.from_bytes(self.take(width)))
