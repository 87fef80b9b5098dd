"""List the TCP sockets that listen in a network namespace, and this machine's addresses, by netlink."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.capture.namespace import netlink

SOCK_DIAG: Final = 4
_ROUTE: Final = 0
_BY_FAMILY: Final = 20
_GET_ADDRESS: Final = 22
_LISTEN: Final = 1 << 10
_PORT_AND_ADDRESS: Final = struct.Struct("!H2x16s")
_SOCKET_ATTRIBUTES: Final = 72
"""The size of `struct inet_diag_msg`, behind which its attributes begin."""

_V6ONLY_ATTRIBUTE: Final = 11
_LOCAL_ATTRIBUTE: Final = 2
_ADDRESS_ATTRIBUTE: Final = 1


type HostPort = tuple[int, str, int]
"""An address family, an address of it ("": every one) and a port on which something listens there."""

_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_MAPPED: Final = "::ffff:"
"""How the address of an IPv6 socket begins that is bound to one IPv4 address."""


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A listening TCP socket."""

    family: int
    address: str
    port: int
    is_dual: bool = False
    """Whether it listens for IPv4, too, though it is a socket of IPv6."""

    def host_ports(self) -> Iterator[HostPort]:
        """Yield the port with each family in which it accepts connections, and the address at which it does."""
        if self.family == socket.AF_INET6 and self.address.startswith(_MAPPED):
            address = self.address.removeprefix(_MAPPED)
            yield int(socket.AF_INET), "" if address in _WILDCARDS else address, self.port
            return
        yield self.family, "" if self.address in _WILDCARDS else self.address, self.port
        if self.is_dual:
            yield int(socket.AF_INET), "", self.port


def listening_sockets(diagnostics: socket.socket) -> set[ListeningSocket]:
    """Return the sockets that listen in the namespace of this netlink socket. Raises OSError."""
    found: set[ListeningSocket] = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        query = struct.pack("=BBBxL48x", family, socket.IPPROTO_TCP, 0, _LISTEN)
        for message in netlink.dump(diagnostics, _BY_FAMILY, query):
            port, address = _PORT_AND_ADDRESS.unpack_from(message, 4)
            size = 4 if message[0] == socket.AF_INET else 16
            text = socket.inet_ntop(message[0], address[:size])
            is_v6only = _attributes(message[_SOCKET_ATTRIBUTES:]).get(_V6ONLY_ATTRIBUTE, b"\0")[:1] != b"\0"
            found.add(ListeningSocket(message[0], text, port, text == "::" and not is_v6only))
    return found


def host_ports() -> set[HostPort]:
    """Return the ports on which programs listen in the namespace of this process, with family and address."""
    with netlink.open_socket(SOCK_DIAG) as diagnostics:
        return {port for one in listening_sockets(diagnostics) for port in one.host_ports()}


def own_addresses() -> list[str]:
    """Return the addresses of this machine, except loopback."""
    found: dict[str, None] = {}
    with netlink.open_socket(_ROUTE) as connection:
        for message in netlink.dump(connection, _GET_ADDRESS, struct.pack("=BBBBL", 0, 0, 0, 0, 0)):
            family = message[0]
            attributes = _attributes(message[8:])
            packed = attributes.get(_LOCAL_ATTRIBUTE) or attributes.get(_ADDRESS_ATTRIBUTE)
            if family in (socket.AF_INET, socket.AF_INET6) and packed:
                found[socket.inet_ntop(family, packed)] = None
    return [address for address in found if address != "::1" and not address.startswith("127.")]


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[-(-length // 4) * 4 :]
    return found
