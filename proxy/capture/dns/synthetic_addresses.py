"""Synthetic addresses for names: a captured command resolves a name to one, which identifies the name when it connects."""

import ipaddress
from collections import OrderedDict
from typing import Final

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# RFC 2544: reserved for benchmarks, so it hides no real host.
IPV4: Final = ipaddress.IPv4Network("198.18.0.0/15")
# RFC 4193: a unique local prefix, chosen for Playhead.
IPV6: Final = ipaddress.IPv6Network("fd70:6c61:7968:6561::/64")

MAX_NAMES: Final = 1 << 16


class NameTable:
    """Names and their addresses. When it is full, the least recently used name loses its address."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._names: dict[int, str] = {}

    def ipv4(self, name: str) -> ipaddress.IPv4Address:
        """Return the IPv4 address of a name."""
        return IPV4[self._number(name)]

    def ipv6(self, name: str) -> ipaddress.IPv6Address:
        """Return the IPv6 address of a name."""
        return IPV6[self._number(name)]

    def name_of_address(self, address: Address) -> str | None:
        """Return the name that has this address; None if there is none."""
        network = IPV4 if isinstance(address, ipaddress.IPv4Address) else IPV6
        if address not in network:
            return None
        name = self._names.get(int(address) - int(network.network_address))
        if name is not None:
            self._numbers.move_to_end(name)
        return name

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= self._max_names:
                _, number = self._numbers.popitem(last=False)
            else:
                number = len(self._numbers) + 1
            self._numbers[name] = number
            self._names[number] = name
        self._numbers.move_to_end(name)
        return number
