"""Read the values that all foreign formats have in common: URLs, versions, times, bodies, headers."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final
from urllib.parse import urlsplit

from calls.codec.encoding import Undecodable, decode_content, parse_codings
from calls.codec.json import dumps
from calls.model import EMPTY_BODY, Body, Chunk, ChunkKind, Headers, Json, header
from store.bundle.trace import LAST
from store.foreign.contents import REPACKED, UNPACKED, BrokenInteraction

DEEPEST: Final = 100

_ALLOWED: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 5.6.2."""

_VALUE: Final = re.compile(r"[^\0\r\n]*")
_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def checked_url(value: object) -> str:
    """Return the URL of an HTTP request, normalized. Raises BrokenInteraction."""
    if not isinstance(value, str) or not value:
        raise BrokenInteraction("it has no URL")
    if value.startswith("/"):
        raise BrokenInteraction(f"it has the path {value[:60]!r} without a host, as WireMock's mappings do")
    text = value if value.isascii() else "".join(c if c.isascii() else _percent_encode(c) for c in value)
    text = text.replace(" ", "%20")
    try:
        parts = urlsplit(text)
        known = _SCHEMES.get(parts.scheme.lower()) and parts.hostname
        _ = parts.port
    except ValueError:
        known = None
    if not known or not _ALLOWED.fullmatch(text):
        raise BrokenInteraction(f"{value[:80]!r} is not the URL of an HTTP request")
    # A fragment is never sent (RFC 9110 7.1); Mistral's SDK marks its streams with one.
    scheme, _, rest = text.partition("#")[0].partition(":")
    return f"{_SCHEMES[scheme.lower()]}:{rest}"


def _percent_encode(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def checked_header(name: str, value: str) -> tuple[str, str]:
    """Return a header that can be sent, as text with one code point for each byte. Raises BrokenInteraction."""
    name, value = _isomorphic(name), _isomorphic(value)
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        # In a replay, the client's parser could read a second header or a second response in it.
        raise BrokenInteraction(f"its header {name[:40]!r} contains characters that are not allowed in headers")
    return name, value


def _isomorphic(text: str) -> str:
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:
        raise BrokenInteraction("one of its headers contains a lone surrogate") from None


def http_version(value: object) -> str:
    """Return the HTTP version in Playhead's spelling; empty where it is unknown."""
    text = str(value or "").strip().upper()
    if match := re.fullmatch(r"(?:HTTP/)?([0-9.]+)|H([23])", text):
        number = match[1] or match[2]
        return f"HTTP/{number.removesuffix('.0')}" if number[:1] in "23" else f"HTTP/{number}"
    return ""


def timestamp_ns(value: object, parse: Callable[[str], float]) -> int | None:
    """Return a time in nanoseconds since the epoch; None where it is missing or impossible."""
    if not isinstance(value, str) or not value:
        return None
    try:
        ns = round(parse(value) * 1_000_000) * 1000
    except (ValueError, OverflowError, TypeError):
        return None
    return ns if 0 < ns <= LAST else None


def parse_date(text: str) -> float:
    """Parse a date of HTTP or Ruby, or in ISO 8601, into seconds since the epoch."""
    value = (datetime.fromisoformat if text[:1].isdigit() else parsedate_to_datetime)(text)
    # R's vcr omits the time zone, and means UTC.
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def messages_body(messages: list[tuple[int, ChunkKind, bytes]]) -> Body:
    """Return one side of a WebSocket as a body with a chunk for each message."""
    chunks: list[Chunk] = []
    offset = 0
    for at, kind, data in messages:
        chunks.append(Chunk(at, offset, len(data), kind))
        offset += len(data)
    return Body(data=b"".join(data for _, _, data in messages), chunks=tuple(chunks), size=offset)


def one_chunk_body(data: bytes) -> Body:
    """Return a body as one chunk, as its chunks are unknown."""
    return Body(data=data, chunks=(Chunk(0, 0, len(data)),), size=len(data)) if data else EMPTY_BODY


def json_bytes(value: Any) -> bytes:
    """Return the bytes of a JSON body that the file has as a parsed value. Raises BrokenInteraction."""
    try:
        return dumps(_json(value, DEEPEST))
    except UnicodeEncodeError:
        raise BrokenInteraction("its parsed body contains a lone surrogate") from None


def _json(value: Any, depth: int) -> Json:
    if depth == 0:
        raise BrokenInteraction(f"its parsed body is nested deeper than {DEEPEST} levels")
    match value:
        case None | bool() | int() | str() | Decimal():
            return value
        case float() if isfinite(value):
            return value
        case list() | tuple():
            return [_json(item, depth - 1) for item in value]
        case dict() if all(isinstance(name, str) for name in value):
            return {name: _json(item, depth - 1) for name, item in value.items()}
        case _:
            raise BrokenInteraction("its parsed body is not JSON")


def match_headers_to_body(headers: Headers, data: bytes) -> tuple[Headers, bytes, tuple[str, ...]]:
    """Make the headers match the body: some recorders decompress bodies and keep the headers, or the reverse."""
    note: tuple[str, ...] = ()
    coding = header(headers, "content-encoding")
    if data and coding and not _is_decodable(data, coding):
        headers = tuple(pair for pair in headers if pair[0].lower() != "content-encoding")
        note = (UNPACKED,)
    elif coding is None and data[:3] == b"\x1f\x8b\x08" and _is_textual(headers) and _is_decodable(data, "gzip"):
        headers = (*headers, ("content-encoding", "gzip"))
        note = (REPACKED,)
    size = str(len(data))
    if data:
        headers = tuple((n, size if n.lower() == "content-length" else v) for n, v in headers)
    return headers, data, note


def _is_decodable(data: bytes, coding: str) -> bool:
    try:
        if not parse_codings(coding):
            return True
        decode_content(data, coding)
    except Undecodable:
        return False
    return True


_TEXTUAL: Final = re.compile(r"text/|application/([\w.+-]*json|x-ndjson|jsonl|xml)", re.IGNORECASE)


def _is_textual(headers: Headers) -> bool:
    return _TEXTUAL.match(header(headers, "content-type") or "") is not None
