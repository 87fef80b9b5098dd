"""Decide which trailer fields are forwarded.

A recipient that merges trailers into the head could use some fields for framing, routing or authorization, after the fact
(RFC 9110 6.5.1, RFC 7230 4.1.2). These fields are recorded, but not forwarded.
"""

from typing import Final

from calls.model import Headers

_FORBIDDEN: Final = frozenset(
    {
        # Framing
        *("content-length", "transfer-encoding", "trailer"),
        # The connection
        *("connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings"),
        # Routing
        *("host", "alt-svc", "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
        # Request modifiers
        *("cache-control", "expect", "max-forwards", "pragma", "range", "te"),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"),
        # Authentication
        *("authorization", "cookie", "proxy-authenticate", "proxy-authorization", "set-cookie", "www-authenticate"),
        # Response control data
        *("age", "date", "expires", "location", "retry-after", "vary", "warning"),
        # Content format
        *("content-encoding", "content-range", "content-type"),
    }
)
_OWN_PREFIXES: Final = ("playhead-", "x-playhead-")
"""Prefixes of fields that only Playhead itself may send."""


def is_sendable(name: str) -> bool:
    """Return whether a trailer field of this name is forwarded."""
    lowered = name.lower()
    return lowered not in _FORBIDDEN and lowered != "playhead" and not lowered.startswith(_OWN_PREFIXES)


def sendable_trailers(trailers: Headers) -> Headers:
    """Return the trailer fields that are forwarded."""
    return tuple(field for field in trailers if is_sendable(field[0]))
