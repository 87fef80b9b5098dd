"""Listen for connections that netfilter redirects (`up --transparent`)."""

import errno
import socket
from collections.abc import Iterator
from typing import Final

from proxy.capture.control import CaptureRequest, PassedSocket
from proxy.errors import Failure

BACKLOG: Final = 1024
"""Connections that may wait to be accepted, as many as at the proxy's own port."""


def transparent_capture(host: str, port: int, *, reuse_port: bool) -> CaptureRequest:
    """Open the sockets for redirected connections, of both address families. Raises Failure."""
    sockets = [
        PassedSocket("tcp", is_redirected=True, endpoint=one) for one in _listening_sockets(host, port, reuse_port)
    ]
    return CaptureRequest(run="", token="", passes_other_tcp=True, allow_local=frozenset(), sockets=sockets)


def _listening_sockets(host: str, port: int, reuse_port: bool) -> Iterator[socket.socket]:
    for family, address in _listen_addresses(host):
        try:
            yield _listening_socket(family, address, port, reuse_port)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # a machine without IPv6
            raise Failure(
                f"cannot listen on {address} port {port} for redirected connections: {error.strerror};"
                " choose another port with --transparent PORT"
            ) from error


def _listen_addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Return the addresses at which redirected connections arrive: loopback from this machine, else any address."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]  # noqa: S104 - the user listens beyond loopback


def _listening_socket(family: socket.AddressFamily, address: str, port: int, reuse_port: bool) -> socket.socket:
    # With its protocol, as in `proxy.wire.listener`.
    endpoint = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            endpoint.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        endpoint.bind((address, port))
        endpoint.listen(BACKLOG)
    except OSError:
        endpoint.close()
        raise
    return endpoint
