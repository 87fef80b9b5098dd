"""Check the head of a message before any of it is forwarded. mitmproxy itself accepts many malformed heads."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from proxy.wire.problem import Problem

HEAD_BYTES = 128 << 10
HEAD_LINES = 500

HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Fields that depend on a connection (RFC 9110 7.6.1): those of a recorded answer are not sent again."""

_END = re.compile(rb"\r?\n\r?\n")
# RFC 9112 2.2: a bare CR is invalid; 5.2: obs-fold in a request is refused; 2.2 lets us refuse a bare LF.
# Some parsers treat other control characters as whitespace: Python's strip reads `Transfer-Encoding:\x0bchunked` as chunked.
_BAD_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n|\n[ \t]")
_OTHER_VERSION = re.compile(rb"[^\r\n]* HTTP/(?!1\.[01][\r\n])[0-9]")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def http1_head_fault(buffered: bytes) -> Problem | None:
    """Return what is wrong with a complete or partial HTTP/1 request head, or None."""
    end = _END.search(buffered)
    head = buffered if end is None else buffered[: end.start()]
    if len(head) > HEAD_BYTES or head.count(b"\n") > HEAD_LINES:
        return Problem(
            431, "head_too_large", f"the request's head is larger than {HEAD_BYTES >> 10} KiB or {HEAD_LINES} fields"
        )
    if end and _OTHER_VERSION.match(head + b"\r"):
        return Problem(
            505, "unsupported_version", "the request on this HTTP/1 connection does not name HTTP/1.0 or HTTP/1.1"
        )
    if end and _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0]) is None:
        # RFC 9112 3: a parser that accepts other whitespace than one space could read another target.
        return Problem(
            400, "malformed_head", "the request line is not METHOD TARGET HTTP/1.1; the request was not forwarded"
        )
    # The last byte of an incomplete head may be the first half of a line end.
    if _BAD_HEAD.search(head if end else head.removesuffix(b"\r")):
        return Problem(
            400,
            "malformed_head",
            "the request's head contains a control character, a bare CR or LF, or a folded line; it was not forwarded",
        )
    return None


def fields_fault(fields: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return what is wrong with parsed header fields of any version of HTTP, or None."""
    for name, value in fields:
        if not _is_token(name):
            return "a field name is not a token"
        if _BAD_VALUE.search(value):
            return "a field value contains a control character"
    return None


@lru_cache(2048)
def _is_token(name: bytes) -> bool:
    return _NAME.fullmatch(name) is not None
