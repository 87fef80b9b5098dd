"""Count the datagrams that were refused in a captive network.

The kernel answers a datagram to a port on which no program listens with ICMP "port unreachable", which quotes its head.
"""

import asyncio
import socket
import struct
from collections import Counter
from typing import Any, Final

MAX_DESTINATIONS: Final = 256
"""Destinations that are counted. Others are ignored."""

_SOL_RAW: Final = 255
_ICMP_FILTER: Final = 1
_UNREACHABLE4: Final = (3, 3)
_UNREACHABLE6: Final = (1, 4)
_DATAGRAM_PROTOCOLS: Final = (socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE)
"""Both have their ports at the same place (RFC 3828)."""


DNS: Final = 53
"""The port from which the worker answers queries. No program inside can send from it."""


class Refusals:
    """Counts refused datagrams by destination."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._sockets: list[socket.socket] = []

    def watch(self, raw: socket.socket) -> None:
        """Read the refusals of one address family from a raw ICMP socket."""
        raw.setblocking(False)
        if raw.family == socket.AF_INET:
            # Receive only ICMP messages of the type "unreachable".
            raw.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=L", ~(1 << _UNREACHABLE4[0]) & 0xFFFFFFFF))
        asyncio.get_running_loop().add_reader(raw.fileno(), self._read_refusals, raw)
        self._sockets.append(raw)

    def close(self) -> None:
        """Stop reading."""
        for raw in self._sockets:
            self._read_refusals(raw)
            asyncio.get_running_loop().remove_reader(raw.fileno())
        self._sockets.clear()

    def connections(self) -> list[dict[str, Any]]:
        """Return the refused datagrams in the form of the proxy worker's report."""
        for raw in self._sockets:
            self._read_refusals(raw)
        return [_connection_report(address, port, count) for (address, port), count in self._counts.items()]

    def _read_refusals(self, raw: socket.socket) -> None:
        while True:
            try:
                packet = raw.recv(2048)
            except OSError:
                return
            destination = (
                refused_ipv4_destination(packet) if raw.family == socket.AF_INET else refused_ipv6_destination(packet)
            )
            if destination and (destination in self._counts or len(self._counts) < MAX_DESTINATIONS):
                self._counts[destination] += 1


def refused_ipv4_destination(packet: bytes) -> tuple[str, int] | None:
    """Return the destination of the datagram that an ICMPv4 packet says was refused; None for other packets."""
    inner = packet[(packet[0] & 15) * 4 :] if packet else b""
    if tuple(inner[:2]) != _UNREACHABLE4 or len(inner) < 36 or inner[8 + 9] not in _DATAGRAM_PROTOCOLS:
        return None
    header = (inner[8] & 15) * 4
    return _endpoint(socket.AF_INET, inner[24:28], inner[8 + header :])


def refused_ipv6_destination(packet: bytes) -> tuple[str, int] | None:
    """Return the destination in an ICMPv6 message, which has no IPv6 header; None for other messages."""
    if tuple(packet[:2]) != _UNREACHABLE6 or len(packet) < 56 or packet[8 + 6] not in _DATAGRAM_PROTOCOLS:
        return None
    return _endpoint(socket.AF_INET6, packet[32:48], packet[48:])


def _endpoint(family: int, address: bytes, datagram: bytes) -> tuple[str, int] | None:
    if len(datagram) < 4 or int.from_bytes(datagram[:2]) == DNS:
        return None  # the answer to a query whose client has given up
    return socket.inet_ntop(family, address), int.from_bytes(datagram[2:4])


def _connection_report(address: str, port: int, count: int) -> dict[str, Any]:
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return {
        "destination": place,
        "address": place,
        "protocol": "udp",
        "outcome": "refused",
        "reason": "QUIC falls back to TCP"
        if port == 443
        else "a captive command can send no datagrams except DNS queries",
        "sent": 0,
        "received": 0,
        "count": count,
    }
