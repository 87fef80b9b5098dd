"""Inject faults of a provider: an error in its own shape, a timeout, a cut or malformed body, a slow answer."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from calls import answer_form as forms
from calls.codec.encoding import Undecodable, decode_content
from calls.codec.json import dumps
from calls.derive import derive_keyed_call
from calls.dialects.table import BY_NAME
from calls.keys.key import KeyResult
from calls.model import Body, Chunk, Exchange, Headers, Response, header
from calls.overrides.overrides import Fault
from replay import playback
from replay.answer import Answer, Piece
from replay.overrides.apply import CannotEdit, with_body

SECOND: Final = 1_000_000_000
PIECES: Final = 10
"""The number of pieces of a slow answer that was recorded in one piece."""

_LIMIT: Final = 64 << 20


def inject_fault(exchange: Exchange, key: KeyResult, fault: Fault) -> Exchange:
    """Return the exchange with this fault. Raises CannotEdit if it cannot have it."""
    match fault.kind:
        case "status":
            return _refuse(exchange, error_response(fault, key.dialect))
        case "cut":
            return _cut_body(_require_answer(exchange), int(fault.amount))
        case "malformed":
            return _break_json(_require_answer(exchange), key)
        case _:
            _require_answer(exchange)
            return exchange


def _require_answer(exchange: Exchange) -> Exchange:
    if (why := playback.unreplayable_reason(exchange)) or exchange.response is None:
        raise CannotEdit(
            f"{why or 'no response was recorded'}; use fault = {{ status = N }}, which needs no recorded answer"
        )
    return exchange


def _refuse(exchange: Exchange, response: Response) -> Exchange:
    first = exchange.first_byte_at or 0
    return replace(exchange, response=response, outcome="completed", error=None, first_byte_at=first, ended_at=first)


# -- errors


def error_response(fault: Fault, dialect: str) -> Response:
    """Make an error with this status in the shape of the dialect."""
    status = int(fault.amount)
    message = (
        fault.message or f"{_MESSAGES.get(status, 'The request failed.')} (a fault that Playhead was told to inject)"
    )
    data = dumps(BY_NAME[dialect].error_body(status, message))
    headers = (
        ("Content-Type", "application/json"),
        *_retry_headers(fault, status),
        *BY_NAME[dialect].error_headers(status),
    )
    return with_body(Response(status=status, headers=headers), data, "application/json")


_MESSAGES: Final[Mapping[int, str]] = {
    429: "Rate limit reached.",
    500: "The server had an error.",
    503: "The service is overloaded.",
    529: "Overloaded.",
}


def _retry_headers(fault: Fault, status: int) -> Headers:
    """When to retry: in whole seconds as in HTTP, and in milliseconds for the SDKs of OpenAI and Anthropic."""
    after = fault.retry_after if fault.retry_after is not None else 1.0 if status in (429, 503, 529) else None
    if after is None:
        return ()
    return (("Retry-After", str(math.ceil(after))), ("retry-after-ms", str(round(after * 1000))))


# -- broken answers


def _cut_body(exchange: Exchange, size: int) -> Exchange:
    assert exchange.response is not None
    body = exchange.response.body
    if size >= len(body.data):
        raise CannotEdit(
            f"its answer has {len(body.data)} bytes, so it cannot be cut after {size}; use a smaller number"
        )
    chunks = tuple(_chunks_within(body.chunks, size))
    short = Body(data=body.data[:size], chunks=chunks, size=size, reencoded=body.reencoded)
    return replace(exchange, response=replace(exchange.response, body=short), outcome="server_closed")


def _chunks_within(chunks: tuple[Chunk, ...], size: int) -> Iterator[Chunk]:
    for chunk in chunks:
        if chunk.offset < size:
            yield replace(chunk, size=min(chunk.size, size - chunk.offset))


def _break_json(exchange: Exchange, key: KeyResult) -> Exchange:
    """Cut the JSON in half, in a body that HTTP marks as whole."""
    response = exchange.response
    assert response is not None
    form = forms.received_form(response, derive_keyed_call(exchange, key))
    data = _decode_body(response)
    media = header(response.headers, "content-type") or "application/json"
    match form:
        case "eventstream":
            raise CannotEdit("its frames carry checksums; use fault = { cut = N }")
        case "sse" | "ndjson":
            return replace(exchange, response=with_body(response, _break_longest_line(data), media, sized=False))
        case _ if data.lstrip()[:1] in (b"{", b"["):
            return replace(exchange, response=with_body(response, data[: len(data) // 2], media))
        case _:
            raise CannotEdit("its answer is not JSON; use fault = { cut = N }")


_LINE: Final = re.compile(rb"^((?:data:)?[ ]?)(\{[^\r\n]*)", re.MULTILINE)


def _break_longest_line(data: bytes) -> bytes:
    """Cut the longest message of a stream in half: it is likely to have the content."""
    found = max(_LINE.finditer(data), key=lambda line: len(line[2]), default=None)
    if found is None:
        raise CannotEdit("no message of its stream is JSON; use fault = { cut = N }")
    return data[: found.start(2) + (found.end(2) - found.start(2)) // 2] + data[found.end(2) :]


def _decode_body(response: Response) -> bytes:
    encoding = header(response.headers, "content-encoding") or ""
    try:
        return decode_content(response.body.data, encoding, _LIMIT) if encoding else response.body.data
    except Undecodable as error:
        raise CannotEdit(f"its body cannot be decompressed: {error}; use fault = {{ cut = N }}") from None


# -- time


def silent_answer(fault: Fault) -> Answer:
    """Send nothing, and close the connection after the time of the fault."""
    return Answer(status=0, end="hold", patience=round(fault.amount * SECOND))


def slow_down(answer: Answer, fault: Fault) -> Answer:
    """Add a pause before each piece of the answer."""
    pause = round(fault.amount * SECOND)
    size = fault.piece or (None if len(answer.pieces) > 1 else max(1, len(answer.body) // PIECES))
    data = [piece.data for piece in answer.pieces] if size is None else _split_pieces(answer.body, size)
    pieces = tuple(Piece(answer.at + pause * place, one) for place, one in enumerate(data, 1))
    return dataclasses.replace(answer, pieces=pieces, end_at=max(answer.end_at, pieces[-1].at if pieces else 0))


def _split_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
