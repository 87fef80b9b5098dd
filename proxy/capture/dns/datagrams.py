"""Datagrams on a socket for every address: each answer is sent from the address that the query was sent to."""

import ipaddress
import socket
import struct
from typing import Any, Final

import msgspec

from proxy.capture.connections.original_destination import Address, plain_address

_IP_PKTINFO: Final = 8
_IPV6_RECVPKTINFO: Final = 49
_IPV6_PKTINFO: Final = 50
_CONTROL_BYTES: Final = 256
MAX_DATAGRAM_BYTES: Final = 65535


class Datagram(msgspec.Struct, frozen=True):
    """One datagram from a client."""

    data: bytes
    client: tuple[Any, ...]
    destination: Address


def ask_for_destinations(endpoint: socket.socket) -> None:
    """Make the kernel report the address that each datagram was sent to."""
    if endpoint.family == socket.AF_INET6:
        endpoint.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
    else:
        endpoint.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)


def receive_datagram(endpoint: socket.socket) -> Datagram:
    """Receive a datagram. Raises BlockingIOError if there is none, and OSError for an error of an earlier one."""
    data, control, _, client = endpoint.recvmsg(MAX_DATAGRAM_BYTES, _CONTROL_BYTES)
    found = next((plain_address(text) for text in map(_destination, control) if text), None)
    return Datagram(data, client, found or plain_address(endpoint.getsockname()[0]))


def send_answer(endpoint: socket.socket, datagram: Datagram, data: bytes) -> None:
    """Send an answer from the address that the client's datagram was sent to."""
    source = datagram.destination
    if endpoint.family == socket.AF_INET6:
        packed = source.packed if source.version == 6 else ipaddress.IPv6Address(f"::ffff:{source}").packed
        control = (socket.IPPROTO_IPV6, _IPV6_PKTINFO, packed + bytes(4))
    else:
        control = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=i4s4s", 0, source.packed, bytes(4)))
    endpoint.sendmsg([data], [control], 0, datagram.client)


def _destination(control: tuple[int, int, bytes]) -> str | None:
    match control:
        case (socket.IPPROTO_IP, 8, data) if len(data) >= 12:
            return socket.inet_ntop(socket.AF_INET, data[8:12])
        case (socket.IPPROTO_IPV6, 50, data) if len(data) >= 16:
            return socket.inet_ntop(socket.AF_INET6, data[:16])
    return None
