"""Read HTTP archives (HAR 1.2) of browsers, mitmproxy, Charles and Polly.js.

A HAR has bodies without their content-encoding, as text or base64. Entries are located first and then parsed one by one,
so that memory holds one entry and the mapped file, whose pages the system can reclaim.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from calls.codec.encoding import Undecodable, decode_content
from calls.model import ChunkKind, Headers, Request, Response, header
from store.bundle.trace import LAST
from store.foreign.contents import (
    UNCHUNKED,
    UNTIMED,
    UNVERSIONED,
    BrokenInteraction,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.parts import (
    checked_header,
    checked_url,
    http_version,
    match_headers_to_body,
    messages_body,
    one_chunk_body,
    timestamp_ns,
)

WIRE: Final = "_wire"
"""Playhead's own member of a body: its bytes on the wire, where they differ from HAR's text."""


OPCODES: Final[Mapping[ChunkKind, int]] = {"text": 1, "binary": 2, "close": 8}
"""The kinds of WebSocket messages (RFC 6455 5.2)."""


class _Archive(msgspec.Struct):
    log: "_Log"


class _Log(msgspec.Struct):
    entries: list[msgspec.Raw]


class _Start(msgspec.Struct, rename={"started_at": "startedDateTime"}):
    started_at: Any = None


_archive = msgspec.json.Decoder(_Archive)
_start = msgspec.json.Decoder(_Start)
_entry = msgspec.json.Decoder(dict[str, Any])


def read_har(data: Any) -> Iterator[Found]:
    """Read the entries in the order in which they began. `data` is bytes or mapped memory. Raises NotReadable."""
    try:
        entries = _archive.decode(data).log.entries
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(f"it is not an HTTP archive: {error}; save it again as HAR 1.2") from None
    if not entries:
        raise NotReadable("it has no entries; save it again")
    return _read_entries(entries)


def _read_entries(entries: list[msgspec.Raw]) -> Iterator[Found]:
    for number in sorted(range(len(entries)), key=lambda n: _start_time(entries[n]) or 0):
        place = f"entry {number + 1}"
        try:
            yield _interaction(place, _entry.decode(entries[number]))
        except (BrokenInteraction, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            yield SkippedEntry(place=place, reason=str(error))


def _start_time(entry: msgspec.Raw) -> int | None:
    try:
        return timestamp_ns(_start.decode(entry).started_at, _rfc3339)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _rfc3339(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _interaction(place: str, raw: Mapping[str, Any]) -> Interaction:
    raw_request, raw_response = _required_mapping(raw, "request"), _required_mapping(raw, "response")
    status = raw_response.get("status")
    if not isinstance(status, int) or not 100 <= status <= 999:
        raise BrokenInteraction(f"it has no response (status {status}{_error_text(raw, raw_response)})")
    if raw.get("_error") or raw_response.get("_error"):
        raise BrokenInteraction(f"its answer is incomplete{_error_text(raw, raw_response)}")
    started_at = timestamp_ns(raw.get("startedDateTime"), _rfc3339)
    first_byte_at, ended_at = _times(raw)
    messages = raw.get("_webSocketMessages")
    # Playhead has written the size of the messages as that of the body.
    content = (b"", None) if isinstance(messages, list) else _request_content(raw_request)
    headers, data, asked_notes = _headers_and_body(_headers(raw_request), *content)
    request = Request(
        method=_method(raw_request),
        url=checked_url(raw_request.get("url")),
        http_version=http_version(raw_request.get("httpVersion")),
        headers=headers,
        body=one_chunk_body(data),
    )
    headers, data, answered_notes = _headers_and_body(
        _headers(raw_response), *_response_content(raw_response, bodiless=request.method == "HEAD")
    )
    response = Response(
        status=status,
        reason=_reason(raw_response),
        http_version=http_version(raw_response.get("httpVersion")),
        headers=headers,
        body=one_chunk_body(data),
    )
    notes = (*asked_notes, *answered_notes, *(() if request.http_version else (UNVERSIONED,)), UNCHUNKED)
    interaction = Interaction(
        place=place,
        request=request,
        response=response,
        started_at=started_at,
        first_byte_at=first_byte_at,
        ended_at=ended_at,
        notes=notes if first_byte_at is not None else (*notes, UNTIMED),
    )
    return _with_messages(interaction, messages) if isinstance(messages, list) else interaction


def _required_mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if not isinstance(value, dict):
        raise BrokenInteraction(f"it has no {name}")
    return value


def _error_text(raw: Mapping[str, Any], raw_response: Mapping[str, Any]) -> str:
    why = raw_response.get("_error") or raw.get("_error") or raw_response.get("statusText")
    return f": {str(why)[:120]}" if why else ""


def _method(raw_request: Mapping[str, Any]) -> str:
    method = raw_request.get("method")
    if not isinstance(method, str) or not method.isascii() or not method.isalpha():
        raise BrokenInteraction(f"its method is {method!r:.80}, not the name of an HTTP method")
    return method.upper()


def _reason(raw_response: Mapping[str, Any]) -> str:
    text = raw_response.get("statusText")
    return text if isinstance(text, str) and text.isascii() and text.isprintable() else ""


def _times(raw: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return when the first and the last byte arrived, in nanoseconds. In HAR, -1 means that a time was not measured."""
    timings = raw.get("timings")
    parts = timings if isinstance(timings, dict) else {}
    if not _is_duration(parts.get("wait")):
        return None, None
    until = sum(_milliseconds(parts.get(name)) for name in ("blocked", "dns", "connect", "send", "wait"))
    whole = max(_milliseconds(raw.get("time")), until + _milliseconds(parts.get("receive")))
    return round(until * 1_000_000), round(whole * 1_000_000)


def _milliseconds(value: Any) -> float:
    return float(value) if _is_duration(value) else 0.0


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**9


def _headers(raw: Mapping[str, Any]) -> Headers:
    pairs = raw.get("headers")
    if not isinstance(pairs, list):
        return ()
    return tuple(pair for one in pairs for pair in _pair(one))


def _pair(raw: Any) -> Iterator[tuple[str, str]]:
    """Yield the headers of an entry. Browsers include HTTP/2 pseudo-headers, and join several values of a name by newlines."""
    match raw:
        case {"name": str(name), "value": str(value)} if name and not name.startswith(":"):
            for line in value.splitlines() or [""]:
                yield checked_header(name, line)
        case {"name": str()}:
            pass
        case _:
            raise BrokenInteraction("one of its headers has no name")


def _headers_and_body(headers: Headers, data: bytes, wire: bytes | None) -> tuple[Headers, bytes, tuple[str, ...]]:
    """Return headers and a body that match. Playhead's own archives have the bytes of the wire."""
    coding = header(headers, "content-encoding")
    if wire is not None and _is_encoding_of(wire, coding, data):
        return headers, wire, ()
    return match_headers_to_body(headers, data)


def _is_encoding_of(wire: bytes, coding: str | None, data: bytes) -> bool:
    """Whether these bytes decode to the text of the archive. If somebody has edited the text, the text is used."""
    try:
        return decode_content(wire, coding) == data
    except Undecodable:
        return wire == data


def _request_content(raw_request: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    posted = raw_request.get("postData")
    size = raw_request.get("bodySize")
    if not isinstance(posted, dict):
        if isinstance(size, int) and size > 0:
            raise BrokenInteraction(f"the {size:,} bytes of its request's body are not in the file")
        return b"", None
    kind = str(posted.get("mimeType") or "")
    params = posted.get("params")
    if not posted.get("text") and params:
        if not kind.startswith("application/x-www-form-urlencoded"):
            raise BrokenInteraction(
                f"its request's body ({kind[:40]}) is kept as parameters, from which its bytes cannot be rebuilt"
            )
        return urlencode([(str(p.get("name")), str(p.get("value") or "")) for p in params]).encode(), None
    encoding = posted.get("_encoding") or posted.get("encoding")
    return _decode_text(posted.get("text"), encoding, "request"), _wire_bytes(posted)


def _response_content(raw_response: Mapping[str, Any], *, bodiless: bool) -> tuple[bytes, bytes | None]:
    content = raw_response.get("content")
    if not isinstance(content, dict):
        return b"", None
    size = content.get("size")
    if content.get("text") is None and isinstance(size, int) and size > 0 and not bodiless:
        raise BrokenInteraction(f"the {size:,} bytes of its response's body are not in the file")
    return _decode_text(content.get("text"), content.get("encoding"), "response"), _wire_bytes(content)


def _decode_text(text: Any, encoding: Any, side: str) -> bytes:
    if text is None:
        return b""
    if not isinstance(text, str):
        raise BrokenInteraction(f"its {side}'s body is not text")
    if encoding != "base64":
        return text.encode("utf-8", "surrogatepass")
    return _decode_base64(text, side)


def _wire_bytes(raw: Mapping[str, Any]) -> bytes | None:
    return _decode_base64(raw[WIRE], "own") if isinstance(raw.get(WIRE), str) else None


def _decode_base64(text: str, side: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except (NotBase64, ValueError):
        raise BrokenInteraction(f"its {side}'s body is not valid base64") from None


# -- WebSockets: browsers and mitmproxy keep the messages in the entry that opened the connection


def _with_messages(interaction: Interaction, raw: list[Any]) -> Interaction:
    """Add a WebSocket's messages as the chunks of both bodies."""
    sides: dict[str, list[tuple[int, ChunkKind, bytes]]] = {"send": [], "receive": []}
    last = interaction.first_byte_at or 0
    for one in raw:
        if (message := _message(one, interaction.started_at)) is None:
            continue
        side, at, kind, data = message
        # The messages are in order, even if the clock went back.
        last = max(last, at)
        sides[side].append((last, kind, data))
    return msgspec.structs.replace(
        interaction,
        request=replace(interaction.request, body=messages_body(sides["send"])),
        response=replace(interaction.response, body=messages_body(sides["receive"])),
        ended_at=max(last, interaction.ended_at or 0),
        notes=tuple(note for note in interaction.notes if note != UNCHUNKED),
    )


def _message(raw: Any, started_at: int | None) -> tuple[str, int, ChunkKind, bytes] | None:
    """Read a message; None for what is none: a ping or pong, and what Chrome says of a connection that failed."""
    match raw:
        case {"type": "error"} | {"opcode": 9 | 10}:
            return None
        case {"type": "send" | "receive" as side, "data": str(data)}:
            time, opcode = raw.get("time"), raw.get("opcode", 1)
        case _:
            raise BrokenInteraction("one of its WebSocket messages has no direction or no data")
    at = round(time * 1_000_000) * 1000 - started_at if _is_epoch_time(time) and started_at else 0
    if opcode == OPCODES["binary"]:
        return side, max(at, 0), "binary", _decode_base64(data, "message")
    if opcode == OPCODES["close"]:
        return side, max(at, 0), "close", _close_data(data)
    return side, max(at, 0), "text", data.encode("utf-8", "surrogatepass")


def _close_data(text: str) -> bytes:
    """Return the code and reason as bytes. Other programs write a text that need not be base64: then the code is unknown."""
    try:
        data = b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return b""
    return data if 1000 <= int.from_bytes(data[:2]) < 5000 else b""


def _is_epoch_time(time: Any) -> bool:
    """Whether this is a time in seconds since the epoch."""
    return isinstance(time, int | float) and not isinstance(time, bool) and 0 < time < LAST / 10**9
