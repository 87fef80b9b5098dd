"""Read the body of a request by its content type: JSON, JSON lines, a form, multipart, text, or bytes by their digest.

The bytes take precedence over the content type: curl sends JSON as a form unless an option says otherwise. A body that
should be JSON but is invalid or ambiguous is represented by the digest of its raw bytes, with a warning.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import parse_qsl

import msgspec

from calls.codec.encoding import Undecodable, decode_content
from calls.codec.json import InvalidJson, parse_json
from calls.codec.read_body import ReadBody
from calls.model import Json, Request, header
from calls.websocket_messages import is_websocket_body, is_websocket_request, message_values

type Form = Literal["none", "json", "lines", "form", "multipart", "text", "bytes", "raw", "messages"]

MAX_BODY_SIZE: Final = 64 * 1024 * 1024
"""A compressed body that decodes to more bytes is represented by the digest of its raw bytes."""

_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)

MAX_MULTIPART_DEPTH: Final = 4
"""Levels of multipart bodies within one another that are read. What is deeper counts with its boundary."""

_LONGEST_REMEMBERED_QUERY: Final = 256
"""Characters of a query beyond which its parameters are not cached."""

_TEXT: Final = re.compile(r"text/.*|.*[/+](xml|graphql|x-ndjson|ndjson|jsonl|json-seq|javascript|yaml)")


class ParsedBody(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A body and the form in which it was read."""

    form: Form
    value: Json = None
    text: bytes = b""
    """The decoded bytes."""
    warning: str | None = None
    read: ReadBody | None = None
    """How it was read, if that was element by element."""

    def has_text(self, needle: bytes) -> bool:
        """Return whether some bytes occur in the text, or might."""
        return needle in self.text if self.read is None else self.read.has_text(needle)


type ReadElements = Callable[[bytes], ReadBody | None]
"""Parses a JSON body element by element; None if it has to be parsed as a whole."""


def parse_body(
    request: Request, *, is_json: bool = False, read_elements: ReadElements = lambda _data: None
) -> ParsedBody:
    """Read the body of a request. `is_json`: its dialect allows no other form. For a WebSocket: the client's messages."""
    if is_websocket_body(request.body) or is_websocket_request(request.method, request.headers):
        return ParsedBody(form="messages", value=message_values(request.body), text=request.body.data)
    encoding = header(request.headers, "content-encoding") or ""
    try:
        data = decode_content(request.body.data, encoding, MAX_BODY_SIZE) if encoding else request.body.data
    except Undecodable as error:
        return _raw_body(request.body.data, f"its content-encoding {encoding!r} could not be decoded ({error})")
    media = header(request.headers, "content-type") or ""
    essence = media.partition(";")[0].strip().lower()
    is_json = is_json or essence.endswith(("/json", "+json"))
    if is_json and not essence.startswith("multipart/") and (read := read_elements(data)) is not None:
        return ParsedBody(form="json", value=read.value, text=data, read=read)
    return _parse_decoded_body(data, media, essence, is_json=is_json)


def _parse_decoded_body(data: bytes, media: str, essence: str, *, is_json: bool) -> ParsedBody:
    if not data:
        return ParsedBody(form="none")
    # Forms, and uploads to Google's storage: the metadata, then the content (`multipart/related`).
    if essence.startswith("multipart/") and (parts := _parse_multipart(data, media)) is not None:
        return ParsedBody(form="multipart", value=parts, text=data)
    if is_json or data.lstrip()[:1] in (b"{", b"["):
        try:
            return ParsedBody(form="json", value=parse_json(data), text=data)
        except InvalidJson as error:
            if (lines := _parse_json_lines(data)) is not None:
                return ParsedBody(form="lines", value=lines, text=data)
            if is_json:
                return _raw_body(data, f"it is not plain JSON ({error})")
    if essence == "application/x-www-form-urlencoded":
        return ParsedBody(form="form", value=_form_fields(data), text=data)
    return _parse_text_or_digest(data, essence)


def _parse_json_lines(data: bytes) -> Json:
    """Read one JSON value per line (Elasticsearch accepts such bodies with any content type); None if a line is not JSON."""
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        return [parse_json(line) for line in lines] if len(lines) > 1 else None
    except InvalidJson:
        return None


def _parse_text_or_digest(data: bytes, essence: str) -> ParsedBody:
    if _TEXT.fullmatch(essence):
        try:
            return ParsedBody(form="text", value=data.decode(), text=data)
        except UnicodeDecodeError:
            pass
    return ParsedBody(form="bytes", value=_digest(data), text=data)


def _raw_body(data: bytes, why: str) -> ParsedBody:
    warning = f"the key uses the raw bytes of the body because {why}: a request with other formatting will miss"
    return ParsedBody(form="raw", value=_digest(data), text=data, warning=warning)


def _digest(data: bytes) -> Json:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def media_type_without_boundary(media: str) -> str:
    """Return the value of a content type header without the boundary of a multipart body, which is random."""
    return _BOUNDARY.sub("boundary", media) if media.lstrip().lower().startswith("multipart/") else media


def query_pairs(query: str) -> Sequence[tuple[str, str]]:
    """Return the decoded pairs of a query or form, sorted by name; pairs of one name keep their order."""
    return _remembered_pairs(query) if len(query) <= _LONGEST_REMEMBERED_QUERY else _decode_pairs(query)


def _decode_pairs(query: str) -> Sequence[tuple[str, str]]:
    try:
        found = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        # Not UTF-8: one character for each byte loses no information.
        found = parse_qsl(query, keep_blank_values=True, encoding="latin-1")
    return tuple(sorted(found, key=lambda pair: pair[0]))


# The calls of a client mostly have the same few parameters, such as the version of an API.
_remembered_pairs: Final = lru_cache(1024)(_decode_pairs)


def _form_fields(data: bytes) -> Json:
    return _group_by_name(query_pairs(data.decode("latin-1")))


def _group_by_name(pairs: Sequence[tuple[str, Json]] | Sequence[tuple[str, str]]) -> Json:
    fields: dict[str, list[Json]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _parse_multipart(data: bytes, media: str, depth: int = 1) -> Json:
    """Return the parts by name, without the random boundary (RFC 7578); None if the body cannot be read."""
    match = _BOUNDARY.search(media)
    if match is None:
        return None
    delimiter = b"--" + (match[1] or match[2]).encode("latin-1", "replace")
    # Python's `email`, with which Google's API client writes uploads and batches, ends lines with a bare "\n".
    newline = b"\n" if delimiter + b"\n" in data else b"\r\n"
    pieces = (newline + data).split(newline + delimiter)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        return None
    return _group_by_name(list(_named_parts(pieces[1:-1], newline, depth)))


def _named_parts(pieces: list[bytes], newline: bytes, depth: int) -> Iterator[tuple[str, Json]]:
    for piece in pieces:
        head, _, content = piece.partition(newline + newline)
        headers = dict(_part_headers(head.decode("utf-8", "replace")))
        disposition = headers.get("content-disposition", "")
        name, filename = _disposition_parameter(disposition, "name"), _disposition_parameter(disposition, "filename")
        yield name or "", _part_value(content, filename, headers, depth)


def _part_value(content: bytes, filename: str | None, headers: Mapping[str, str], depth: int) -> Json:
    media = headers.get("content-type")
    if media is not None and media.lower().startswith("multipart/") and depth < MAX_MULTIPART_DEPTH:
        # A set of changes within a batch (OData 11.7), whose boundary is random, too.
        parts = _parse_multipart(content, media, depth + 1)
        if parts is not None:
            return parts
    if filename is None:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    return {"filename": filename, "type": media, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _part_headers(head: str) -> Iterator[tuple[str, str]]:
    for line in head.split("\n"):
        name, _, value = line.partition(":")
        yield name.strip().lower(), value.strip()


def _disposition_parameter(disposition: str, name: str) -> str | None:
    match = re.search(rf';\s*{name}="((?:[^"\\]|\\.)*)"', disposition, re.IGNORECASE)
    return match[1] if match else None
