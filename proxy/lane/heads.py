"""Read the head of a message with llhttp, and keep its bytes. What llhttp refuses goes to the mitmproxy engine."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import httptools

from calls.model import Headers
from calls.own_fields import is_own_field
from proxy.wire.http1_heads import is_length

type Fields = Sequence[tuple[bytes, bytes]]
"""Of HTTP/2, as libnghttp2 has them."""

END: Final = b"\r\n\r\n"
_CODED: Final = re.compile(r"[ \t]*chunked[ \t]*", re.IGNORECASE)
_REQUEST_LINE: Final = re.compile(r"([!-~]+) ([!-~\x80-\xff]+) HTTP/1\.1\r\n")
_STATUS_LINE: Final = re.compile(r"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?\r\n")
# In a head that llhttp has taken no name has a line's end in it, and no value half of one. To look for one character only
# takes half the time.
_FIELD: Final = re.compile(r"([^:]+):[ \t]*([^\r]*)\r\n")

SHORT: Final = 8 << 10
"""Of heads that are no longer it is kept in mind what their first lines and the names in them mean."""


class Names(NamedTuple):
    """The names of a head's fields, and what they tell. A peer's heads mostly have the same ones."""

    lowered: tuple[str, ...]
    length: int | None
    """Where the first Content-Length stands."""

    coding: int | None
    """Where the first Transfer-Encoding stands."""

    single: bool
    """Whether there is no second one of either."""

    connection: tuple[int, ...]
    """Where the fields `Connection` stand."""

    withheld: frozenset[str]
    """Those that the client of a response does not get."""


class RequestHead(NamedTuple):
    """A request's head."""

    raw: bytes
    """With the empty line at its end."""

    method: str
    target: str
    fields: Headers
    known: Names

    @property
    def names(self) -> tuple[str, ...]:
        """Of the fields, in lower case."""
        return self.known.lowered


class ResponseHead(NamedTuple):
    """A response's head."""

    raw: bytes
    version: str
    status: int
    reason: str
    fields: Headers
    known: Names

    @property
    def names(self) -> tuple[str, ...]:
        """Of the fields, in lower case."""
        return self.known.lowered


class BodyFraming(NamedTuple):
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
    return RequestHead(raw, line[1], line[2], fields, _known(raw, fields))


def response_head(raw: bytes) -> ResponseHead | None:
    """The same for a response."""
    text = raw.decode("latin-1")
    end = text.find("\r\n") + 2
    line = (_status if end <= SHORT else _status.__wrapped__)(text[:end])
    if line is None or not _sound(httptools.HttpResponseParser, raw):
        return None
    fields = _fields(text, end)
    return ResponseHead(raw, *line, fields, _known(raw, fields))


@lru_cache(256)
def _status(line: str) -> tuple[str, int, str] | None:
    """Version, status and reason."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (found[1], int(found[2]), found[3] or "")


def _known(raw: bytes, fields: Headers) -> Names:
    names = tuple([name for name, _ in fields])
    return (_names if len(raw) <= SHORT else _names.__wrapped__)(names)


@lru_cache(1024)
def _names(given: tuple[str, ...]) -> Names:
    lowered = tuple([name.lower() for name in given])
    lengths, codings, connection = (
        tuple([at for at, name in enumerate(lowered) if name == wanted])
        for wanted in ("content-length", "transfer-encoding", "connection")
    )
    single = len(lengths) <= 1 and len(codings) <= 1
    withheld = frozenset(name for name in lowered if is_withheld(name))
    return Names(
        lowered, lengths[0] if lengths else None, codings[0] if codings else None, single, connection, withheld
    )


def is_withheld(name: str) -> bool:
    """Whether a response field goes no further: our own, and what would have the client leave for QUIC, past us."""
    return name == "alt-svc" or is_own_field(name)


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


def framing(head: RequestHead | ResponseHead) -> BodyFraming:
    """What a head that llhttp has accepted says about its body."""
    known, fields = head.known, head.fields
    length: int | None = None
    odd, chunked = not known.single, known.coding is not None
    if known.length is not None:
        value = fields[known.length][1]
        odd = odd or not is_length(value)
        length = None if odd else int(value)
    if known.coding is not None:
        odd = odd or length is not None or not _CODED.fullmatch(fields[known.coding][1])
    closes = bool(known.connection) and any("close" in fields[at][1].lower() for at in known.connection)
    return BodyFraming(length, chunked, closes, odd)


def without(raw: bytes, names: tuple[str, ...], unwanted: frozenset[str]) -> bytes:
    """The head without the fields of these names."""
    lines = raw.split(b"\r\n")
    kept = [line for line, name in zip(lines[1:], names, strict=False) if name not in unwanted]
    return b"\r\n".join([lines[0], *kept]) + END


def http1_head(status: int, reason: str, headers: Headers, *, old: bool = False) -> bytes:
    """The head of a response of ours; `old`: in HTTP/1.0."""
    lines = [f"HTTP/1.{0 if old else 1} {status} {reason}", *[f"{name}: {value}" for name, value in headers]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
