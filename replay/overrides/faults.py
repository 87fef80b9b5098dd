"""Make the faults of a provider: an error in its own shape, silence, a cut, a broken body, a slow one."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from calls import answer_form as forms
from calls.codec.encoding import Undecodable, decode
from calls.codec.json import dumps
from calls.derive import derived
from calls.keys.key import KeyResult
from calls.model import Body, Chunk, Exchange, Headers, Json, Response, header
from calls.overrides.overrides import Fault
from replay import playback
from replay.answer import Answer, Piece
from replay.overrides.apply import Unfit, with_body

SECOND: Final = 1_000_000_000
PIECES: Final = 10
"""Into how many pieces an answer is cut that came in one, where it is to come slowly."""

_LIMIT: Final = 64 << 20


def failed(exchange: Exchange, key: KeyResult, fault: Fault) -> Exchange:
    """The exchange as it is where the fault hits it. Raises Unfit where it cannot."""
    match fault.kind:
        case "status":
            return _refused(exchange, refusal(fault, key.dialect))
        case "cut":
            return _cut(_answered(exchange), int(fault.amount))
        case "malformed":
            return _malformed(_answered(exchange), key)
        case _:
            _answered(exchange)
            return exchange


def _answered(exchange: Exchange) -> Exchange:
    if (why := playback.lacking(exchange)) or exchange.response is None:
        raise Unfit(why or "no response was recorded")
    return exchange


def _refused(exchange: Exchange, response: Response) -> Exchange:
    first = exchange.first_byte_at or 0
    return replace(exchange, response=response, outcome="completed", error=None, first_byte_at=first, ended_at=first)


# -- refusals


def refusal(fault: Fault, dialect: str) -> Response:
    """A refusal of this status as this API says it."""
    status = int(fault.amount)
    message = fault.message or f"{_SAID.get(status, 'The request failed.')} (a fault that Playhead was told to inject)"
    data = dumps(_shape(dialect, status, message))
    headers = (("Content-Type", "application/json"), *_again(fault, status), *_named(dialect, status))
    return with_body(Response(status=status, headers=headers), data, "application/json")


_SAID: Final[Mapping[int, str]] = {
    429: "Rate limit reached.",
    500: "The server had an error.",
    503: "The service is overloaded.",
    529: "Overloaded.",
}


def _again(fault: Fault, status: int) -> Headers:
    """When to ask again: in whole seconds as HTTP has it, and in milliseconds as the SDKs of OpenAI and Anthropic read it."""
    after = fault.retry_after if fault.retry_after is not None else 1.0 if status in (429, 503, 529) else None
    if after is None:
        return ()
    return (("Retry-After", str(math.ceil(after))), ("retry-after-ms", str(round(after * 1000))))


def _named(dialect: str, status: int) -> Headers:
    if not dialect.startswith("bedrock"):
        return ()
    return (("x-amzn-ErrorType", "ThrottlingException" if status == 429 else "InternalServerException"),)


def _shape(dialect: str, status: int, message: str) -> Json:
    kind = "rate_limit" if status == 429 else "overloaded" if status in (503, 529) else "server"
    match dialect:
        case "anthropic":
            name = {"rate_limit": "rate_limit_error", "overloaded": "overloaded_error"}.get(kind, "api_error")
            return {"type": "error", "error": {"type": name, "message": message}}
        case "gemini" | "gemini_code":
            name = {"rate_limit": "RESOURCE_EXHAUSTED", "overloaded": "UNAVAILABLE"}.get(kind, "INTERNAL")
            return {"error": {"code": status, "message": message, "status": name}}
        case "ollama":
            return {"error": message}
        case "mcp" | "a2a":
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": message}}
        case _ if dialect.startswith(("bedrock", "cohere")):
            return {"message": message}
        case _ if dialect.startswith("openai"):
            named = "rate_limit_exceeded" if kind == "rate_limit" else None
            return {"error": {"message": message, "type": f"{kind}_error", "param": None, "code": named}}
        case _:
            return {"error": {"message": message, "status": status}}


# -- broken answers


def _cut(exchange: Exchange, size: int) -> Exchange:
    assert exchange.response is not None
    body = exchange.response.body
    if size >= len(body.data):
        raise Unfit(f"its answer has {len(body.data)} bytes, so it cannot be cut after {size}")
    chunks = tuple(_within(body.chunks, size))
    short = Body(data=body.data[:size], chunks=chunks, size=size, reencoded=body.reencoded)
    return replace(exchange, response=replace(exchange.response, body=short), outcome="server_closed")


def _within(chunks: tuple[Chunk, ...], size: int) -> Iterator[Chunk]:
    for chunk in chunks:
        if chunk.offset < size:
            yield replace(chunk, size=min(chunk.size, size - chunk.offset))


def _malformed(exchange: Exchange, key: KeyResult) -> Exchange:
    """JSON that ends in its middle, in a message that is whole by HTTP."""
    response = exchange.response
    assert response is not None
    form = forms.given(response, derived(exchange, key))
    data = _opened(response)
    media = header(response.headers, "content-type") or "application/json"
    match form:
        case "eventstream":
            raise Unfit("its frames carry checksums; use fault = { cut = N }")
        case "sse" | "ndjson":
            return replace(exchange, response=with_body(response, _broken_line(data), media, sized=False))
        case _ if data.lstrip()[:1] in (b"{", b"["):
            return replace(exchange, response=with_body(response, data[: len(data) // 2], media))
        case _:
            raise Unfit("its answer is no JSON")


_LINE: Final = re.compile(rb"^((?:data:)?[ ]?)(\{[^\r\n]*)", re.MULTILINE)


def _broken_line(data: bytes) -> bytes:
    """The longest message of a stream, cut in half: it is the one that says most."""
    found = max(_LINE.finditer(data), key=lambda line: len(line[2]), default=None)
    if found is None:
        raise Unfit("no message of its stream is JSON")
    return data[: found.start(2) + (found.end(2) - found.start(2)) // 2] + data[found.end(2) :]


def _opened(response: Response) -> bytes:
    encoding = header(response.headers, "content-encoding") or ""
    try:
        return decode(response.body.data, encoding, _LIMIT) if encoding else response.body.data
    except Undecodable as error:
        raise Unfit(f"its body cannot be opened: {error}") from None


# -- time


def silent(fault: Fault) -> Answer:
    """Nothing at all; after the time we break off."""
    return Answer(status=0, end="hold", patience=round(fault.amount * SECOND))


def slowed(answer: Answer, fault: Fault) -> Answer:
    """The answer, with a pause before each piece."""
    pause = round(fault.amount * SECOND)
    size = fault.piece or (None if len(answer.pieces) > 1 else max(1, len(answer.body) // PIECES))
    data = [piece.data for piece in answer.pieces] if size is None else _pieces(answer.body, size)
    pieces = tuple(Piece(answer.at + pause * place, one) for place, one in enumerate(data, 1))
    return replace(answer, pieces=pieces, end_at=max(answer.end_at, pieces[-1].at if pieces else 0))


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
