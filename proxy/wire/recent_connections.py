"""Remember the connections that a worker made recently, to recognise its own when netfilter sends them back."""

import time
from collections import OrderedDict
from typing import Any, Final

REMEMBERED_FOR: Final = 10.0
"""Seconds. A redirected connection arrives at once, and sends its first bytes soon after."""

MOST: Final = 4096

type Endpoint = tuple[str, int]


class RecentConnections:
    """Both ends of each connection: while it is open, no other has the same."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Endpoint, Endpoint], float] = OrderedDict()

    def note(self, transport: Any) -> None:
        """Remember a connection that was just made, before anything is sent over it."""
        ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if all(ends):
            self._made[_ends(*ends)] = time.monotonic()
            if len(self._made) > MOST:
                self._made.popitem(last=False)

    def has(self, source: Endpoint, destination: Endpoint) -> bool:
        """Whether a connection with these ends was made a moment ago."""
        made = self._made.get(_ends(source, destination))
        return made is not None and time.monotonic() - made < REMEMBERED_FOR


def _ends(source: Endpoint, destination: Endpoint) -> tuple[Endpoint, Endpoint]:
    return (_plain(source[0]), source[1]), (_plain(destination[0]), destination[1])


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
