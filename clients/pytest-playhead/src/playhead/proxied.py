"""Determine whether Playhead is at the other end of a connection: only then may a request on it name its run."""

from __future__ import annotations

import re
from typing import Any

from playhead.environment import is_captive, proxy_addresses

_LOOPBACK = re.compile(r"localhost\.?$|127\.|\[?::1\]?$|0\.0\.0\.0$", re.IGNORECASE)
"""Local addresses, which a captive command reaches without Playhead."""

_ISSUER = b"\x06\x03\x55\x04\x03\x0c\x0bPlayhead CA"
"""The common name (OID 2.5.4.3, a UTF8String) of Playhead's CA, as encoded in each certificate that it issues."""


def has_playhead_certificate(tls: Any) -> bool:
    """Whether a TLS connection ends at Playhead. A host on the tunnel list has its own certificate."""
    try:
        return _ISSUER in (tls.getpeercert(True) or b"")
    except (AttributeError, TypeError, ValueError, OSError):
        # Not a TLS object of Python, or no handshake yet.
        return False


def is_playhead_address(host: str | bytes | None, port: int | None) -> bool:
    """Whether a connection without TLS goes to the proxy."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    return (name, port) in proxy_addresses() or (is_captive() and not _LOOPBACK.match(name or "127.0.0.1"))


def goes_to_playhead(tls: Any, host: str | bytes | None, port: int | None) -> bool:
    """Whether Playhead reads the requests on this connection, and removes the header."""
    return has_playhead_certificate(tls) if tls is not None else is_playhead_address(host, port)
