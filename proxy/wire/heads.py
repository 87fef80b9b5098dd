"""Check the head of a message before anything of it goes on: mitmproxy itself lets much of this through."""

import re
from collections.abc import Iterable
from functools import lru_cache

from proxy.wire.problem import Problem

HEAD_BYTES = 128 << 10
HEAD_LINES = 500

_END = re.compile(rb"\r?\n\r?\n")
# RFC 9112 2.2: a bare CR is invalid; 5.2: obs-fold in a request is refused; 2.2 lets us refuse a bare LF.
# Other control characters are blanks to some readers: `Transfer-Encoding:\x0bchunked` is chunked for Python's strip.
_BAD_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n|\n[ \t]")
_OTHER_VERSION = re.compile(rb"[^\r\n]* HTTP/(?!1\.[01][\r\n])[0-9]")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def raw_fault(buffered: bytes) -> Problem | None:
    """What is wrong with the beginning of an HTTP/1 message, as far as it is there."""
    end = _END.search(buffered)
    head = buffered if end is None else buffered[: end.start()]
    if len(head) > HEAD_BYTES or head.count(b"\n") > HEAD_LINES:
        return Problem(
            431, "head_too_large", f"the request's head is larger than {HEAD_BYTES >> 10} KiB or {HEAD_LINES} fields"
        )
    if end and _OTHER_VERSION.match(head + b"\r"):
        return Problem(505, "unsupported_version", "this is no HTTP/1 request, on a connection that speaks HTTP/1")
    if end and _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0]) is None:
        # RFC 9112 3: who takes other blanks for the one that belongs here may find another target in it.
        return Problem(400, "malformed_head", "the request's first line is not METHOD TARGET HTTP/1.1; it went nowhere")
    # While the head is incomplete its last byte may be half of a line's end.
    if _BAD_HEAD.search(head if end else head.removesuffix(b"\r")):
        return Problem(
            400,
            "malformed_head",
            "the request's head holds a control character, a bare CR or LF, or a folded line; it went nowhere",
        )
    return None


def fields_fault(fields: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What is wrong with parsed header fields, of whatever protocol version."""
    for name, value in fields:
        if not _is_token(name):
            return "a field name is not a token"
        if _BAD_VALUE.search(value):
            return "a field value holds a control character"
    return None


@lru_cache(2048)
def _is_token(name: bytes) -> bool:
    return _NAME.fullmatch(name) is not None
