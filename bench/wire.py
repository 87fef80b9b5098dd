"""Connections over non-blocking sockets, with or without TLS, at little cost in Python.

On a small machine, load generator and upstream share the cores with the worker, so they must use little CPU.
"""

import base64
import select
import socket
import ssl
from typing import Any

PATIENCE = 20.0
"""Seconds without data after which a measurement has failed."""

READ = 1 << 18


class MeasurementFailed(SystemExit):
    """A program did not do what a measurement needs. The benchmark ends with this message."""


class Connection:
    """A non-blocking connection, with TLS if there is a context.

    TLS uses memory buffers: one system call reads all records that have arrived, where an SSLSocket makes two for each.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext | None, **how: Any) -> None:
        if plain.family == socket.AF_INET:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(PATIENCE)
        self._plain = plain
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, **how) if context else None
        self._unsent = b""
        if self._tls:
            self._shake_hands(self._tls)
        plain.setblocking(False)

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self._plain.sendall(self._out.read())
                data = self._plain.recv(READ)
                if not data:
                    raise ConnectionError("closed during the handshake") from None
                self._in.write(data)
            else:
                self._plain.sendall(self._out.read())
                return

    @property
    def alpn(self) -> str | None:
        """The protocol that ALPN selected."""
        return self._tls.selected_alpn_protocol() if self._tls else None

    @property
    def waits(self) -> bool:
        """Whether data is waiting to be sent."""
        return bool(self._unsent)

    def fileno(self) -> int:
        """Return the file descriptor; -1 if the connection is closed."""
        return self._plain.fileno()

    def close(self) -> None:
        """Close the socket at once, without TLS's closing message."""
        self._plain.close()

    def receive(self) -> bytes | None:
        """Return the data that has arrived: b"" at the end, None if it is less than a record. Raises OSError if the
        connection was reset.
        """
        try:
            data = self._plain.recv(READ)
        except BlockingIOError:
            # What came with the end of the handshake is in already.
            if not self._in.pending:
                return None
        else:
            if not (data and self._tls):
                return data
            self._in.write(data)
        assert self._tls is not None
        pieces = []
        try:
            while self._in.pending:
                pieces.append(self._tls.read(READ))
        except ssl.SSLWantReadError:
            pass  # half a record, or what is not for us
        except ssl.SSLZeroReturnError:
            pieces = pieces or [b""]
        return b"".join(pieces) if pieces else None

    def send(self, data: bytes = b"") -> None:
        """Send what the socket takes, and keep the rest (see `waits`)."""
        if data and self._tls:
            self._tls.write(data)
            data = self._out.read()
        unsent = self._unsent + data if self._unsent else data
        if unsent:
            try:
                self._unsent = unsent[self._plain.send(unsent) :]
            except BlockingIOError:
                self._unsent = unsent

    def wait(self, *, reading: bool = False) -> None:
        """Wait until there is data to read, or room for the unsent data. Raises MeasurementFailed after `PATIENCE`."""
        while reading or self._unsent:
            if not any(select.select([self] if reading else [], [] if reading else [self], [], PATIENCE)):
                raise MeasurementFailed(f"the other side {'said' if reading else 'read'} nothing for {PATIENCE:.0f} s")
            if reading:
                return
            self.send()


def through(
    proxy: int | None, authority: str, host: str, port: int, run: str, trust: ssl.SSLContext | None
) -> Connection:
    """Open a connection to `host`: through the proxy on a local port, or directly to a server on the local `port`.

    The proxy is asked by CONNECT for `authority`, a host and a port. Without `trust` there is no TLS.
    """
    plain = socket.create_connection(("127.0.0.1", proxy or port), PATIENCE)
    if proxy is not None:
        credentials = base64.b64encode(f"{run}:bench".encode()).decode()
        plain.sendall(f"CONNECT {authority} HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode())
        answer = _head(plain)
        if b" 200 " not in answer:
            raise MeasurementFailed(f"CONNECT was answered with {answer[:80]!r}")
    return Connection(plain, trust, **({"server_hostname": host} if trust else {}))


def _head(plain: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = plain.recv(1)
        if not byte:
            raise MeasurementFailed("the connection was closed during CONNECT")
        head += byte
    return head
