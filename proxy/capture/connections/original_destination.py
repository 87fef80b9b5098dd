"""The destination that a redirected connection had before netfilter changed it."""

import ipaddress
import socket
import struct
from typing import Any, Final, Literal

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address
type Source = Literal["redirected", "local"]

SO_ORIGINAL_DST: Final = 80
IP6T_SO_ORIGINAL_DST: Final = 80
_SOL_IPV6: Final = 41


def connection_destination(connection: Any, source: Source) -> tuple[Address, int]:
    """Return the address and port that an accepted connection was made to. Raises OSError if the kernel has none.

    `connection` is a socket, or an asyncio transport's substitute for its socket.
    """
    address, port = connection.getsockname()[:2]
    if source == "redirected":
        address, port = _redirected_destination(connection)
    return plain_address(address), port


def plain_address(text: str) -> Address:
    """Parse an address without its scope. An IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`) becomes IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _redirected_destination(connection: Any) -> tuple[str, int]:
    if connection.family == socket.AF_INET6:
        try:
            found = connection.getsockopt(_SOL_IPV6, IP6T_SO_ORIGINAL_DST, 28)
        except OSError:
            # It is an IPv4 client of a socket for both families.
            return _redirected_ipv4_destination(connection)
        _, port, _, packed, _ = struct.unpack(">HHI16sI", found)
        return socket.inet_ntop(socket.AF_INET6, packed), port
    return _redirected_ipv4_destination(connection)


def _redirected_ipv4_destination(connection: Any) -> tuple[str, int]:
    found = connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    _, port, packed = struct.unpack(">HH4s8x", found)
    return socket.inet_ntop(socket.AF_INET, packed), port
