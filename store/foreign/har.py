"""Read HTTP archives (HAR 1.2) of browsers, mitmproxy, Charles and Polly.js.

A HAR keeps bodies without their content-encoding, as text or base64. Entries are found first and parsed one by one, so
that memory holds the file (as pages that the system can take back) and one entry.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from calls.codec.encoding import Undecodable, decode
from calls.model import ChunkKind, Headers, Request, Response, header
from store.bundle.trace import LAST
from store.foreign.contents import (
    UNCHUNKED,
    UNTIMED,
    UNVERSIONED,
    Broken,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.parts import body, field, mended, moment, talk, url, version

WIRE: Final = "_wire"
"""Our own member of a body: its bytes as they were on the wire, where HAR's text does not say them."""


class _Archive(msgspec.Struct):
    log: "_Log"


class _Log(msgspec.Struct):
    entries: list[msgspec.Raw]


class _Start(msgspec.Struct, rename={"started_at": "startedDateTime"}):
    started_at: Any = None


_archive = msgspec.json.Decoder(_Archive)
_start = msgspec.json.Decoder(_Start)
_entry = msgspec.json.Decoder(dict[str, Any])


def read(data: Any) -> Iterator[Found]:
    """The entries in the order in which they began; `data` is bytes, or mapped memory. Raises NotReadable."""
    try:
        entries = _archive.decode(data).log.entries
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(f"it is no HTTP archive: {error}") from None
    if not entries:
        raise NotReadable("it holds no entries")
    return _read(entries)


def _read(entries: list[msgspec.Raw]) -> Iterator[Found]:
    for number in sorted(range(len(entries)), key=lambda n: _started(entries[n]) or 0):
        place = f"entry {number + 1}"
        try:
            yield _interaction(place, _entry.decode(entries[number]))
        except (Broken, msgspec.MsgspecError, RecursionError) as error:
            yield SkippedEntry(place=place, reason=str(error))


def _started(entry: msgspec.Raw) -> int | None:
    try:
        return moment(_start.decode(entry).started_at, _rfc3339)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _rfc3339(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _interaction(place: str, told: Mapping[str, Any]) -> Interaction:
    asked, answered = _mapping(told, "request"), _mapping(told, "response")
    status = answered.get("status")
    if not isinstance(status, int) or not 100 <= status <= 999:
        raise Broken(f"it has no response (status {status}{_error(told, answered)})")
    if told.get("_error") or answered.get("_error"):
        raise Broken(f"its answer broke off{_error(told, answered)}")
    started_at = moment(told.get("startedDateTime"), _rfc3339)
    first_byte_at, ended_at = _times(told)
    headers, data, asked_notes = _body_of(_headers(asked), *_posted(asked))
    request = Request(
        method=_method(asked),
        url=url(asked.get("url")),
        http_version=version(asked.get("httpVersion")),
        headers=headers,
        body=body(data),
    )
    headers, data, answered_notes = _body_of(_headers(answered), *_content(answered, bodiless=request.method == "HEAD"))
    response = Response(
        status=status,
        reason=_reason(answered),
        http_version=version(answered.get("httpVersion")),
        headers=headers,
        body=body(data),
    )
    notes = (*asked_notes, *answered_notes, *(() if request.http_version else (UNVERSIONED,)), UNCHUNKED)
    made = Interaction(
        place=place,
        request=request,
        response=response,
        started_at=started_at,
        first_byte_at=first_byte_at,
        ended_at=ended_at,
        notes=notes if first_byte_at is not None else (*notes, UNTIMED),
    )
    messages = told.get("_webSocketMessages")
    return _conversation(made, messages) if isinstance(messages, list) else made


def _mapping(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = told.get(name)
    if not isinstance(value, dict):
        raise Broken(f"it has no {name}")
    return value


def _error(told: Mapping[str, Any], answered: Mapping[str, Any]) -> str:
    why = answered.get("_error") or told.get("_error") or answered.get("statusText")
    return f": {str(why)[:120]}" if why else ""


def _method(asked: Mapping[str, Any]) -> str:
    method = asked.get("method")
    if not isinstance(method, str) or not method.isascii() or not method.isalpha():
        raise Broken(f"its method is {method!r:.80}")
    return method.upper()


def _reason(answered: Mapping[str, Any]) -> str:
    text = answered.get("statusText")
    return text if isinstance(text, str) and text.isascii() and text.isprintable() else ""


def _times(told: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """When the first byte and when the last came, in nanoseconds; -1 is HAR's word for what was not measured."""
    timings = told.get("timings")
    parts = timings if isinstance(timings, dict) else {}
    if not _measured(parts.get("wait")):
        return None, None
    until = sum(_milliseconds(parts.get(name)) for name in ("blocked", "dns", "connect", "send", "wait"))
    whole = max(_milliseconds(told.get("time")), until + _milliseconds(parts.get("receive")))
    return round(until * 1_000_000), round(whole * 1_000_000)


def _milliseconds(value: Any) -> float:
    return float(value) if _measured(value) else 0.0


def _measured(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 10**9


def _headers(told: Mapping[str, Any]) -> Headers:
    pairs = told.get("headers")
    if not isinstance(pairs, list):
        return ()
    return tuple(pair for one in pairs for pair in _pair(one))


def _pair(told: Any) -> Iterator[tuple[str, str]]:
    """A header; browsers write HTTP/2's pseudo-headers among them, and several of one name on lines of one value."""
    match told:
        case {"name": str(name), "value": str(value)} if name and not name.startswith(":"):
            for line in value.splitlines() or [""]:
                yield field(name, line)
        case {"name": str()}:
            pass
        case _:
            raise Broken("one of its headers has no name")


def _body_of(headers: Headers, data: bytes, wire: bytes | None) -> tuple[Headers, bytes, tuple[str, ...]]:
    """Headers and body as they belong together: our own archives say what was on the wire."""
    coding = header(headers, "content-encoding")
    if wire is not None and _opens_to(wire, coding, data):
        return headers, wire, ()
    return mended(headers, data)


def _opens_to(wire: bytes, coding: str | None, data: bytes) -> bool:
    """Whether these are the bytes whose text the archive shows. Somebody may have edited the text: then that counts."""
    try:
        return decode(wire, coding) == data
    except Undecodable:
        return wire == data


def _posted(asked: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    posted = asked.get("postData")
    size = asked.get("bodySize")
    if not isinstance(posted, dict):
        if isinstance(size, int) and size > 0:
            raise Broken(f"the {size:,} bytes of its request's body are not in the file")
        return b"", None
    kind = str(posted.get("mimeType") or "")
    params = posted.get("params")
    if not posted.get("text") and params:
        if not kind.startswith("application/x-www-form-urlencoded"):
            raise Broken(f"its request's body ({kind[:40]}) is kept as parameters, from which its bytes cannot be told")
        return urlencode([(str(p.get("name")), str(p.get("value") or "")) for p in params]).encode(), None
    encoding = posted.get("_encoding") or posted.get("encoding")
    return _text(posted.get("text"), encoding, "request"), _wire(posted)


def _content(answered: Mapping[str, Any], *, bodiless: bool) -> tuple[bytes, bytes | None]:
    content = answered.get("content")
    if not isinstance(content, dict):
        return b"", None
    size = content.get("size")
    if content.get("text") is None and isinstance(size, int) and size > 0 and not bodiless:
        raise Broken(f"the {size:,} bytes of its response's body are not in the file")
    return _text(content.get("text"), content.get("encoding"), "response"), _wire(content)


def _text(text: Any, encoding: Any, side: str) -> bytes:
    if text is None:
        return b""
    if not isinstance(text, str):
        raise Broken(f"its {side}'s body is no text")
    if encoding != "base64":
        return text.encode("utf-8", "surrogatepass")
    return _unbase64(text, side)


def _wire(told: Mapping[str, Any]) -> bytes | None:
    return _unbase64(told[WIRE], "own") if isinstance(told.get(WIRE), str) else None


def _unbase64(text: str, side: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except (NotBase64, ValueError):
        raise Broken(f"its {side}'s body is not the base64 that it should be") from None


# -- WebSockets: browsers and mitmproxy keep the messages beside the entry that opened the connection


def _conversation(made: Interaction, told: list[Any]) -> Interaction:
    """The same interaction with its messages as the chunks of both bodies."""
    sides: dict[str, list[tuple[int, ChunkKind, bytes]]] = {"send": [], "receive": []}
    last = made.first_byte_at or 0
    for one in told:
        side, at, kind, data = _message(one, made.started_at)
        # They are in their order; a clock that went back does not change it.
        last = max(last, at)
        sides[side].append((last, kind, data))
    return replace(
        made,
        request=replace(made.request, body=talk(sides["send"])),
        response=replace(made.response, body=talk(sides["receive"])),
        ended_at=max(last, made.ended_at or 0),
        notes=tuple(note for note in made.notes if note != UNCHUNKED),
    )


def _message(told: Any, started_at: int | None) -> tuple[str, int, ChunkKind, bytes]:
    match told:
        case {"type": "send" | "receive" as side, "data": str(data)}:
            time, opcode = told.get("time"), told.get("opcode", 1)
        case _:
            raise Broken("one of its WebSocket messages has no direction or no data")
    at = round(time * 1_000_000) * 1000 - started_at if _measured_at(time) and started_at else 0
    if opcode == 2:
        return side, max(at, 0), "binary", _unbase64(data, "message")
    return side, max(at, 0), "text", data.encode("utf-8", "surrogatepass")


def _measured_at(time: Any) -> bool:
    """Whether this is a time in seconds since the epoch."""
    return isinstance(time, int | float) and not isinstance(time, bool) and 0 < time < LAST / 10**9
