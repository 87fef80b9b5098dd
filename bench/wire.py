"""TLS over non-blocking sockets with as little between them and the kernel as Python allows.

asyncio's own TLS costs twice as much, and on a small machine load generator and upstream share the cores with the door.
"""

import base64
import select
import socket
import ssl
from typing import Any

PATIENCE = 20.0
"""Seconds after which a silent peer is a failed measurement."""

READ = 1 << 18


class Broken(SystemExit):
    """The other side did not do what a measurement needs: the program ends with the message."""


def secured(plain: socket.socket, context: ssl.SSLContext, **how: Any) -> ssl.SSLSocket:
    """The same connection under TLS, its handshake done, not blocking from here on."""
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.settimeout(PATIENCE)
    wrapped = context.wrap_socket(plain, **how)
    wrapped.setblocking(False)
    return wrapped


def received(connection: socket.socket) -> bytes | None:
    """What has come; b"" at the end, None when there is only half a record."""
    try:
        return connection.recv(READ)
    except (ssl.SSLWantReadError, BlockingIOError):
        return None
    except (ssl.SSLEOFError, ConnectionError):
        return b""


def send(connection: socket.socket, data: bytes) -> None:
    """All of it, waiting where the other side is slow."""
    left = memoryview(data)
    while left:
        try:
            left = left[connection.send(left) :]
        except (ssl.SSLWantWriteError, BlockingIOError):
            if not select.select([], [connection], [], PATIENCE)[1]:
                raise Broken(f"the other side read nothing for {PATIENCE:.0f} s") from None


def through(
    proxy: int | None, asked: str, host: str, port: int, run: str, trust: ssl.SSLContext | None
) -> socket.socket:
    """A connection to `host`: through the proxy on that port of this machine, or straight to a server on `port`.

    The proxy is told `asked`, a host and a port. Without `trust` there is no TLS.
    """
    plain = socket.create_connection(("127.0.0.1", proxy or port), PATIENCE)
    if proxy is not None:
        credentials = base64.b64encode(f"{run}:bench".encode()).decode()
        plain.sendall(f"CONNECT {asked} HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode())
        answer = _head(plain)
        if b" 200 " not in answer:
            raise Broken(f"CONNECT was answered with {answer[:80]!r}")
    if trust is not None:
        return secured(plain, trust, server_hostname=host)
    plain.setblocking(False)
    return plain


def _head(plain: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = plain.recv(1)
        if not byte:
            raise Broken("the connection was closed during CONNECT")
        head += byte
    return head
