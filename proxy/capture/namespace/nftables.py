"""The packet rules of a captive namespace, by netlink: all TCP goes to one listener of ours.

    table inet playhead {
        set host_ports { type inet_service; }
        chain own { tcp dport @host_ports redirect to :PORT }
        chain output { type nat hook output priority -100;
            meta l4proto != tcp accept
            ip daddr 127.0.0.0/8 goto own
            ip6 daddr ::1 goto own
            (each address of this machine) goto own
            redirect to :PORT
        }
    }

A connection to this machine itself is taken only at ports on which the host listens: any other is for what listens
inside the namespace, or is refused by the kernel like everywhere. Standard library only (`proxy/capture/namespace/inside.py`).
"""

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

from proxy.capture.namespace import netlink
from proxy.capture.namespace.netlink import attribute, nested, number, text

TABLE = "playhead"
HOST_PORTS = "host_ports"
OWN = "own"

_NETFILTER = 12
_INET = 1
_IPV4 = 2
_IPV6 = 10
_REGISTER = 1
_GOTO = -4
_ACCEPT = 1

_NEW_TABLE, _NEW_CHAIN, _NEW_RULE, _NEW_SET, _NEW_ELEMENT, _DELETE_ELEMENT = 0, 3, 6, 9, 12, 14

PORTS_AT_ONCE = 500
"""Elements in one message, which must stay below 64 KiB."""


def redirect_tcp(port: int, own: "Iterable[str]") -> None:
    """Put the rules in force. `own` are the addresses of this machine beside loopback. Raises OSError."""
    output = [
        _rule("output", _loaded_protocol(16), _compared(bytes([6]), equal=False), _verdict(_ACCEPT)),
        *(_rule("output", *_destined(*network), _verdict(_GOTO, OWN)) for network in _own_networks(own)),
        _rule("output", *_redirected(port)),
    ]
    steps = [
        (_NEW_TABLE, text(1, TABLE)),
        (_NEW_SET, _port_set()),
        (_NEW_CHAIN, text(1, TABLE) + text(3, OWN)),
        (_NEW_CHAIN, _output_chain()),
        (_NEW_RULE, _rule(OWN, _loaded_port(), _looked_up(HOST_PORTS), *_redirected(port))),
        *((_NEW_RULE, rule) for rule in output),
    ]
    _send(steps)


def change_host_ports(added: "Iterable[int]", removed: "Iterable[int]") -> None:
    """Keep the set of ports on which the host listens. Raises OSError."""
    for kind, ports in ((_NEW_ELEMENT, sorted(added)), (_DELETE_ELEMENT, sorted(removed))):
        for start in range(0, len(ports), PORTS_AT_ONCE):
            _send([(kind, _elements(ports[start : start + PORTS_AT_ONCE]))])


def _send(steps: "Sequence[tuple[int, bytes]]") -> None:
    family = struct.pack("!BBH", _INET, 0, 0)
    flags = netlink.REQUEST | netlink.ACK | netlink.CREATE | netlink.APPEND
    messages = [
        netlink.message(10 << 8 | kind, flags, family + payload, sequence)
        for sequence, (kind, payload) in enumerate(steps, 1)
    ]
    with netlink.opened(_NETFILTER) as connection:
        netlink.batch(connection, messages)


def _own_networks(own: "Iterable[str]") -> list[tuple[bytes, bytes]]:
    """Addresses and masks, packed."""
    loopback4 = (bytes([127, 0, 0, 0]), bytes([255, 0, 0, 0]))
    return [loopback4, *(_single(address) for address in ("::1", *own))]


def _single(address: str) -> tuple[bytes, bytes]:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return packed, b"\xff" * len(packed)


def _port_set() -> bytes:
    # A key of 2 bytes; type 13 is what `nft list` shows as inet_service.
    return text(1, TABLE) + text(2, HOST_PORTS) + number(3, 0) + number(4, 13) + number(5, 2) + number(10, 1)


def _elements(ports: "Sequence[int]") -> bytes:
    elements = [nested(1, nested(1, attribute(1, struct.pack("!H", port)))) for port in ports]
    return text(1, TABLE) + text(2, HOST_PORTS) + nested(3, *elements)


def _output_chain() -> bytes:
    hook = nested(4, number(1, 3), number(2, -100))  # NF_INET_LOCAL_OUT, NF_IP_PRI_NAT_DST
    return text(1, TABLE) + text(3, "output") + hook + number(5, _ACCEPT) + text(7, "nat")


def _rule(chain: str, *expressions: bytes) -> bytes:
    return text(1, TABLE) + text(2, chain) + nested(4, *expressions)


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *attributes))


def _loaded_protocol(key: int) -> bytes:
    """`meta`: 15 is the address family, 16 the transport protocol."""
    return _expression("meta", number(1, _REGISTER), number(2, key))


def _loaded_port() -> bytes:
    return _expression("payload", number(1, _REGISTER), number(2, 2), number(3, 2), number(4, 2))


def _compared(value: bytes, *, equal: bool = True) -> bytes:
    return _expression("cmp", number(1, _REGISTER), number(2, 0 if equal else 1), nested(3, attribute(1, value)))


def _destined(network: bytes, mask: bytes) -> list[bytes]:
    """Matches packets to one network."""
    size = len(network)
    family, offset = (_IPV4, 16) if size == 4 else (_IPV6, 24)
    loaded = _expression("payload", number(1, _REGISTER), number(2, 1), number(3, offset), number(4, size))
    registers = (number(1, _REGISTER), number(2, _REGISTER), number(3, size))
    masked = _expression("bitwise", *registers, nested(4, attribute(1, mask)), nested(5, attribute(1, bytes(size))))
    return [_loaded_protocol(15), _compared(bytes([family])), loaded, masked, _compared(network)]


def _looked_up(name: str) -> bytes:
    return _expression("lookup", text(1, name), number(2, _REGISTER), number(4, 1))


def _redirected(port: int) -> list[bytes]:
    loaded = _expression("immediate", number(1, _REGISTER), nested(2, attribute(1, struct.pack("!H", port))))
    return [loaded, _expression("redir", number(1, _REGISTER))]


def _verdict(code: int, chain: str | None = None) -> bytes:
    parts = [number(1, code)] + ([text(2, chain)] if chain else [])
    return _expression("immediate", number(1, 0), nested(2, nested(2, *parts)))
