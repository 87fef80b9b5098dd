"""Check HTTP/1 response heads for both engines. A head that two parsers could read differently is refused, never repaired."""

import re
from typing import Final

import httptools

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] [1-9][0-9][0-9](?: [\t -~\x80-\xff]*)?\r\n")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")

HEAD_END: Final = b"\r\n\r\n"
HEAD_BYTES: Final = 1 << 20


class _HeadListener:
    """Receives llhttp's callback for an accepted head."""

    complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


def is_length(value: str) -> bool:
    """Return whether a Content-Length is unambiguous. Some parsers read a leading zero as octal."""
    return value.isascii() and value.isdigit() and len(value) <= 15 and (value[0] != "0" or value == "0")


def response_head_fault(raw: bytes) -> str | None:
    """Return what is wrong with a complete response head, or None. The text quotes nothing of the head."""
    listener = _HeadListener()
    try:
        httptools.HttpResponseParser(listener).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # a protocol switch, which the caller sees in the fields
    except httptools.HttpParserError as error:
        return str(error)
    if not listener.complete or _STATUS_LINE.match(raw) is None:
        return "its status line is not valid HTTP/1"
    return None


def partial_head_fault(received: bytes) -> str | None:
    """Return what is wrong with an incomplete response head, or None."""
    if len(received) > HEAD_BYTES:
        return "its head is too large"
    if _BARE_LF.search(received):
        # The end of such a head would never be found.
        return "a line of its head ends in a bare LF"
    return None
