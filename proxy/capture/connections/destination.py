"""The destination of a captured connection, and the rules that apply to it."""

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from proxy.capture.report import Entry


class CapturedDestination(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of one captured connection."""

    host: str
    """The name that the client resolved, or the address if no name is known. Upstream connections go here."""

    port: int
    is_named: bool
    """Whether `host` is a name that the client resolved."""

    is_local: bool
    """Whether the client is the user's own command, which may reach private addresses and any port."""

    report_failure: Callable[[str], None]
    """Reports why the connection could not be served."""

    pass_undecoded: Callable[[str], Entry | None]
    """Counts a connection that is not HTTP within its TLS, for this reason. Returns None if it is refused."""


_ALERT = re.compile(
    r"(?i)alert[ _](unknown[ _]ca|bad[ _]certificate|certificate[ _]unknown|unsupported[ _]certificate|access[ _]denied)"
)
_DISCONNECTED = re.compile(r"(left|closed|disconnected) (in|during) the handshake")


class HandshakeRejection(NamedTuple):
    """Why a client ended its TLS handshake."""

    code: Literal["ca_not_trusted", "client_left_handshake"]
    reason: str


def handshake_rejection(error: object) -> HandshakeRejection | None:
    """Explain why a client ended its TLS handshake, if that may be due to Playhead's certificate; else None.

    Clients on asyncio disconnect without an alert.
    """
    text = str(error)
    fix = "have it trust Playhead's CA, or list the host under [tunnel]"
    if found := _ALERT.search(text):
        alert = found[1].lower().replace("_", " ")
        return HandshakeRejection(
            "ca_not_trusted", f"the client does not trust Playhead's certificate ({alert}): {fix}"
        )
    if isinstance(error, ConnectionError) or _DISCONNECTED.search(text):
        return HandshakeRejection(
            "client_left_handshake",
            f"the client left in the TLS handshake, perhaps because it does not trust Playhead's certificate: {fix}",
        )
    return None
