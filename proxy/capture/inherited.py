"""Connections that a command inherits from its shell. They were made in the network of the host, past any capture.

A replay withholds them, because it contacts nobody. Of a recording it is said what passed on them. The standard streams are
left alone: one of them is a connection where the user is at its other end, as under inetd.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

PROTOCOL: Final = "inherited"
"""What stands for a protocol in a report."""

FIRST_DESCRIPTOR: Final = 3
UNCONNECTED: Final = "a socket without a connection"

_TCP_INFO_BYTES: Final = 232
_BYTES_RECEIVED: Final = 128
_BYTES_SENT: Final = 200
"""Offsets in struct tcp_info (linux/tcp.h); Linux before 4.19 has no second one."""


class InheritedSocket(msgspec.Struct, frozen=True, kw_only=True):
    """A socket of the host's network that a command would inherit."""

    descriptor: int
    destination: str
    passed: tuple[int, int] = (0, 0)
    """The bytes that were sent and received before the command began, where it is a TCP connection."""

    def refusal(self) -> dict[str, Any]:
        """Return how a replay reports it. Whether the command would have used it is not known."""
        reason = "it was open before the command began, and a replay contacts nobody"
        return self._report("refused", (0, 0), reason)

    def passage(self) -> dict[str, Any]:
        """Return how a recording reports what passed on it."""
        before, after = self.passed, _passed_bytes(self.descriptor)
        passed_bytes = tuple(max(now - then, 0) for then, now in zip(before, after, strict=True))
        reason = f"bytes passed on a connection to {self.destination} that was open before the command began: they were not recorded"
        return self._report("passed", passed_bytes, reason)

    def _report(self, outcome: str, sizes: tuple[int, ...], reason: str) -> dict[str, Any]:
        return {
            "destination": self.destination,
            "address": self.destination,
            "protocol": PROTOCOL,
            "outcome": outcome,
            "past_proxy": False,
            "reason": reason,
            "sent": sizes[0],
            "received": sizes[1],
            "count": 1,
        }


def inherited_sockets(allowed: Collection[tuple[str, int]]) -> list[InheritedSocket]:
    """Return the sockets that a command would inherit and could send on. `allowed`: addresses that it may reach."""
    return [found for descriptor in _descriptors() if (found := _inherited_socket(descriptor, allowed)) is not None]


def _descriptors() -> Iterator[int]:
    with suppress(OSError):
        yield from sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) >= FIRST_DESCRIPTOR)


def _inherited_socket(descriptor: int, allowed: Collection[tuple[str, int]]) -> InheritedSocket | None:
    try:
        if not os.get_inheritable(descriptor) or not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as one:
            # Its clients come to one that listens, and it reaches nobody.
            if one.family not in (socket.AF_INET, socket.AF_INET6) or _is_listening(one):
                return None
            host, port = _peer(one)
    except OSError:
        return None
    if (host, port) in allowed:
        return None
    place = UNCONNECTED if not host else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return InheritedSocket(descriptor=descriptor, destination=place, passed=_passed_bytes(descriptor))


def _is_listening(one: socket.socket) -> bool:
    return bool(one.type == socket.SOCK_STREAM and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _peer(one: socket.socket) -> tuple[str, int]:
    try:
        host, port, *_ = one.getpeername()
    except OSError:
        return "", 0
    return host.removeprefix("::ffff:") if "." in host else host, port


def _passed_bytes(descriptor: int) -> tuple[int, int]:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0, 0
    if len(info) < _BYTES_SENT + 8:
        return 0, 0
    return struct.unpack_from("=Q", info, _BYTES_SENT)[0], struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
