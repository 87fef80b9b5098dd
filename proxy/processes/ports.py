"""Choose ports: free ones, one that is kept for workers that come and go, and their loopback address."""

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from proxy.errors import Failure

QUIET: Final = range(16384, 32768)
"""Ports that no kernel gives to outgoing connections (Linux: from 32768, others from 49152), which would take a free port
before somebody listens on it."""

TRIES: Final = 20


def loopback() -> None:
    """Raise Failure where nothing on this machine can reach it: there our processes and the commands' clients meet."""
    # To connect a datagram socket is to ask for the way there: nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("127.0.0.1", 9))
        except OSError as error:
            raise Failure(
                f"127.0.0.1 cannot be reached on this machine ({error.strerror}), and all that we start listens there: is"
                " the loopback interface down? Bring it up: ip link set lo up"
            ) from error


@contextmanager
def held(listen: str, port: int) -> Iterator[int]:
    """Reserve the workers' port for as long as we run, so that nobody takes it while a worker is started again.

    The socket is bound and never listens, so the kernel gives it no connections.
    """
    with _bound(listen, free(listen, port), reuse=True) as held:
        yield int(held.getsockname()[1])


def free(listen: str, port: int) -> int:
    """The port, or a free one for 0. Raises Failure where something else listens.

    With SO_REUSEPORT alone two services would share a port unnoticed.
    """
    tries = random.sample(QUIET, TRIES) if port == 0 else []
    for one in tries:
        with suppress(Failure), _bound(listen, one, reuse=False):
            return one
    with _bound(listen, port, reuse=False) as probe:
        return int(probe.getsockname()[1])


def _bound(listen: str, port: int, *, reuse: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((listen, port))
    except OSError as error:
        held.close()
        port_is_wrong = error.errno in (errno.EADDRINUSE, errno.EACCES)
        other = "another port (0 takes a free one)" if port_is_wrong else "an address of this machine with --listen"
        raise Failure(f"cannot listen on {listen}:{port}: {error.strerror}; choose {other}") from error
    return held
