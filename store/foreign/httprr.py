"""Read traces of Go's httprr (golang.org/x/oscar, LangChainGo, ADK for Go): requests and responses in HTTP/1.1.

The first line names the format. For each exchange follow a line with the sizes of its request and response, and both, byte
for byte. The request line has the whole URL. Lines may lack their carriage return, if a repository has normalized them.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from calls.model import Headers, Request, Response, header
from store.foreign.contents import UNCHUNKED, UNTIMED, BrokenInteraction, Found, Interaction, NotReadable, SkippedEntry
from store.foreign.parts import (
    checked_header,
    checked_url,
    http_version,
    match_headers_to_body,
    one_chunk_body,
    parse_date,
    timestamp_ns,
)

MARK: Final = b"httprr trace v1"

_SIZES: Final = re.compile(rb"\s*(\d{1,10}) (\d{1,10})\r?\n")
_BLANK: Final = re.compile(rb"\r?\n\r?\n")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[^\r\n]*)?\r?\n")
_REQUEST_LINE: Final = re.compile(r"([A-Za-z]+) (\S+) (HTTP/\d(?:\.\d)?)")
_STATUS_LINE: Final = re.compile(r"(HTTP/\d(?:\.\d)?) ([1-9]\d\d)(?: (.*))?")


def read_httprr(data: bytes) -> Iterator[Found]:
    """Read the exchanges in order. Raises NotReadable where there are none."""
    at = len(data) if (end := data.find(b"\n")) < 0 else end + 1
    if not _SIZES.match(data, at):
        raise NotReadable("it has no exchanges; record it again")
    return _read_exchanges(data, at)


def _read_exchanges(data: bytes, at: int) -> Iterator[Found]:
    number = 0
    while data[at:].strip():
        number += 1
        sizes = _SIZES.match(data, at)
        middle = sizes.end() + int(sizes[1]) if sizes else 0
        end = middle + int(sizes[2]) if sizes else 0
        if not sizes or end > len(data):
            yield SkippedEntry(place=f"all from exchange {number} on", reason="its sizes do not match what follows")
            return
        yield _exchange(f"exchange {number}", data[sizes.end() : middle], data[middle:end])
        at = end


def _exchange(place: str, raw_request: bytes, raw_response: bytes) -> Found:
    try:
        return _interaction(place, raw_request, raw_response)
    except BrokenInteraction as error:
        return SkippedEntry(place=place, reason=str(error))


def _interaction(place: str, raw_request: bytes, raw_response: bytes) -> Interaction:
    first, headers, data = _parse_message(raw_request, _REQUEST_LINE, "request")
    headers, data, asked_notes = match_headers_to_body(headers, data)
    request = Request(
        method=first[1].upper(),
        url=checked_url(_address(first[2], headers)),
        http_version=http_version(first[3]),
        headers=headers,
        body=one_chunk_body(data),
    )
    first, headers, data = _parse_message(raw_response, _STATUS_LINE, "response")
    headers, data, notes = match_headers_to_body(headers, data)
    response = Response(
        status=int(first[2]),
        reason=first[3] or "",
        http_version=http_version(first[1]),
        headers=headers,
        body=one_chunk_body(data),
    )
    return Interaction(
        place=place,
        request=request,
        response=response,
        started_at=timestamp_ns(header(headers, "date"), parse_date),
        notes=(*asked_notes, *notes, UNTIMED, UNCHUNKED),
    )


def _address(target: str, headers: Headers) -> str:
    return target if "://" in target else f"https://{header(headers, 'host') or ''}{target}"


def _parse_message(data: bytes, shape: re.Pattern[str], side: str) -> tuple[Any, Headers, bytes]:
    """Parse a message into the match of its first line, its headers and its body. Raises BrokenInteraction."""
    blank = _BLANK.search(data)
    if blank is None:
        raise BrokenInteraction(f"its {side} has no empty line after its headers")
    first, *lines = data[: blank.start()].decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    match = shape.fullmatch(first)
    if match is None:
        raise BrokenInteraction(f"its {side} begins with {first[:80]!r}, which is not the first line of an HTTP {side}")
    headers = tuple(map(_parse_field, lines))
    return match, headers, _decode_chunked(headers, data[blank.end() :])


def _decode_chunked(headers: Headers, data: bytes) -> bytes:
    """Remove HTTP/1.1's chunk framing from a body, which the trace keeps. Raises BrokenInteraction."""
    if (header(headers, "transfer-encoding") or "").lower() != "chunked":
        return data
    pieces, at = [], 0
    while size := _CHUNK.match(data, at):
        start, at = size.end(), size.end() + int(size[1], 16)
        pieces.append(data[start:at])
        if start == at:
            return b"".join(pieces)
        at += 2 if data[at : at + 2] == b"\r\n" else 1
    raise BrokenInteraction("its chunks do not match their sizes")


def _parse_field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return checked_header(name, value.strip(" \t"))
