"""Read what all foreign formats have in common: addresses, versions, times, bodies, headers."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final
from urllib.parse import urlsplit

from calls.codec.encoding import Undecodable, codings, decode
from calls.codec.json import dumps
from calls.model import EMPTY, Body, Chunk, ChunkKind, Headers, Json, header
from store.bundle.trace import LAST
from store.foreign.contents import REPACKED, UNPACKED, Broken

DEEPEST: Final = 100

_ALLOWED: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 5.6.2."""

_VALUE: Final = re.compile(r"[^\0\r\n]*")
_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def url(told: object) -> str:
    """An address that a request may have gone to. Raises Broken."""
    if not isinstance(told, str) or not told:
        raise Broken("it does not say which address was asked")
    if told.startswith("/"):
        raise Broken(f"it says which path was asked ({told[:60]!r}), but not of which host, as WireMock's mappings do")
    text = told if told.isascii() else "".join(c if c.isascii() else _escaped(c) for c in told)
    text = text.replace(" ", "%20")
    try:
        parts = urlsplit(text)
        known = _SCHEMES.get(parts.scheme.lower()) and parts.hostname
        _ = parts.port
    except ValueError:
        known = None
    if not known or not _ALLOWED.fullmatch(text):
        raise Broken(f"{told[:80]!r} is not the address of an HTTP request")
    # What follows a "#" is the caller's own and never sent (RFC 9110 7.1): Mistral's SDK marks its streams so.
    scheme, _, rest = text.partition("#")[0].partition(":")
    return f"{_SCHEMES[scheme.lower()]}:{rest}"


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def field(name: str, value: str) -> tuple[str, str]:
    """A header that can be sent, in text of one code point for each byte. Raises Broken."""
    name, value = _isomorphic(name), _isomorphic(value)
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        # Replay would send it to a client, whose parser may see a second header or a second response in it.
        raise Broken(f"its header {name[:40]!r} holds characters that no header has")
    return name, value


def _isomorphic(text: str) -> str:
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:
        raise Broken("one of its headers holds half a surrogate pair") from None


def version(told: object) -> str:
    """The HTTP version as we spell it; empty where nobody says."""
    text = str(told or "").strip().upper()
    if match := re.fullmatch(r"(?:HTTP/)?([0-9.]+)|H([23])", text):
        number = match[1] or match[2]
        return f"HTTP/{number.removesuffix('.0')}" if number[:1] in "23" else f"HTTP/{number}"
    return ""


def moment(told: object, read: Callable[[str], float]) -> int | None:
    """A moment in nanoseconds since the epoch; None where none is told, or one that no recorder saw."""
    if not isinstance(told, str) or not told:
        return None
    try:
        ns = round(read(told) * 1_000_000) * 1000
    except (ValueError, OverflowError, TypeError):
        return None
    return ns if 0 < ns <= LAST else None


def dated(text: str) -> float:
    """A date as HTTP and Ruby write it, or as everybody else does."""
    told = (datetime.fromisoformat if text[:1].isdigit() else parsedate_to_datetime)(text)
    # R's vcr names no zone, and means UTC as all of them do.
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


def talk(messages: list[tuple[int, ChunkKind, bytes]]) -> Body:
    """What one side of a WebSocket said, message by message."""
    chunks: list[Chunk] = []
    offset = 0
    for at, kind, data in messages:
        chunks.append(Chunk(at, offset, len(data), kind))
        offset += len(data)
    return Body(data=b"".join(data for _, _, data in messages), chunks=tuple(chunks), size=offset)


def body(data: bytes) -> Body:
    """A body as one chunk, since nobody knows others."""
    return Body(data=data, chunks=(Chunk(0, 0, len(data)),), size=len(data)) if data else EMPTY


def json_bytes(value: Any) -> bytes:
    """A value that was kept parsed, as JSON. Raises Broken."""
    try:
        return dumps(_json(value, DEEPEST))
    except UnicodeEncodeError:
        raise Broken("its parsed body holds half a surrogate pair") from None


def _json(value: Any, depth: int) -> Json:
    if depth == 0:
        raise Broken(f"its parsed body is nested deeper than {DEEPEST} levels")
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
            raise Broken("its parsed body is no JSON")


def mended(headers: Headers, data: bytes) -> tuple[Headers, bytes, tuple[str, ...]]:
    """Headers that are true of the body: recorders unpack bodies and leave the headers as they were, or the reverse."""
    note: tuple[str, ...] = ()
    coding = header(headers, "content-encoding")
    if data and coding and not _fits(data, coding):
        headers = tuple(pair for pair in headers if pair[0].lower() != "content-encoding")
        note = (UNPACKED,)
    elif coding is None and data[:3] == b"\x1f\x8b\x08" and _textual(headers) and _fits(data, "gzip"):
        headers = (*headers, ("content-encoding", "gzip"))
        note = (REPACKED,)
    size = str(len(data))
    if data:
        headers = tuple((n, size if n.lower() == "content-length" else v) for n, v in headers)
    return headers, data, note


def _fits(data: bytes, coding: str) -> bool:
    try:
        if not codings(coding):
            return True
        decode(data, coding)
    except Undecodable:
        return False
    return True


_TEXTUAL: Final = re.compile(r"text/|application/([\w.+-]*json|x-ndjson|jsonl|xml)", re.IGNORECASE)


def _textual(headers: Headers) -> bool:
    return _TEXTUAL.match(header(headers, "content-type") or "") is not None
