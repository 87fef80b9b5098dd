"""Make every IPv4 and IPv6 address local to the network namespace of this process, by rtnetlink.

Standard library only (`proxy/capture/namespace/inside.py`).
"""

import fcntl
import socket
import struct

from proxy.capture.namespace import netlink

SOURCE4 = "192.0.0.8"
"""The source address of connections: IPv4's dummy address (RFC 7600, 4.8), which no host has.
Without it their source would be their destination, and a connection could connect to itself."""

SOURCE6 = "fd37:706c:6179:6865:6164::8"
"""The source address for IPv6. Programs that check for a network also see one of each family by these addresses."""

_RTM_NEWADDR = 20
_RTM_NEWROUTE = 24
_RT_TABLE_MAIN = 254
_RTPROT_STATIC = 4
_RTN_LOCAL = 2
_SCOPE_HOST = 254
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_NODAD = 0x02
"""The flag that skips duplicate address detection, so that the address can be used at once."""


def make_all_addresses_local() -> bool:
    """Bring loopback up and route everything to it. Returns whether IPv6 is available. Raises OSError."""
    _raise_loopback()
    lo = socket.if_nametoindex("lo")
    with netlink.open_socket(0) as connection:
        _add_address(connection, lo, socket.AF_INET, SOURCE4)
        _route_everything(connection, lo, socket.AF_INET, SOURCE4)
        try:
            _add_address(connection, lo, socket.AF_INET6, SOURCE6)
            _route_everything(connection, lo, socket.AF_INET6, SOURCE6)
        except OSError:
            return False
    return True


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _add_address(connection: socket.socket, interface: int, family: int, address: str) -> None:
    packed = socket.inet_pton(family, address)
    head = struct.pack("=BBBBL", family, len(packed) * 8, _NODAD if family == socket.AF_INET6 else 0, 0, interface)
    body = netlink.attribute(1, packed) + netlink.attribute(2, packed)  # IFA_ADDRESS, IFA_LOCAL
    netlink.send_request(connection, _RTM_NEWADDR, netlink.CREATE_EXCLUSIVE, head + body)


def _route_everything(connection: socket.socket, interface: int, family: int, source: str) -> None:
    """`ip route add local default dev lo src SOURCE`."""
    head = struct.pack("=BBBBBBBBL", family, 0, 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, _SCOPE_HOST, _RTN_LOCAL, 0)
    # RTA_OIF, RTA_PREFSRC
    body = netlink.attribute(4, struct.pack("=L", interface)) + netlink.attribute(7, socket.inet_pton(family, source))
    netlink.send_request(connection, _RTM_NEWROUTE, netlink.CREATE_EXCLUSIVE, head + body)
