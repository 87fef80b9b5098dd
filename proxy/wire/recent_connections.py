"""Remember the connections that a worker made recently, to recognise its own when netfilter redirects them to it."""

import time
from collections import OrderedDict
from typing import Any, Final

REMEMBER_SECONDS: Final = 10.0
"""Seconds to remember a connection. A redirected one arrives at once, and sends its first bytes soon after."""

MAX_REMEMBERED: Final = 4096

type Endpoint = tuple[str, int]


class RecentConnections:
    """The recent connections by both their addresses, which no other open connection shares."""

    def __init__(self) -> None:
        self._made_at: OrderedDict[tuple[Endpoint, Endpoint], float] = OrderedDict()

    def remember(self, transport: Any) -> None:
        """Remember a new connection. Call it before anything is sent."""
        ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if all(ends):
            self._made_at[_connection_key(*ends)] = time.monotonic()
            if len(self._made_at) > MAX_REMEMBERED:
                self._made_at.popitem(last=False)

    def is_recent(self, source: Endpoint, destination: Endpoint) -> bool:
        """Return whether a connection between these addresses was made recently."""
        made_at = self._made_at.get(_connection_key(source, destination))
        return made_at is not None and time.monotonic() - made_at < REMEMBER_SECONDS


def _connection_key(source: Endpoint, destination: Endpoint) -> tuple[Endpoint, Endpoint]:
    return (_plain_address(source[0]), source[1]), (_plain_address(destination[0]), destination[1])


def _plain_address(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
