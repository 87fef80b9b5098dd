"""The packet rules of a captive namespace, by netlink: they redirect all TCP to one listener.

    table inet playhead {
        set host_ports4 { type inet_service; }
        set host_ports6 { type inet_service; }
        chain own {
            meta nfproto ipv4 tcp dport @host_ports4 redirect to :PORT
            meta nfproto ipv6 tcp dport @host_ports6 redirect to :PORT
        }
        chain output { type nat hook output priority -100;
            meta l4proto != tcp accept
            ip daddr 127.0.0.0/8 goto own
            ip6 daddr ::1 goto own
            (each address of this machine) goto own
            redirect to :PORT
        }
    }

A connection to this machine itself is redirected only if the host listens on its port, in its family: a client that tries
::1 for `localhost` first goes on to 127.0.0.1 if it is refused there. Any other connection is for what listens inside the
namespace, or the kernel refuses it. Standard library only (`proxy/capture/namespace/inside.py`).
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
HOST_PORTS = {_IPV4: "host_ports4", _IPV6: "host_ports6"}
"""The set of each family's ports. The families have the numbers of `socket.AF_INET` and `AF_INET6`."""

_REGISTER = 1
_GOTO = -4
_ACCEPT = 1

_NEW_TABLE, _NEW_CHAIN, _NEW_RULE, _NEW_SET, _NEW_ELEMENT, _DELETE_ELEMENT = 0, 3, 6, 9, 12, 14

PORTS_AT_ONCE = 500
"""The maximum number of ports in one message, which must stay below 64 KiB."""


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
        *((_NEW_SET, _port_set(family)) for family in HOST_PORTS),
        (_NEW_CHAIN, text_attribute(1, TABLE) + text_attribute(3, OWN)),
        (_NEW_CHAIN, _output_chain()),
        *(
            (_NEW_RULE, _rule(OWN, *_host_port_expressions(family), *_redirect_expressions(port)))
            for family in HOST_PORTS
        ),
        *((_NEW_RULE, rule) for rule in output),
    ]
    _send(steps)


def change_host_ports(added: "Iterable[tuple[int, int]]", removed: "Iterable[tuple[int, int]]") -> None:
    """Update the sets of ports on which the host listens, each with its family. Raises OSError."""
    for kind, pairs in ((_NEW_ELEMENT, sorted(added)), (_DELETE_ELEMENT, sorted(removed))):
        for family in HOST_PORTS:
            ports = [port for pair_family, port in pairs if pair_family == family]
            for start in range(0, len(ports), PORTS_AT_ONCE):
                _send([(kind, _elements(family, ports[start : start + PORTS_AT_ONCE]))])


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


def _port_set(family: int) -> bytes:
    # The key has 2 bytes; `nft list` shows type 13 as inet_service.
    return (
        text_attribute(1, TABLE)
        + text_attribute(2, HOST_PORTS[family])
        + number_attribute(3, 0)
        + number_attribute(4, 13)
        + number_attribute(5, 2)
        + number_attribute(10, family)
    )


def _elements(family: int, ports: "Sequence[int]") -> bytes:
    elements = [nested_attribute(1, nested_attribute(1, attribute(1, struct.pack("!H", port)))) for port in ports]
    return text_attribute(1, TABLE) + text_attribute(2, HOST_PORTS[family]) + nested_attribute(3, *elements)


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


def _port_expression() -> bytes:
    return _expression(
        "payload",
        number_attribute(1, _REGISTER),
        number_attribute(2, 2),
        number_attribute(3, 2),
        number_attribute(4, 2),
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
    family, offset = (_IPV4, 16) if size == 4 else (_IPV6, 24)
    loaded = _expression(
        "payload",
        number_attribute(1, _REGISTER),
        number_attribute(2, 1),
        number_attribute(3, offset),
        number_attribute(4, size),
    )
    registers = (number_attribute(1, _REGISTER), number_attribute(2, _REGISTER), number_attribute(3, size))
    masked = _expression(
        "bitwise", *registers, nested_attribute(4, attribute(1, mask)), nested_attribute(5, attribute(1, bytes(size)))
    )
    return [_meta_expression(15), _compare_expression(bytes([family])), loaded, masked, _compare_expression(network)]


def _host_port_expressions(family: int) -> list[bytes]:
    """Build the expressions that match packets to the host's ports of a family. A new set is known by its number."""
    found = _expression(
        "lookup", text_attribute(1, HOST_PORTS[family]), number_attribute(2, _REGISTER), number_attribute(4, family)
    )
    return [_meta_expression(15), _compare_expression(bytes([family])), _port_expression(), found]


def _redirect_expressions(port: int) -> list[bytes]:
    loaded = _expression(
        "immediate", number_attribute(1, _REGISTER), nested_attribute(2, attribute(1, struct.pack("!H", port)))
    )
    return [loaded, _expression("redir", number_attribute(1, _REGISTER))]


def _verdict_expression(code: int, chain: str | None = None) -> bytes:
    parts = [number_attribute(1, code)] + ([text_attribute(2, chain)] if chain else [])
    return _expression("immediate", number_attribute(1, 0), nested_attribute(2, nested_attribute(2, *parts)))
