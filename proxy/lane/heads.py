"""The head of a message: judged by llhttp, and kept as it came. What llhttp does not take is not the lane's to judge."""

import re
from typing import Final, NamedTuple

import httptools

from calls.model import Headers

END: Final = b"\r\n\r\n"

_CODED: Final = re.compile(r"[ \t]*chunked[ \t]*", re.IGNORECASE)
_REQUEST_LINE: Final = re.compile(r"([!-~]+) ([!-~\x80-\xff]+) HTTP/1\.1\r\n")
_STATUS_LINE: Final = re.compile(r"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?\r\n")
_FIELD: Final = re.compile(r"([^:\r\n]+):[ \t]*([^\r\n]*)\r\n")


class RequestHead(NamedTuple):
    """A request's head."""

    raw: bytes
    """With the empty line at its end."""

    method: str
    target: str
    fields: Headers
    names: list[str]
    """Of the fields, in lower case."""


class ResponseHead(NamedTuple):
    """A response's head."""

    raw: bytes
    version: str
    status: int
    reason: str
    fields: Headers
    names: list[str]


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
    """All that llhttp has to say: the fields are found faster by one search than by a call for each."""

    complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


def request_head(raw: bytes) -> RequestHead | None:
    """The head that these bytes are, up to and with its empty line; None where they are none that the lane takes."""
    text = raw.decode("latin-1")
    line = _REQUEST_LINE.match(text)
    if line is None or not _sound(httptools.HttpRequestParser, raw):
        return None
    fields = _fields(text, line.end())
    return RequestHead(raw, line[1], line[2], fields, [name.lower() for name, _ in fields])


def response_head(raw: bytes) -> ResponseHead | None:
    """The same for a response."""
    text = raw.decode("latin-1")
    line = _STATUS_LINE.match(text)
    if line is None or not _sound(httptools.HttpResponseParser, raw):
        return None
    fields = _fields(text, line.end())
    return ResponseHead(raw, line[1], int(line[2]), line[3] or "", fields, [name.lower() for name, _ in fields])


def _sound(parser: type, raw: bytes) -> bool:
    heard = _Heard()
    try:
        parser(heard).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # a CONNECT, or what asks for another protocol: whoever reads the fields sees it
    except httptools.HttpParserError:
        return False
    return heard.complete


def _fields(text: str, start: int) -> Headers:
    """The fields of a sound head: each has a line of its own, llhttp refuses folded ones."""
    fields = _FIELD.findall(text, start)
    if " \r\n" in text or "\t\r\n" in text:
        fields = [(name, value.rstrip(" \t")) for name, value in fields]
    return tuple(fields)


def framing(head: RequestHead | ResponseHead) -> Framing:
    """What a head that llhttp has accepted says about its body."""
    names, fields = head.names, head.fields
    length: int | None = None
    chunked = closes = odd = False
    if "content-length" in names:
        value = fields[names.index("content-length")][1]
        odd = names.count("content-length") > 1 or not (value.isascii() and value.isdigit()) or len(value) > 15
        length = None if odd else int(value)
    if "transfer-encoding" in names:
        chunked = True
        value = fields[names.index("transfer-encoding")][1]
        odd = odd or length is not None or names.count("transfer-encoding") > 1 or not _CODED.fullmatch(value)
    if "connection" in names:
        closes = any(name == "connection" and "close" in fields[at][1].lower() for at, name in enumerate(names))
    return Framing(length, chunked, closes, odd)


def without(raw: bytes, names: list[str], unwanted: frozenset[str]) -> bytes:
    """The head without the fields of these names."""
    lines = raw.split(b"\r\n")
    kept = [line for line, name in zip(lines[1:], names, strict=False) if name not in unwanted]
    return b"\r\n".join([lines[0], *kept]) + END
