"""Recognise a protocol by the first bytes that a client, or a server, sends."""

import re
from typing import Final, Literal

type Protocol = Literal["tls", "http", "connect", "raw"]

MAX_LINE_BYTES: Final = 64 << 10
"""The maximum length of a request line in bytes."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) [^ \r\n][^\r\n]* HTTP/1\.[0-9]\r?")
_TLS_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1

_METHODS: Final = tuple(
    f"{method} ".encode()
    for method in (
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY", "PRI", "PROPFIND"),
        *("PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "PURGE", "MKCALENDAR", "LIST"),
    )
)


def recognize(data: bytes) -> Protocol | None:
    """Return the protocol that begins with these bytes; None if more bytes are needed."""
    if data[:1] == bytes([_TLS_HANDSHAKE]):
        return _recognize_tls(data)
    if _PREFACE.startswith(data[: len(_PREFACE)]):
        return "http" if len(data) >= len(_PREFACE) else None
    line, newline, _ = data.partition(b"\n")
    if newline:
        found = _REQUEST_LINE.fullmatch(line)
        if found is None:
            return "raw"
        return "connect" if found[1] == b"CONNECT" else "http"
    # An unfinished line must begin with a known method, because other text protocols also begin with a word.
    begins = any(data.startswith(method) or method.startswith(data) for method in _METHODS)
    return None if begins and len(data) < MAX_LINE_BYTES else "raw"


_SETTINGS: Final = 4


def is_http2_server(data: bytes) -> bool:
    """Return whether these bytes of a server begin with SETTINGS: with HTTP/2 it need not wait for its client (RFC 9113, 3.4)."""
    # A frame's length, type, flags (no ACK) and stream (9113, 4.1). Each setting has six bytes (6.5).
    length = int.from_bytes(data[:3])
    return len(data) >= 9 and data[3:9] == bytes([_SETTINGS, 0, 0, 0, 0, 0]) and length % 6 == 0


def _recognize_tls(data: bytes) -> Protocol | None:
    if data[1:2] not in (b"", b"\x03") or data[5:6] not in (b"", bytes([_CLIENT_HELLO])):
        return "raw"
    return "tls" if len(data) >= 6 else None


_HOST: Final = re.compile(rb"(?im)^host:[ \t]*([^\r\n]*?)[ \t]*\r?$")
_NAME: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


def host_name(authority: str) -> str | None:
    """Return the host of a Host field or an `:authority`, without its port; None if it is invalid."""
    found = _NAME.fullmatch(authority)
    return found[1].strip("[]").lower().rstrip(".") or None if found else None
