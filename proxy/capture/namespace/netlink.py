"""Netlink: build attributes and messages, send requests, and raise the kernel's errors.

Standard library only, because `proxy/capture/namespace/inside.py` runs it in a bare interpreter.
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

MAX_ANSWER_BYTES = 1 << 16
"""The maximum size of one answer: the kernel sends dumps in pieces of at most 32 KiB."""

SOCKET_TIMEOUT = 5.0
"""Seconds to wait for an answer. The kernel answers at once, but an emulated one may not answer at all."""


def attribute(kind: int, value: bytes) -> bytes:
    """Build an attribute, padded to four bytes."""
    length = len(value) + 4
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def nested_attribute(kind: int, *values: bytes) -> bytes:
    """Build an attribute of attributes."""
    return attribute(kind | 0x8000, b"".join(values))


def text_attribute(kind: int, value: str) -> bytes:
    """Build an attribute with a string."""
    return attribute(kind, value.encode() + b"\0")


def number_attribute(kind: int, value: int) -> bytes:
    """Build an attribute with 32 bits in network order, as nf_tables uses them."""
    return attribute(kind, struct.pack("!l" if value < 0 else "!L", value))


def build_message(kind: int, flags: int, payload: bytes, sequence: int = 0) -> bytes:
    """Build a message with its header."""
    return HEADER.pack(HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def split_messages(data: bytes) -> "Iterator[tuple[int, int, bytes]]":
    """Yield the messages of one answer: type, sequence number and payload."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _, sequence, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield kind, sequence, data[offset + HEADER.size : offset + length]
        offset += -(-length // 4) * 4


def open_socket(protocol: int) -> socket.socket:
    """Open a netlink socket in the network namespace of this process."""
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    connection.settimeout(SOCKET_TIMEOUT)
    return connection


def send_request(connection: socket.socket, kind: int, flags: int, payload: bytes) -> None:
    """Send one request and wait for its acknowledgement. Raises OSError with the kernel's error."""
    connection.send(build_message(kind, flags | REQUEST | ACK, payload, 1))
    await_acknowledgements(connection, {1})


def await_acknowledgements(connection: socket.socket, sequences: set[int]) -> None:
    """Wait until each of these requests is acknowledged. Raises OSError with the first error."""
    remaining = set(sequences)
    while remaining:
        for kind, sequence, payload in split_messages(connection.recv(MAX_ANSWER_BYTES)):
            if kind != NLMSG_ERROR:
                continue
            (code,) = struct.unpack_from("=l", payload)
            if code:
                raise OSError(-code, os.strerror(-code))
            remaining.discard(sequence)


def dump(connection: socket.socket, kind: int, payload: bytes) -> "Iterator[bytes]":
    """Yield the payloads of the answers to a dump request. Raises OSError."""
    connection.send(build_message(kind, REQUEST | DUMP, payload, 1))
    while True:
        for answer, _, found in split_messages(connection.recv(MAX_ANSWER_BYTES)):
            if answer == NLMSG_DONE:
                return
            if answer == NLMSG_ERROR:
                (code,) = struct.unpack_from("=l", found)
                raise OSError(-code, os.strerror(-code))
            yield found


def send_batch(connection: socket.socket, messages: "Sequence[bytes]") -> None:
    """Send nf_tables messages as one transaction and wait for it. Raises OSError if none of it was applied.

    `messages` have the sequence numbers 1, 2, …; this adds the messages that begin and end the transaction.
    """
    subsystem = struct.pack("!BBH", 0, 0, 10)
    begin = build_message(0x10, REQUEST, subsystem, 0)
    end = build_message(0x11, REQUEST, subsystem, len(messages) + 1)
    connection.send(begin + b"".join(messages) + end)
    await_acknowledgements(connection, set(range(1, len(messages) + 1)))
