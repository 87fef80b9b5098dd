"""Speak netlink: build attributes and messages, send a request and raise what the kernel answers.

Nothing but the standard library: `proxy/capture/namespace/inside.py` runs it in a bare interpreter.
"""

import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADER = struct.Struct("=LHHLL")

NLMSG_ERROR = 2
NLMSG_DONE = 3

REQUEST = 0x1
ACK = 0x4
DUMP = 0x300
CREATE_EXCLUSIVE = 0x600
CREATE = 0x400
APPEND = 0x800

MOST = 1 << 16
"""Bytes of one answer: the kernel sends dumps in pieces of at most 32 KiB."""

SOCKET_TIMEOUT = 5.0
"""Seconds: the kernel answers at once; an emulated one may not answer at all."""


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    length = len(value) + 4
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def nested(kind: int, *values: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | 0x8000, b"".join(values))


def text(kind: int, value: str) -> bytes:
    """An attribute that holds a string."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """An attribute that holds 32 bits in network order, as nf_tables takes them."""
    return attribute(kind, struct.pack("!l" if value < 0 else "!L", value))


def message(kind: int, flags: int, payload: bytes, sequence: int = 0) -> bytes:
    """One message, its header in front."""
    return HEADER.pack(HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def split(data: bytes) -> "Iterator[tuple[int, int, bytes]]":
    """The messages of one answer: type, sequence number and payload."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _, sequence, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield kind, sequence, data[offset + HEADER.size : offset + length]
        offset += -(-length // 4) * 4


def opened(protocol: int) -> socket.socket:
    """A netlink socket of the network namespace that this process is in."""
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    connection.settimeout(SOCKET_TIMEOUT)
    return connection


def request(connection: socket.socket, kind: int, flags: int, payload: bytes) -> None:
    """Send one request and wait for its acknowledgement. Raises OSError with the kernel's error."""
    connection.send(message(kind, flags | REQUEST | ACK, payload, 1))
    await_acknowledgements(connection, {1})


def await_acknowledgements(connection: socket.socket, sequences: set[int]) -> None:
    """Wait until each of these requests is acknowledged. Raises OSError with the first error."""
    left = set(sequences)
    while left:
        for kind, sequence, payload in split(connection.recv(MOST)):
            if kind != NLMSG_ERROR:
                continue
            (code,) = struct.unpack_from("=l", payload)
            if code:
                raise OSError(-code, os.strerror(-code))
            left.discard(sequence)


def dump(connection: socket.socket, kind: int, payload: bytes) -> "Iterator[bytes]":
    """The payloads of everything that a dump request returns. Raises OSError."""
    connection.send(message(kind, REQUEST | DUMP, payload, 1))
    while True:
        for answer, _, found in split(connection.recv(MOST)):
            if answer == NLMSG_DONE:
                return
            if answer == NLMSG_ERROR:
                (code,) = struct.unpack_from("=l", found)
                raise OSError(-code, os.strerror(-code))
            yield found


def batch(connection: socket.socket, messages: "Sequence[bytes]") -> None:
    """Send nf_tables messages as one transaction and wait for it. Raises OSError; then nothing of it is in force.

    `messages` bear the sequence numbers 1, 2, …; the two around them are ours.
    """
    subsystem = struct.pack("!BBH", 0, 0, 10)
    begin = message(0x10, REQUEST, subsystem, 0)
    end = message(0x11, REQUEST, subsystem, len(messages) + 1)
    connection.send(begin + b"".join(messages) + end)
    await_acknowledgements(connection, set(range(1, len(messages) + 1)))
