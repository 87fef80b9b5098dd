"""Listen for connections that netfilter redirects to us (`up --transparent`)."""

import errno
import socket
from collections.abc import Iterator

from proxy.capture.control import CaptureRequest, PassedSocket
from proxy.errors import Failure


def transparent_capture(host: str, port: int, *, reuse_port: bool) -> CaptureRequest:
    """The sockets for redirected connections, of both families. Raises Failure."""
    sockets = [PassedSocket("tcp", is_redirected=True, endpoint=one) for one in _listening(host, port, reuse_port)]
    return CaptureRequest(run="", token="", passes_other_tcp=True, allow_local=frozenset(), sockets=sockets)


def _listening(host: str, port: int, reuse_port: bool) -> Iterator[socket.socket]:
    for family, address in _addresses(host):
        try:
            yield _bound(family, address, port, reuse_port)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # a machine without IPv6
            raise Failure(
                f"cannot listen on {address} port {port} for redirected connections: {error.strerror};"
                " choose another port with --transparent PORT"
            ) from error


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Where a redirected connection arrives: at loopback from this machine, at any address from others."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]  # noqa: S104 - the user listens beyond loopback


def _bound(family: socket.AddressFamily, address: str, port: int, reuse_port: bool) -> socket.socket:
    endpoint = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            endpoint.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        endpoint.bind((address, port))
        endpoint.listen()
    except OSError:
        endpoint.close()
        raise
    return endpoint
