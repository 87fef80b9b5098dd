"""Find free ports, reserve a port across restarts of workers, and check loopback."""

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from proxy.errors import Failure

SAFE_PORTS: Final = range(16384, 32768)
"""Ports that no kernel gives to outgoing connections (Linux: from 32768, others from 49152). Such a connection could
take a free port before the process that is to listen there has started."""

TRIES: Final = 20

_SHARED: Final = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
"""With both, a port may be bound by those who listen there and by one who only reserves it."""

_random: Final = random.SystemRandom()
"""Processes whose generators are seeded alike would try the same ports at the same time."""


def require_loopback() -> None:
    """Raise Failure if loopback cannot be reached: Playhead's processes and the clients of commands use it."""
    # Connecting a datagram socket only looks up the route: nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("127.0.0.1", 9))
        except OSError as error:
            raise Failure(
                f"127.0.0.1 cannot be reached on this machine ({error.strerror}), and Playhead's processes listen there:"
                " bring the loopback interface up with: ip link set lo up"
            ) from error


ANOTHER_PORT: Final = "another port (0 takes a free one)"
"""What to choose in place of a port that is taken."""


@contextmanager
def reserve_port(listen: str, port: int, *, other_port: str = ANOTHER_PORT) -> Iterator[int]:
    """Reserve a port, or a free one for 0, so that no other program takes it before our process listens there, or while it restarts.

    The socket is bound but never listens, so the kernel gives it no connections. Raises Failure if another program listens there;
    `other_port` is what the message says to choose.
    """
    with _bind_free(listen) if port == 0 else _bind_unused(listen, port, other_port) as bound_socket:
        for option in _SHARED:
            bound_socket.setsockopt(socket.SOL_SOCKET, option, 1)
        yield int(bound_socket.getsockname()[1])


def free_port(listen: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises Failure if another program listens there.

    Another program may take it before it is used: `reserve_port` prevents that.
    """
    with _bind_free(listen) if port == 0 else _bind_unused(listen, port) as probe:
        return int(probe.getsockname()[1])


def _bind_free(listen: str) -> socket.socket:
    """Bind a port that nothing is bound to. Without SO_REUSEADDR, which would also admit ports that others have reserved."""
    for port in _random.sample(SAFE_PORTS, TRIES):
        with suppress(Failure):
            return _bind_socket(listen, port)
    return _bind_socket(listen, 0)


def _bind_unused(listen: str, port: int, other_port: str = ANOTHER_PORT) -> socket.socket:
    """Bind a port on which nothing listens; connections that have ended may remain. With SO_REUSEPORT alone two services would share it."""
    _bind_socket(listen, port, socket.SO_REUSEADDR, other_port=other_port).close()
    return _bind_socket(listen, port, *_SHARED, other_port=other_port)


def _bind_socket(listen: str, port: int, *options: int, other_port: str = ANOTHER_PORT) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    bound_socket = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            bound_socket.setsockopt(socket.SOL_SOCKET, option, 1)
        bound_socket.bind((listen, port))
    except OSError as error:
        bound_socket.close()
        port_is_wrong = error.errno in (errno.EADDRINUSE, errno.EACCES)
        other = other_port if port_is_wrong else "an address of this machine with --listen"
        raise Failure(f"cannot listen on {listen}:{port}: {error.strerror}; choose {other}") from error
    return bound_socket
