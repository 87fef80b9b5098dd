"""Parse the head of a message with llhttp, and keep its bytes. A request that llhttp refuses goes to the mitmproxy engine."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import httptools
import msgspec

from calls.model import Headers
from calls.own_fields import is_own_field
from proxy.wire.http1_heads import HEAD_END, is_length

type Fields = Sequence[tuple[bytes, bytes]]
"""HTTP/2 fields, as libnghttp2 has them."""

_CHUNKED: Final = re.compile(r"[ \t]*chunked[ \t]*", re.IGNORECASE)
_REQUEST_LINE: Final = re.compile(r"([!-~]+) ([!-~\x80-\xff]+) HTTP/1\.1\r\n")
_STATUS_LINE: Final = re.compile(r"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?\r\n")
# In a head that llhttp accepted, no name contains a line end and no value half of one. Searching for one character takes
# half the time.
_FIELD: Final = re.compile(r"([^:]+):[ \t]*([^\r]*)\r\n")

_FRAMING_FIELDS: Final = frozenset(
    {"content-length", "transfer-encoding", "connection", "proxy-connection", "keep-alive", "upgrade", "trailer"}
)
"""Fields that say how a body is framed or what becomes of the connection."""

CACHED_HEAD_BYTES: Final = 8 << 10
"""Maximum length of a head whose parsed status line and field names are cached."""


class FieldNames(NamedTuple):
    """The field names of a head, analysed. Cached, because the heads of a peer mostly have the same names."""

    lowered: tuple[str, ...]
    length_index: int | None
    """The index of the first Content-Length."""

    coding_index: int | None
    """The index of the first Transfer-Encoding."""

    is_unambiguous: bool
    """Whether there is at most one of each."""

    connection_indexes: tuple[int, ...]
    """The indexes of the Connection fields."""

    withheld_names: frozenset[str]
    """The names of response fields that are not forwarded to the client."""


class BodyFraming(NamedTuple):
    """What a head says about the framing of its body and about the connection."""

    length: int | None
    """None if there is no Content-Length."""

    is_chunked: bool
    closes_connection: bool
    """Whether a Connection field contains `close`."""

    is_unsupported: bool
    """Whether the lane does not support the framing, or it is invalid."""


class RequestHead(NamedTuple):
    """A request's head."""

    raw: bytes
    """The bytes, with the empty line at the end."""

    method: str
    target: str
    fields: Headers
    field_names: FieldNames

    @property
    def names(self) -> tuple[str, ...]:
        """The field names in lower case."""
        return self.field_names.lowered


# Not frozen: one is created for each call, as in `DownstreamHead`.
class ResponseHead(msgspec.Struct):
    """A response's head. Treat it as immutable."""

    raw: bytes
    version: str
    status: int
    reason: str
    fields: Headers
    field_names: FieldNames
    framing: BodyFraming

    @property
    def names(self) -> tuple[str, ...]:
        """The field names in lower case."""
        return self.field_names.lowered


class _HeadListener:
    """Receives llhttp's callback for an accepted head. One regex search finds the fields faster than a callback for each."""

    complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


def request_head(raw: bytes) -> RequestHead | None:
    """Parse a request head, including its empty line. Return None if the lane does not accept it."""
    text = raw.decode("latin-1")
    line = _REQUEST_LINE.match(text)
    if line is None or not _is_sound(httptools.HttpRequestParser, raw):
        return None
    fields = _fields(text, line.end())
    return RequestHead(raw, line[1], line[2], fields, _field_names(raw, fields))


def response_head(raw: bytes) -> ResponseHead | None:
    """Parse a response head, including its empty line. Return None if the lane does not accept it."""
    text = raw.decode("latin-1")
    end = text.find("\r\n") + 2
    line = (_parsed_status_line if end <= CACHED_HEAD_BYTES else _parsed_status_line.__wrapped__)(text[:end])
    if line is None or not _is_sound(httptools.HttpResponseParser, raw):
        return None
    fields = _fields(text, end)
    names = _field_names(raw, fields)
    return ResponseHead(raw, *line, fields, names, _framing_of(names, fields))


class ResponseHeadReader:
    """Parses the response heads of one connection: each mostly has the lines of the one before, but for a few values.

    Only values of fields that do not affect the framing may differ, and a Content-Length; any other head is parsed as a whole.
    """

    __slots__ = ("_head", "_lines")

    def __init__(self) -> None:
        self._head: ResponseHead | None = None
        """The last head, if it can be compared with the next one."""

        self._lines: list[bytes] = []
        """Its lines, and what follows the last line end."""

    def read(self, raw: bytes) -> ResponseHead | None:
        """Parse a head, including its empty line. Return None if the lane does not accept it."""
        lines = raw.split(b"\r\n")
        last = self._head
        head = self._changed_head(last, raw, lines) if last is not None and len(lines) == len(self._lines) else None
        if head is None:
            head = response_head(raw)
            if head is None or len(raw) > CACHED_HEAD_BYTES or head.framing.is_unsupported:
                self._head, self._lines = None, []
                return head
            assert len(head.fields) == len(lines) - 3
        self._head, self._lines = head, lines
        return head

    def _changed_head(self, last: ResponseHead, raw: bytes, lines: list[bytes]) -> ResponseHead | None:
        """Return the head with these lines, as many as the last one has. Return None if it must be parsed as a whole."""
        if lines[0] != self._lines[0] or len(raw) > CACHED_HEAD_BYTES:
            return None
        framing = last.framing
        fields, at, lowered = list(last.fields), -1, last.field_names.lowered
        old_lines = self._lines
        for line in lines:
            if line != old_lines[at + 1]:
                # Anything else than printable ASCII is left to llhttp, and so is every spelling but the usual one.
                text, name = line.decode("latin-1"), fields[at][0]
                start, _, value = text.partition(": ")
                if start != name or not (text.isascii() and text.isprintable()):
                    return None
                value = value.strip(" ")
                if lowered[at] == "content-length" and is_length(value):
                    framing = BodyFraming(int(value), framing.is_chunked, framing.closes_connection, False)
                elif lowered[at] in _FRAMING_FIELDS:
                    return None
                fields[at] = name, value
            at += 1
        return ResponseHead(raw, last.version, last.status, last.reason, tuple(fields), last.field_names, framing)


@lru_cache(256)
def _parsed_status_line(line: str) -> tuple[str, int, str] | None:
    """Return version, status and reason of a status line."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (found[1], int(found[2]), found[3] or "")


def _field_names(raw: bytes, fields: Headers) -> FieldNames:
    names = tuple([name for name, _ in fields])
    return (_analysed_names if len(raw) <= CACHED_HEAD_BYTES else _analysed_names.__wrapped__)(names)


@lru_cache(1024)
def _analysed_names(names: tuple[str, ...]) -> FieldNames:
    lowered = tuple([name.lower() for name in names])
    lengths, codings, connection = (
        tuple([at for at, name in enumerate(lowered) if name == searched])
        for searched in ("content-length", "transfer-encoding", "connection")
    )
    single = len(lengths) <= 1 and len(codings) <= 1
    withheld = frozenset(name for name in lowered if is_withheld(name))
    return FieldNames(
        lowered, lengths[0] if lengths else None, codings[0] if codings else None, single, connection, withheld
    )


def is_withheld(name: str) -> bool:
    """Return whether a response field is not forwarded: Playhead's own, and Alt-Svc, with which clients would switch to QUIC
    and bypass the proxy."""
    return name == "alt-svc" or is_own_field(name)


def _is_sound(parser: type, raw: bytes) -> bool:
    listener = _HeadListener()
    try:
        parser(listener).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # a CONNECT or an upgrade, which the caller sees in the method and fields
    except httptools.HttpParserError:
        return False
    return listener.complete


def _fields(text: str, start: int) -> Headers:
    """Return the fields of a valid head. Each is on one line, because llhttp refuses folded ones."""
    fields = _FIELD.findall(text, start)
    if " \r\n" in text or "\t\r\n" in text:
        fields = [(name, value.rstrip(" \t")) for name, value in fields]
    return tuple(fields)


def body_framing(head: RequestHead) -> BodyFraming:
    """Return the framing of a request head that llhttp accepted."""
    return _framing_of(head.field_names, head.fields)


def _framing_of(names: FieldNames, fields: Headers) -> BodyFraming:
    length: int | None = None
    odd, chunked = not names.is_unambiguous, names.coding_index is not None
    if names.length_index is not None:
        value = fields[names.length_index][1]
        odd = odd or not is_length(value)
        length = None if odd else int(value)
    if names.coding_index is not None:
        odd = odd or length is not None or not _CHUNKED.fullmatch(fields[names.coding_index][1])
    closes = bool(names.connection_indexes) and any("close" in fields[at][1].lower() for at in names.connection_indexes)
    return BodyFraming(length, chunked, closes, odd)


def without_fields(raw: bytes, names: tuple[str, ...], removed: frozenset[str]) -> bytes:
    """Return a head without the fields of these names."""
    lines = raw.split(b"\r\n")
    lines_left = [line for line, name in zip(lines[1:], names, strict=False) if name not in removed]
    return b"\r\n".join([lines[0], *lines_left]) + HEAD_END


def http1_response_head(status: int, reason: str, headers: Headers, *, is_http10: bool = False) -> bytes:
    """Return the bytes of a response head by Playhead."""
    lines = [f"HTTP/1.{0 if is_http10 else 1} {status} {reason}", *[f"{name}: {value}" for name, value in headers]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
