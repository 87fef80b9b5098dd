"""The packet rules of a captive namespace, by netlink: they redirect all TCP to one listener.

    table inet playhead {
        set host_ports4 { type inet_service; }
        set host_addresses4 { type ipv4_addr . inet_service; }
        set host_ports6 { type inet_service; }
        set host_addresses6 { type ipv6_addr . inet_service; }
        chain own {
            meta nfproto ipv4 tcp dport @host_ports4 redirect to :PORT
            meta nfproto ipv4 ip daddr . tcp dport @host_addresses4 redirect to :PORT
            meta nfproto ipv6 tcp dport @host_ports6 redirect to :PORT
            meta nfproto ipv6 ip6 daddr . tcp dport @host_addresses6 redirect to :PORT
        }
        chain output { type nat hook output priority -100;
            meta l4proto != tcp accept
            ip daddr 127.0.0.0/8 goto own
            ip6 daddr ::1 goto own
            (each address of this machine) goto own
            redirect to :PORT
        }
    }

A connection to this machine itself is redirected only if the host listens at its address and port, or on its port at every
address of the family: a client that tries ::1 for `localhost` first goes on to 127.0.0.1 if it is refused there. Any other
connection is for what listens inside the namespace, or the kernel refuses it. Standard library only
(`proxy/capture/namespace/inside.py`).
"""

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

from proxy.capture.namespace import netlink
from proxy.capture.namespace.netlink import attribute, nested_attribute, number_attribute, text_attribute

TABLE = "playhead"
OWN = "own"

_NETFILTER = 12
_INET = 1
_IPV4 = 2
_IPV6 = 10


class HostSet:
    """A set of what the host listens on in one family: ports or, for what is bound to one address, addresses and ports.

    The families have the numbers of `socket.AF_INET` and `AF_INET6`.
    """

    def __init__(self, number: int, name: str, family: int, address_size: int) -> None:
        self.number = number
        """A new set is known by its number in the rules of the same batch."""
        self.name = name
        self.family = family
        self.address_size = address_size
        """Bytes of an address; 0 in a set of ports alone."""

    def key(self, address: str, port: int) -> bytes:
        """Return an element's key."""
        number = struct.pack("!H", port)
        # Each part of a key of several begins at a multiple of 4 bytes.
        return socket.inet_pton(self.family, address) + number + bytes(2) if self.address_size else number

    def is_for(self, family: int, address: str) -> bool:
        """Return whether the set is the one for listeners at this address; "" is every one."""
        return family == self.family and bool(address) == bool(self.address_size)


HOST_SETS = (
    HostSet(1, "host_ports4", _IPV4, 0),
    HostSet(2, "host_addresses4", _IPV4, 4),
    HostSet(3, "host_ports6", _IPV6, 0),
    HostSet(4, "host_addresses6", _IPV6, 16),
)

_REGISTER = 1
_WORD_REGISTERS = 8
"""The number of the first register of 4 bytes. They are parts of those of 16 bytes, of which the first is number 1."""
_GOTO = -4
_ACCEPT = 1

_NEW_TABLE, _NEW_CHAIN, _NEW_RULE, _NEW_SET, _NEW_ELEMENT, _DELETE_ELEMENT = 0, 3, 6, 9, 12, 14

PORTS_AT_ONCE = 500
"""The maximum number of ports or addresses in one message, which must stay below 64 KiB."""


def redirect_tcp(port: int, own: "Iterable[str]") -> None:
    """Apply the rules. `own`: the addresses of this machine except loopback. Raises OSError."""
    output = [
        _rule(
            "output", _meta_expression(16), _compare_expression(bytes([6]), equal=False), _verdict_expression(_ACCEPT)
        ),
        *(
            _rule("output", *_destination_expressions(*network), _verdict_expression(_GOTO, OWN))
            for network in _own_networks(own)
        ),
        _rule("output", *_redirect_expressions(port)),
    ]
    steps = [
        (_NEW_TABLE, text_attribute(1, TABLE)),
        *((_NEW_SET, _host_set(one)) for one in HOST_SETS),
        (_NEW_CHAIN, text_attribute(1, TABLE) + text_attribute(3, OWN)),
        (_NEW_CHAIN, _output_chain()),
        *((_NEW_RULE, _rule(OWN, *_host_set_expressions(one), *_redirect_expressions(port))) for one in HOST_SETS),
        *((_NEW_RULE, rule) for rule in output),
    ]
    _send(steps)


def change_host_ports(added: "Iterable[tuple[int, str, int]]", removed: "Iterable[tuple[int, str, int]]") -> None:
    """Update the sets of what the host listens on: family, address ("": every one) and port of each. Raises OSError."""
    for kind, ports in ((_NEW_ELEMENT, sorted(added)), (_DELETE_ELEMENT, sorted(removed))):
        for one in HOST_SETS:
            keys = [one.key(address, port) for family, address, port in ports if one.is_for(family, address)]
            for start in range(0, len(keys), PORTS_AT_ONCE):
                _send([(kind, _elements(one, keys[start : start + PORTS_AT_ONCE]))])


def _send(steps: "Sequence[tuple[int, bytes]]") -> None:
    family = struct.pack("!BBH", _INET, 0, 0)
    flags = netlink.REQUEST | netlink.ACK | netlink.CREATE | netlink.APPEND
    messages = [
        netlink.build_message(10 << 8 | kind, flags, family + payload, sequence)
        for sequence, (kind, payload) in enumerate(steps, 1)
    ]
    with netlink.open_socket(_NETFILTER) as connection:
        netlink.send_batch(connection, messages)


def _own_networks(own: "Iterable[str]") -> list[tuple[bytes, bytes]]:
    """Return this machine's addresses and their masks, packed."""
    loopback4 = (bytes([127, 0, 0, 0]), bytes([255, 0, 0, 0]))
    return [loopback4, *(_single_address(address) for address in ("::1", *own))]


def _single_address(address: str) -> tuple[bytes, bytes]:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return packed, b"\xff" * len(packed)


def _host_set(one: HostSet) -> bytes:
    # What `nft list` shows: 13 is inet_service, 7 and 8 are ipv4_addr and ipv6_addr, and each type has 6 bits.
    address_type = {0: 0, 4: 7, 16: 8}[one.address_size]
    return (
        text_attribute(1, TABLE)
        + text_attribute(2, one.name)
        + number_attribute(3, 0)
        + number_attribute(4, address_type << 6 | 13)
        + number_attribute(5, one.address_size + 4 if one.address_size else 2)
        + number_attribute(10, one.number)
    )


def _elements(one: HostSet, keys: "Sequence[bytes]") -> bytes:
    elements = [nested_attribute(1, nested_attribute(1, attribute(1, key))) for key in keys]
    return text_attribute(1, TABLE) + text_attribute(2, one.name) + nested_attribute(3, *elements)


def _output_chain() -> bytes:
    hook = nested_attribute(
        4, number_attribute(1, 3), number_attribute(2, -100)
    )  # NF_INET_LOCAL_OUT, NF_IP_PRI_NAT_DST
    return (
        text_attribute(1, TABLE)
        + text_attribute(3, "output")
        + hook
        + number_attribute(5, _ACCEPT)
        + text_attribute(7, "nat")
    )


def _rule(chain: str, *expressions: bytes) -> bytes:
    return text_attribute(1, TABLE) + text_attribute(2, chain) + nested_attribute(4, *expressions)


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested_attribute(1, text_attribute(1, name), nested_attribute(2, *attributes))


def _meta_expression(key: int) -> bytes:
    """Build a `meta` expression. Key 15 is the address family, 16 the transport protocol."""
    return _expression("meta", number_attribute(1, _REGISTER), number_attribute(2, key))


def _port_expression(register: int) -> bytes:
    return _expression(
        "payload",
        number_attribute(1, register),
        number_attribute(2, 2),
        number_attribute(3, 2),
        number_attribute(4, 2),
    )


def _address_expression(family: int) -> bytes:
    """Build the expression that loads a packet's destination."""
    offset, size = (16, 4) if family == _IPV4 else (24, 16)
    return _expression(
        "payload",
        number_attribute(1, _REGISTER),
        number_attribute(2, 1),
        number_attribute(3, offset),
        number_attribute(4, size),
    )


def _compare_expression(value: bytes, *, equal: bool = True) -> bytes:
    return _expression(
        "cmp",
        number_attribute(1, _REGISTER),
        number_attribute(2, 0 if equal else 1),
        nested_attribute(3, attribute(1, value)),
    )


def _destination_expressions(network: bytes, mask: bytes) -> list[bytes]:
    """Build the expressions that match packets to one network."""
    size = len(network)
    family = _IPV4 if size == 4 else _IPV6
    registers = (number_attribute(1, _REGISTER), number_attribute(2, _REGISTER), number_attribute(3, size))
    masked = _expression(
        "bitwise", *registers, nested_attribute(4, attribute(1, mask)), nested_attribute(5, attribute(1, bytes(size)))
    )
    return [
        _meta_expression(15),
        _compare_expression(bytes([family])),
        _address_expression(family),
        masked,
        _compare_expression(network),
    ]


def _host_set_expressions(one: HostSet) -> list[bytes]:
    """Build the expressions that match packets to what the set holds."""
    words = one.address_size // 4
    loaded = [_address_expression(one.family)] if words else []
    found = _expression(
        "lookup", text_attribute(1, one.name), number_attribute(2, _REGISTER), number_attribute(4, one.number)
    )
    return [
        _meta_expression(15),
        _compare_expression(bytes([one.family])),
        *loaded,
        _port_expression(_WORD_REGISTERS + words),
        found,
    ]


def _redirect_expressions(port: int) -> list[bytes]:
    loaded = _expression(
        "immediate", number_attribute(1, _REGISTER), nested_attribute(2, attribute(1, struct.pack("!H", port)))
    )
    return [loaded, _expression("redir", number_attribute(1, _REGISTER))]


def _verdict_expression(code: int, chain: str | None = None) -> bytes:
    parts = [number_attribute(1, code)] + ([text_attribute(2, chain)] if chain else [])
    return _expression("immediate", number_attribute(1, 0), nested_attribute(2, nested_attribute(2, *parts)))
