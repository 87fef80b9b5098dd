"""Check heads of HTTP/1 for both engines: what two readers could read differently is refused, never repaired."""

import re
from typing import Final

import httptools

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] [1-9][0-9][0-9](?: [\t -~\x80-\xff]*)?\r\n")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")

HEAD_END: Final = b"\r\n\r\n"
HEAD_BYTES: Final = 1 << 20


class _Listener:
    """llhttp calls this when it has accepted a head."""

    complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


def is_length(value: str) -> bool:
    """Whether a Content-Length means the same to everybody: with a leading zero it is octal to some readers."""
    return value.isascii() and value.isdigit() and len(value) <= 15 and (value[0] != "0" or value == "0")


def response_flaw(raw: bytes) -> str | None:
    """What is wrong with a response's head, with its empty line; in words that quote nothing of it."""
    listener = _Listener()
    try:
        httptools.HttpResponseParser(listener).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # a switch of protocols: whoever reads the fields sees it
    except httptools.HttpParserError as error:
        return str(error)
    if not listener.complete or _STATUS_LINE.match(raw) is None:
        return "its status line is not one of HTTP/1"
    return None


def unfinished_flaw(received: bytes) -> str | None:
    """What is wrong with the beginning of a response's head whose end has not come."""
    if len(received) > HEAD_BYTES:
        return "its head is too large"
    if _BARE_LF.search(received):
        # Its end could not be found, and would be waited for.
        return "a line of its head ends in a bare LF"
    return None
