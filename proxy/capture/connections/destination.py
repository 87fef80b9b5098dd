"""Where a captured connection was going, and which rules it is under: what the engines need to know of it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from proxy.capture.report import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedDestination:
    """The destination of one captured connection."""

    host: str
    """The name that the client resolved, or the address where nobody knows a name. This is what is connected to."""

    port: int
    is_named: bool
    """Whether `host` is a name that the client resolved with us."""

    is_local: bool
    """Whether the client is the user's own command, which may reach private addresses and any port."""

    report_failure: Callable[[str], None]
    """Report why the connection could not be served."""

    pass_undecoded: Callable[[str], Entry | None]
    """What is spoken within its TLS is not HTTP, for this reason: where its bytes are counted, or None where it is refused."""


_ALERT = re.compile(
    r"(?i)alert[ _](unknown[ _]ca|bad[ _]certificate|certificate[ _]unknown|unsupported[ _]certificate|access[ _]denied)"
)
_LEFT = re.compile(r"(left|closed|disconnected) (in|during) the handshake")


def rejection(error: object) -> str | None:
    """Why a client ended its TLS handshake, where it may be for our certificate. Clients on asyncio leave without an alert."""
    text = str(error)
    fix = "have it trust Playhead's CA, or list the host under [tunnel]"
    if found := _ALERT.search(text):
        return f"the client does not trust Playhead's certificate ({found[1].lower().replace('_', ' ')}): {fix}"
    if _LEFT.search(text):
        return f"the client left in the TLS handshake, perhaps because it does not trust Playhead's certificate: {fix}"
    return None
