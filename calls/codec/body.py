"""Read the body of a request by its content type: JSON, JSON lines, a form, multipart, text, or bytes by their digest.

The bytes are believed before the label: curl sends JSON as a form unless it is told otherwise. A body that should be JSON
and cannot be read without guessing counts by its raw bytes, with a warning: never by a guess, and never a crash.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl

from calls.codec.encoding import Undecodable, decode
from calls.codec.json import NotLossless, parse
from calls.model import Json, Request, header
from calls.websocket_messages import opens, spoken, values

type Form = Literal["none", "json", "lines", "form", "multipart", "text", "bytes", "raw", "messages"]

LIMIT: Final = 64 * 1024 * 1024
"""A compressed body that opens to more than this counts by its raw bytes."""

_TEXT: Final = re.compile(r"text/.*|.*[/+](xml|graphql|x-ndjson|ndjson|jsonl|json-seq|javascript|yaml)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A body and what it was read as."""

    form: Form
    value: Json = None
    text: bytes = b""
    """The decoded bytes."""
    warning: str | None = None


def read(request: Request, *, is_json: bool = False) -> Read:
    """Read the body of a request; `is_json` where its dialect knows no other form. A WebSocket's is all that its client said."""
    if spoken(request.body) or opens(request.method, request.headers):
        return Read(form="messages", value=values(request.body), text=request.body.data)
    encoding = header(request.headers, "content-encoding") or ""
    try:
        data = decode(request.body.data, encoding, LIMIT) if encoding else request.body.data
    except Undecodable as error:
        return _raw(request.body.data, f"its content-encoding {encoding!r} could not be undone ({error})")
    media = header(request.headers, "content-type") or ""
    essence = media.partition(";")[0].strip().lower()
    return _read(data, media, essence, is_json=is_json or essence.endswith(("/json", "+json")))


def _read(data: bytes, media: str, essence: str, *, is_json: bool) -> Read:
    if not data:
        return Read(form="none")
    # Forms, and what Google's storage is sent: what a thing is, then the thing (`multipart/related`).
    if essence.startswith("multipart/") and (parts := _multipart(data, media)) is not None:
        return Read(form="multipart", value=parts, text=data)
    if is_json or data.lstrip()[:1] in (b"{", b"["):
        try:
            return Read(form="json", value=parse(data), text=data)
        except NotLossless as error:
            if (lines := _lines(data)) is not None:
                return Read(form="lines", value=lines, text=data)
            if is_json:
                return _raw(data, f"it is not plain JSON ({error})")
    if essence == "application/x-www-form-urlencoded":
        return Read(form="form", value=_fields(data), text=data)
    return _opaque(data, essence)


def _lines(data: bytes) -> Json:
    """JSON values one a line (Elasticsearch takes such bodies under any label); None where one of them is none."""
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        return [parse(line) for line in lines] if len(lines) > 1 else None
    except NotLossless:
        return None


def _opaque(data: bytes, essence: str) -> Read:
    if _TEXT.fullmatch(essence):
        try:
            return Read(form="text", value=data.decode(), text=data)
        except UnicodeDecodeError:
            pass
    return Read(form="bytes", value=_digest(data), text=data)


def _raw(data: bytes, why: str) -> Read:
    warning = f"the body counts by its raw bytes, because {why}: a request that only spells it differently will miss"
    return Read(form="raw", value=_digest(data), text=data, warning=warning)


def _digest(data: bytes) -> Json:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def pairs(query: str) -> list[tuple[str, str]]:
    """The decoded pairs of a query or form, by name; pairs of one name stay in their order."""
    try:
        found = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        # Not UTF-8: one character for each byte loses nothing.
        found = parse_qsl(query, keep_blank_values=True, encoding="latin-1")
    return sorted(found, key=lambda pair: pair[0])


def _fields(data: bytes) -> Json:
    return _grouped(pairs(data.decode("latin-1")))


def _grouped(named: list[tuple[str, Json]] | list[tuple[str, str]]) -> Json:
    fields: dict[str, list[Json]] = {}
    for name, value in named:
        fields.setdefault(name, []).append(value)
    return fields


def _multipart(data: bytes, media: str) -> Json:
    """The parts by name, without the boundary, which is random (RFC 7578). None where it cannot be read."""
    match = re.search(r'boundary=(?:"([^"]+)"|([^;\s]+))', media, re.IGNORECASE)
    if match is None:
        return None
    boundary = b"\r\n--" + (match[1] or match[2]).encode("latin-1", "replace")
    pieces = (b"\r\n" + data).split(boundary)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        return None
    return _grouped(list(_parts(pieces[1:-1])))


def _parts(pieces: list[bytes]) -> Iterator[tuple[str, Json]]:
    for piece in pieces:
        head, _, content = piece.partition(b"\r\n\r\n")
        headers = dict(_part_headers(head.decode("utf-8", "replace")))
        disposition = headers.get("content-disposition", "")
        name, filename = _parameter(disposition, "name"), _parameter(disposition, "filename")
        yield name or "", _part(content, filename, headers)


def _part(content: bytes, filename: str | None, headers: Mapping[str, str]) -> Json:
    if filename is None:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    media = headers.get("content-type")
    return {"filename": filename, "type": media, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _part_headers(head: str) -> Iterator[tuple[str, str]]:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        yield name.strip().lower(), value.strip()


def _parameter(disposition: str, name: str) -> str | None:
    match = re.search(rf';\s*{name}="((?:[^"\\]|\\.)*)"', disposition, re.IGNORECASE)
    return match[1] if match else None
