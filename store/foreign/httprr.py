"""Read traces of Go's httprr (golang.org/x/oscar, LangChainGo, ADK for Go): requests and responses in HTTP/1.1.

A line that names the format; then for each exchange a line with the sizes of its halves, and both, byte for byte. The
request's line holds the whole address. Lines may end without their carriage return, where a repository took it off.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from calls.model import Headers, Request, Response, header
from store.foreign.contents import UNCHUNKED, UNTIMED, Broken, Found, Interaction, NotReadable, SkippedEntry
from store.foreign.parts import body, dated, field, mended, moment, url, version

MARK: Final = b"httprr trace v1"

_SIZES: Final = re.compile(rb"\s*(\d{1,10}) (\d{1,10})\r?\n")
_BLANK: Final = re.compile(rb"\r?\n\r?\n")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[^\r\n]*)?\r?\n")
_ASKED: Final = re.compile(r"([A-Za-z]+) (\S+) (HTTP/\d(?:\.\d)?)")
_ANSWERED: Final = re.compile(r"(HTTP/\d(?:\.\d)?) ([1-9]\d\d)(?: (.*))?")


def read(data: bytes) -> Iterator[Found]:
    """The exchanges in their order. Raises NotReadable where there are none."""
    at = len(data) if (end := data.find(b"\n")) < 0 else end + 1
    if not _SIZES.match(data, at):
        raise NotReadable("it holds no exchanges")
    return _read(data, at)


def _read(data: bytes, at: int) -> Iterator[Found]:
    number = 0
    while data[at:].strip():
        number += 1
        sizes = _SIZES.match(data, at)
        middle = sizes.end() + int(sizes[1]) if sizes else 0
        end = middle + int(sizes[2]) if sizes else 0
        if not sizes or end > len(data):
            yield SkippedEntry(place=f"all from exchange {number} on", reason="its sizes are not those of what follows")
            return
        yield _exchange(f"exchange {number}", data[sizes.end() : middle], data[middle:end])
        at = end


def _exchange(place: str, asked: bytes, answered: bytes) -> Found:
    try:
        return _interaction(place, asked, answered)
    except Broken as error:
        return SkippedEntry(place=place, reason=str(error))


def _interaction(place: str, asked: bytes, answered: bytes) -> Interaction:
    first, headers, data = _halves(asked, _ASKED, "request")
    headers, data, asked_notes = mended(headers, data)
    request = Request(
        method=first[1].upper(),
        url=url(_address(first[2], headers)),
        http_version=version(first[3]),
        headers=headers,
        body=body(data),
    )
    first, headers, data = _halves(answered, _ANSWERED, "response")
    headers, data, notes = mended(headers, data)
    response = Response(
        status=int(first[2]),
        reason=first[3] or "",
        http_version=version(first[1]),
        headers=headers,
        body=body(data),
    )
    return Interaction(
        place=place,
        request=request,
        response=response,
        started_at=moment(header(headers, "date"), dated),
        notes=(*asked_notes, *notes, UNTIMED, UNCHUNKED),
    )


def _address(target: str, headers: Headers) -> str:
    return target if "://" in target else f"https://{header(headers, 'host') or ''}{target}"


def _halves(data: bytes, shape: re.Pattern[str], side: str) -> tuple[Any, Headers, bytes]:
    """The parts of the first line, the headers and the body. Raises Broken."""
    blank = _BLANK.search(data)
    if blank is None:
        raise Broken(f"its {side} has no end of its headers")
    first, *lines = data[: blank.start()].decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    match = shape.fullmatch(first)
    if match is None:
        raise Broken(f"its {side} begins with {first[:80]!r}")
    headers = tuple(map(_field, lines))
    return match, headers, _unchunked(headers, data[blank.end() :])


def _unchunked(headers: Headers, data: bytes) -> bytes:
    """The body without the frames that HTTP/1.1 put around its chunks, which the trace keeps. Raises Broken."""
    if (header(headers, "transfer-encoding") or "").lower() != "chunked":
        return data
    pieces, at = [], 0
    while size := _CHUNK.match(data, at):
        start, at = size.end(), size.end() + int(size[1], 16)
        pieces.append(data[start:at])
        if start == at:
            return b"".join(pieces)
        at += 2 if data[at : at + 2] == b"\r\n" else 1
    raise Broken("its chunks are not as long as they say")


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return field(name, value.strip(" \t"))
