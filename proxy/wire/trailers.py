"""Decide which trailer fields are passed on: those that would mean the same in a head.

What stands here came too late to be obeyed where it belongs, and a recipient that merges it into the head would frame, route or
authorize by it (RFC 9110 6.5.1, RFC 7230 4.1.2). It is recorded as it came, and dropped on the wire.
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
        # How the content is read
        *("content-encoding", "content-range", "content-type"),
    }
)
_OURS: Final = ("playhead-", "x-playhead-")
"""What only the proxy itself may say."""


def is_sendable(name: str) -> bool:
    """Whether a trailer field of this name is passed on."""
    lowered = name.lower()
    return lowered not in _FORBIDDEN and lowered != "playhead" and not lowered.startswith(_OURS)


def sendable_trailers(trailers: Headers) -> Headers:
    """The trailer fields that are passed on."""
    return tuple(field for field in trailers if is_sendable(field[0]))
