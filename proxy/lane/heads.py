"""The head of a message: judged by llhttp, and kept as it came. What llhttp does not take is not the lane's to judge."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import httptools

END: Final = b"\r\n\r\n"

type Fields = Sequence[tuple[bytes, bytes]]

_CODED: Final = re.compile(rb"[ \t]*chunked[ \t]*", re.IGNORECASE)
_REQUEST_LINE: Final = re.compile(rb"([!-~]+) ([!-~\x80-\xff]+) HTTP/1\.1")
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?")


class RequestHead(NamedTuple):
    """A request's head."""

    raw: bytes
    """With the empty line at its end."""

    method: bytes
    target: bytes
    fields: Fields


class ResponseHead(NamedTuple):
    """A response's head."""

    raw: bytes
    version: str
    status: int
    reason: str
    fields: Fields


class Framing(NamedTuple):
    """What a head says about its body and about the connection."""

    length: int | None
    """None where the head names none."""

    chunked: bool
    closes: bool
    """Whether it names `close`."""

    odd: bool
    """Whether it is coded in a way that the lane does not speak."""


class _Heard:
    __slots__ = ("complete", "fields")

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def request_head(raw: bytes) -> RequestHead | None:
    """The head that these bytes are, up to and with its empty line; None where they are none that the lane takes."""
    line = _REQUEST_LINE.fullmatch(raw, 0, raw.find(b"\r\n"))
    fields = _fields(httptools.HttpRequestParser, raw) if line else None
    if line is None or fields is None:
        return None
    return RequestHead(raw, line[1], line[2], fields)


def response_head(raw: bytes) -> ResponseHead | None:
    """The same for a response."""
    line = _STATUS_LINE.fullmatch(raw, 0, raw.find(b"\r\n"))
    fields = _fields(httptools.HttpResponseParser, raw) if line else None
    if line is None or fields is None:
        return None
    return ResponseHead(raw, line[1].decode(), int(line[2]), (line[3] or b"").decode("latin-1"), fields)


def _fields(parser: type, raw: bytes) -> Fields | None:
    heard = _Heard()
    try:
        parser(heard).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # a CONNECT, or what asks for another protocol: whoever reads the fields sees it
    except httptools.HttpParserError:
        return None
    return heard.fields if heard.complete else None


def framing(fields: Fields) -> Framing:
    """What these fields, which llhttp has accepted, say about the body."""
    length: int | None = None
    chunked = closes = odd = False
    for name, value in fields:
        size = len(name)
        # By length first: lowering every name would cost more than all the rest.
        if size == 14 and name.lower() == b"content-length":
            odd = odd or length is not None or not value.isdigit() or len(value) > 15
            length = int(value) if not odd else length
        elif size == 17 and name.lower() == b"transfer-encoding":
            odd = odd or chunked or not _CODED.fullmatch(value)
            chunked = True
        elif size == 10 and name.lower() == b"connection":
            closes = closes or b"close" in value.lower()
    return Framing(length, chunked, closes, odd or (chunked and length is not None))


def without(raw: bytes, fields: Fields, names: frozenset[bytes]) -> bytes:
    """The head without the fields of these names (in lower case)."""
    lines = raw.split(b"\r\n")
    # One line for each field: llhttp refuses folded ones.
    kept = [line for line, (name, _) in zip(lines[1:], fields, strict=False) if name.lower() not in names]
    return b"\r\n".join([lines[0], *kept]) + END


def texts(fields: Fields) -> tuple[tuple[str, str], ...]:
    """Fields as the record has them."""
    return tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields])
