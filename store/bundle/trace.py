"""Convert exchanges to the trace format and back: JSON that any program can read (docs/trace-format.md).

Bodies are text where they are UTF-8, and base64 otherwise. Members with their default value are omitted. A request that
repeats the beginning or end of an earlier one (agents send the whole conversation each time) may refer to it, so that a
reviewer sees what is new and a run of twenty turns does not contain its history twenty times.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from calls.codec.encoding import Undecodable, decode_content
from calls.effects.items import InvalidEffects, count_results, encode_items, read_items
from calls.events import EffectBatch, Gap
from calls.model import EMPTY_BODY, FORMAT, Body, Chunk, Exchange, Headers, Outcome, Request, Response, header

LAST = (1 << 63) - 1
"""The largest number, so that every program can represent it. As a time in nanoseconds it is in the year 2262."""

type Count = Annotated[int, msgspec.Meta(ge=0, le=LAST)]
type Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=LAST)]
type Status = Annotated[int, msgspec.Meta(ge=100, le=999)]
type Step = Annotated[int, msgspec.Meta(ge=-LAST, le=LAST)]
type Piece = tuple[int | str, ...]
"""[at_ns, offset, size], and the kind unless it is `data`."""

type Span = tuple[Count, Count]
"""(n, size): so many bytes of the request body on line n of the same file."""

type Earlier = Callable[[int], bytes]
"""Returns the request body on an earlier line. Raises `InvalidTrace` where there is none."""


LONGEST_OPENED = 64 << 10


class InvalidTrace(ValueError):
    """Well-formed JSON that is not valid in the trace format."""


class BodyJson(msgspec.Struct, omit_defaults=True, frozen=True):
    """A body. Its bytes are prefix + (text | base64) + suffix."""

    digest: str
    size: Count
    """The number of bytes on the wire, including those that were not kept."""

    prefix: Span | None = None
    text: str | None = None
    base64: str | None = None
    opened: str | None = None
    """The decompressed text of a body, for reviewers of the file. It is not part of the bytes."""

    suffix: Span | None = None
    chunks: tuple[Piece, ...] = ()
    truncated: bool = False
    reencoded: bool = False


class RequestJson(msgspec.Struct, omit_defaults=True, frozen=True):
    """A request's head, body and trailers."""

    method: str
    url: str
    http_version: str
    headers: Headers
    body: BodyJson | None = None
    trailers: Headers = ()


class ResponseJson(msgspec.Struct, omit_defaults=True, frozen=True):
    """A response's head, body and trailers."""

    status: Status
    reason: str
    http_version: str
    headers: Headers
    body: BodyJson | None = None
    trailers: Headers = ()


class ExchangeJson(msgspec.Struct, omit_defaults=True, frozen=True):
    """An exchange. Durations are numbers and end in `_ns`; times are text, as JSON numbers are too imprecise for them."""

    id: str
    run: str
    format: int
    started_at: str
    outcome: Outcome
    request: RequestJson
    response: ResponseJson | None
    first_byte_ns: Nanoseconds | None = None
    ended_ns: Nanoseconds | None = None
    step: Step | None = None
    actor: str | None = None
    error: str | None = None
    redactions: Count = 0
    run_evidence: tuple[tuple[str, str], ...] = ()


class GapJson(msgspec.Struct, omit_defaults=True, frozen=True):
    """Something that passed, or may have passed, and could not be recorded."""

    happened_at: str
    reason: str
    run: str
    exchange: str | None = None
    count: Count = 1


class EffectsJson(msgspec.Struct, frozen=True):
    """What a process got from elsewhere than the network, one after another."""

    id: str
    observed_at: str
    process: str
    number: Count
    count: Count
    run: str
    items: msgspec.Raw


def digest(data: bytes | memoryview) -> str:
    """`sha256:<hex>` of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def exchange_to_json(exchange: Exchange, request_body: BodyJson | None) -> ExchangeJson:
    """Convert an exchange; its request's body is already converted, as it may refer to earlier ones."""
    return ExchangeJson(
        id=exchange.id,
        run=exchange.run,
        format=FORMAT,
        started_at=rfc3339_ns(exchange.started_at),
        outcome=exchange.outcome,
        request=_request_to_json(exchange.request, request_body),
        response=None if exchange.response is None else _response_to_json(exchange.response),
        first_byte_ns=exchange.first_byte_at,
        ended_ns=exchange.ended_at,
        step=exchange.step,
        actor=exchange.actor,
        error=exchange.error,
        redactions=exchange.redactions,
        run_evidence=exchange.run_evidence,
    )


def exchange_from_json(raw: ExchangeJson, earlier: Earlier) -> Exchange:
    """Convert an exchange back.

    Raises `InvalidTrace` if its parts contradict each other, or if a client could read more than one response in its answer.
    """
    started_at = from_rfc3339_ns(raw.started_at)
    if started_at + max(raw.first_byte_ns or 0, raw.ended_ns or 0) > LAST:
        raise InvalidTrace("its end is out of range for nanoseconds since 1970")
    return Exchange(
        id=raw.id,
        run=raw.run,
        request=_request(raw.request, earlier),
        response=None if raw.response is None else _response(raw.response, earlier),
        outcome=raw.outcome,
        started_at=started_at,
        first_byte_at=raw.first_byte_ns,
        ended_at=raw.ended_ns,
        redactions=raw.redactions,
        run_evidence=raw.run_evidence,
        step=raw.step,
        actor=raw.actor,
        error=raw.error,
        format=raw.format,
    )


def gap_to_json(gap: Gap) -> GapJson:
    """Convert a gap."""
    return GapJson(rfc3339_ns(gap.happened_at), gap.reason, gap.run, gap.exchange, gap.count)


def gap_from_json(raw: GapJson) -> Gap:
    """Convert a gap back."""
    return Gap(raw.run, from_rfc3339_ns(raw.happened_at), raw.reason, raw.exchange, raw.count)


def effects_to_json(batch: EffectBatch) -> EffectsJson:
    """Convert a batch of effects."""
    when = rfc3339_ns(batch.observed_at)
    return EffectsJson(batch.id, when, batch.process, batch.number, batch.count, batch.run, msgspec.Raw(batch.items))


def effects_from_json(raw: EffectsJson) -> EffectBatch:
    """Convert a batch of effects back. Raises `InvalidTrace` if one of them is malformed."""
    try:
        items = read_items(bytes(raw.items))
    except InvalidEffects as error:
        raise InvalidTrace(str(error)) from None
    if count_results(items) != raw.count:
        raise InvalidTrace(f"it counts {raw.count} effects, but there are {count_results(items)}")
    when = from_rfc3339_ns(raw.observed_at)
    return EffectBatch(raw.run, raw.id, when, raw.process, raw.number, raw.count, encode_items(items))


def body_to_json(
    body: Body, headers: Headers, prefix: Span | None = None, suffix: Span | None = None
) -> BodyJson | None:
    """Convert a body, without the ends that refer to earlier ones; None for an empty body."""
    if body == EMPTY_BODY:
        return None
    own = body.data[prefix[1] if prefix else 0 : len(body.data) - (suffix[1] if suffix else 0)]
    text = _text(own)
    return BodyJson(
        digest=digest(body.data),
        size=body.size,
        prefix=prefix,
        text=text,
        base64=None if text is not None else base64.b64encode(own).decode(),
        opened=_decompressed_text(body, headers) if text is None else None,
        suffix=suffix,
        chunks=tuple(map(chunk_to_json, body.chunks)),
        truncated=body.truncated,
        reencoded=body.reencoded,
    )


def body_from_json(raw: BodyJson | None, earlier: Earlier) -> Body:
    """Convert a body back. Raises `InvalidTrace` if its bytes do not match its digest."""
    if raw is None:
        return EMPTY_BODY
    data = _head(raw.prefix, earlier) + _own(raw) + _tail(raw.suffix, earlier)
    if digest(data) != raw.digest:
        raise InvalidTrace("a body's bytes do not match its digest")
    chunks = tuple(map(_chunk, raw.chunks))
    return Body(data=data, chunks=chunks, size=raw.size, truncated=raw.truncated, reencoded=raw.reencoded)


def stated_size(raw: BodyJson) -> int:
    """Return an upper bound of a body's size, without assembling it."""
    spans = sum(span[1] for span in (raw.prefix, raw.suffix) if span)
    return spans + len(raw.text or "") + len(raw.base64 or "")


def rfc3339_ns(ns: int) -> str:
    """Format wall time in nanoseconds as RFC 3339 UTC with nine digits."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{_rfc3339_seconds(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=64)
def _rfc3339_seconds(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def from_rfc3339_ns(text: str) -> int:
    """Parse the text that `rfc3339_ns` returned. Raises `InvalidTrace` on anything else."""
    match = _RFC3339_NS.fullmatch(text)
    try:
        seconds = datetime.fromisoformat(f"{match[1]}+00:00").timestamp() if match else None
    except ValueError:
        seconds = None
    if match is None or seconds is None:
        raise InvalidTrace(f"{text!r} is not a time in RFC 3339 with nanoseconds, as in 2026-01-31T12:00:00.000000001Z")
    ns = int(seconds) * 1_000_000_000 + int(match[2])
    if not 0 <= ns <= LAST:
        raise InvalidTrace(f"the time {text!r} is out of range for nanoseconds since 1970")
    return ns


_RFC3339_NS = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z", re.ASCII)


def _request_to_json(request: Request, body: BodyJson | None) -> RequestJson:
    return RequestJson(request.method, request.url, request.http_version, request.headers, body, request.trailers)


def _response_to_json(response: Response) -> ResponseJson:
    body = body_to_json(response.body, response.headers)
    return ResponseJson(
        response.status, response.reason, response.http_version, response.headers, body, response.trailers
    )


def _request(raw: RequestJson, earlier: Earlier) -> Request:
    try:
        _ = urlsplit(raw.url).port
    except ValueError as error:
        raise InvalidTrace(f"{raw.url[:80]!r} is not a URL: {error}") from None
    return Request(
        method=raw.method,
        url=raw.url,
        http_version=raw.http_version,
        headers=_checked_headers(raw.headers),
        body=body_from_json(raw.body, earlier),
        trailers=_checked_headers(raw.trailers),
    )


def _response(raw: ResponseJson, earlier: Earlier) -> Response:
    if raw.status < 200 and raw.status != 101:
        raise InvalidTrace(f"its status is {raw.status}, an informational response, which precedes the response proper")
    if not _LINE.fullmatch(raw.reason):
        raise InvalidTrace(
            "its reason contains a line break, a NUL or another character that is not allowed in a status line"
        )
    return Response(
        status=raw.status,
        reason=raw.reason,
        http_version=raw.http_version,
        headers=_checked_headers(raw.headers),
        body=body_from_json(raw.body, earlier),
        trailers=_checked_headers(raw.trailers),
    )


# RFC 9110 5.6.2; HTTP/2's own names begin with a colon.
_NAME = re.compile(r":?[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE = re.compile(r"[\x01-\x09\x0b\x0c\x0e-\xff]*")


def _checked_headers(headers: Headers) -> Headers:
    """Check that each header is one line and each of its code points one byte."""
    for name, value in headers:
        # Otherwise a client could read a second header, or a second response, in a replayed answer.
        if not (_NAME.fullmatch(name) and _LINE.fullmatch(value)):
            raise InvalidTrace(
                f"the header {name!r} contains a line break, a NUL or another character that is not allowed"
            )
    return headers


def chunk_to_json(chunk: Chunk) -> Piece:
    """Convert a chunk."""
    if chunk.kind == "data":
        return (chunk.at, chunk.offset, chunk.size)
    return (chunk.at, chunk.offset, chunk.size, chunk.kind)


def _chunk(piece: Piece) -> Chunk:
    match piece:
        case (int(at), int(offset), int(size)) if _is_countable(at, offset, size):
            return Chunk(at, offset, size)
        case (int(at), int(offset), int(size), "text" | "binary" | "close" as kind) if _is_countable(at, offset, size):
            return Chunk(at, offset, size, kind)
        case _:
            raise InvalidTrace(
                f"{list(piece)} is not a chunk: [nanoseconds, offset, size] and, for a WebSocket, its kind"
            )


def _is_countable(*numbers: int) -> bool:
    return min(numbers) >= 0 and max(numbers) <= LAST


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _decompressed_text(body: Body, headers: Headers) -> str | None:
    """Return the decompressed text of a body, where it is text and not too long."""
    coding = header(headers, "content-encoding")
    if coding is None or body.truncated:
        return None
    try:
        return _text(decode_content(body.data, coding, LONGEST_OPENED))
    except Undecodable:
        return None


def _own(raw: BodyJson) -> bytes:
    if raw.text is not None:
        return raw.text.encode()
    try:
        return base64.b64decode(raw.base64 or "", validate=True)
    except binascii.Error:
        raise InvalidTrace("a body's base64 is invalid") from None


def _head(span: Span | None, earlier: Earlier) -> bytes:
    return earlier(span[0])[: span[1]] if span else b""


def _tail(span: Span | None, earlier: Earlier) -> bytes:
    if not span:
        return b""
    data = earlier(span[0])
    return data[max(len(data) - span[1], 0) :]
