"""Write an exchange as a row of its table, and read it back, bit for bit.

What people filter and sum by are columns. The rest (headers, chunks, versions, trailers, what led to the run) is one
packed `head`, because a column costs more on the way in than it gives back.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, get_args

import msgspec

from calls.model import Body, Chunk, ChunkKind, Exchange, Headers, Outcome, Request, Response
from store.database.blobs import Corrupt, restore, unpack

EMPTY_DIGEST = hashlib.sha256(b"").digest()
_OUTCOMES: Final = frozenset(get_args(Outcome.__value__))


class Chunks(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of a body, column by column: small numbers pack well."""

    waits: list[int]
    """Nanoseconds since the piece before (the first: since the exchange began)."""

    sizes: list[int]
    offsets: list[int] | None = None
    """Only where the pieces do not lie one after another."""

    kinds: list[ChunkKind] | None = None
    """Only where one is not `data`."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What a request and a response have in common, but for the bytes."""

    http_version: str
    headers: Headers
    trailers: Headers
    chunks: Chunks
    size: int
    truncated: bool
    reencoded: bool


class ExchangeHead(msgspec.Struct, frozen=True, array_like=True):
    """What of an exchange no column holds."""

    format: int
    request: Message
    response: Message | None
    reason: str
    run_evidence: tuple[tuple[str, str], ...]
    step: int | None
    actor: str | None
    error: str | None
    exact: tuple[str, str] | None = None
    """Method and URL, where Postgres cannot hold them as they came."""


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(ExchangeHead)


def clean(text: str, limit: int = 0) -> str:
    """Text that Postgres can hold: without U+0000 and lone surrogates, and not longer than `limit` where there is one."""
    if limit and len(text) > limit:
        text = text[:limit]
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def encoded_head(exchange: Exchange) -> bytes:
    """What the `head` column has in a form of `blobs`."""
    request, response = exchange.request, exchange.response
    exact = (request.method, request.url)
    head = ExchangeHead(
        exchange.format,
        _message(request),
        None if response is None else _message(response),
        "" if response is None else response.reason,
        exchange.run_evidence,
        exchange.step,
        exchange.actor,
        exchange.error,
        None if exact == (clean(request.method), clean(request.url)) else exact,
    )
    return _encode(head)


def exchange_of(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Exchange:
    """The exchange of a row. `parts` are those that its forms name. Raises `Corrupt`."""
    head = _head.decode(unpack(row["head"], parts))
    method, url = head.exact or (row["method"], row["url"])
    body = _body(head.request, restore(row["request_body"], parts), row["request_digest"])
    return Exchange(
        id=str(row["id"]),
        run=row["run"],
        request=Request(
            method=method,
            url=url,
            http_version=head.request.http_version,
            headers=head.request.headers,
            body=body,
            trailers=head.request.trailers,
        ),
        response=_response(head, row, parts),
        outcome=_outcome(row["outcome"]),
        started_at=row["started_at"],
        first_byte_at=row["first_byte_at"],
        ended_at=row["ended_at"],
        redactions=row["redactions"],
        run_evidence=head.run_evidence,
        step=head.step,
        actor=head.actor,
        error=head.error,
        format=head.format,
    )


def chunks_of(packed: Chunks) -> tuple[Chunk, ...]:
    """The chunks of a body."""
    if len(packed.sizes) == 1 and packed.kinds is None and packed.offsets is None:
        # Nearly every body of a small call, and a long run has many.
        return (Chunk(packed.waits[0], 0, packed.sizes[0]),)
    kinds = packed.kinds or ["data"] * len(packed.sizes)
    offsets = packed.offsets or _following(packed.sizes)
    return tuple(map(Chunk, _summed(packed.waits), offsets, packed.sizes, kinds))


def body_digest(data: bytes) -> bytes:
    """SHA-256 of a stored body: what proves it when it is read."""
    return hashlib.sha256(data).digest() if data else EMPTY_DIGEST


def digest_bytes(digest: str) -> bytes:
    """`sha256:<hex>` as it is stored. Raises ValueError on any other."""
    kind, _, value = digest.partition(":")
    if kind != "sha256" or len(value) != 64:
        raise ValueError(f"{digest[:80]!r} is not a digest of the form sha256:<hex>")
    return bytes.fromhex(value)


def digest_text(digest: bytes) -> str:
    """The inverse of `digest_bytes`."""
    return f"sha256:{digest.hex()}"


def _message(message: Request | Response) -> Message:
    body = message.body
    return Message(
        message.http_version,
        message.headers,
        message.trailers,
        _pack_chunks(body.chunks),
        body.size,
        body.truncated,
        body.reencoded,
    )


def _pack_chunks(chunks: Sequence[Chunk]) -> Chunks:
    at = [chunk.at for chunk in chunks]
    sizes = [chunk.size for chunk in chunks]
    offsets = [chunk.offset for chunk in chunks]
    kinds = [chunk.kind for chunk in chunks]
    return Chunks(
        [after - before for before, after in zip([0, *at], at, strict=False)],
        sizes,
        None if offsets == _following(sizes) else offsets,
        None if all(kind == "data" for kind in kinds) else kinds,
    )


def _following(sizes: Sequence[int]) -> list[int]:
    return _summed([0, *sizes])[:-1]


def _summed(numbers: Sequence[int]) -> list[int]:
    total = 0
    return [total := total + number for number in numbers]


def response_of(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Response | None:
    """The response alone. Raises `Corrupt`."""
    return _response(_head.decode(unpack(row["head"], parts)), row, parts)


def _response(head: ExchangeHead, row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Response | None:
    if (message := head.response) is None:
        return None
    return Response(
        status=row["status"],
        reason=head.reason,
        http_version=message.http_version,
        headers=message.headers,
        body=_body(message, unpack(row["response_body"], parts), row["response_digest"]),
        trailers=message.trailers,
    )


def _body(message: Message, data: bytes, digest: bytes) -> Body:
    if body_digest(data) != digest:
        raise Corrupt("a stored body does not match its digest")
    return Body(
        data=data,
        chunks=chunks_of(message.chunks),
        size=message.size,
        truncated=message.truncated,
        reencoded=message.reencoded,
    )


def _outcome(text: str) -> Outcome:
    if text not in _OUTCOMES:
        raise Corrupt(f"a stored exchange has the unknown outcome {text!r}")
    return cast("Outcome", text)
