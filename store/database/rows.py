"""Write an exchange as a row of its table, and read exactly the same exchange back.

Values to filter and sum by have columns. The rest (headers, chunks, versions, trailers, run evidence) is one packed `head`,
because each column makes inserting slower.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, get_args

import msgspec

from calls.events import EffectBatch
from calls.model import Body, Chunk, ChunkKind, Exchange, Headers, Outcome, Request, Response
from store.database.blobs import RAW, BodyUnavailable, CorruptData, restore_body, unpack

EMPTY_DIGEST = hashlib.sha256(b"").digest()
ERASED: Final = "the bodies were erased by retention (docs/retention.md)"
"""What is said of an exchange without bodies."""

_OUTCOMES: Final = frozenset(get_args(Outcome.__value__))


class ChunkColumns(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of a body as columns, whose small numbers compress well."""

    waits: list[int]
    """Nanoseconds since the previous chunk; for the first, since the exchange began."""

    sizes: list[int]
    offsets: list[int] | None = None
    """None if the chunks are contiguous."""

    kinds: list[ChunkKind] | None = None
    """None if all are `data`."""


class MessageHead(msgspec.Struct, frozen=True, array_like=True):
    """The fields that requests and responses share, without the bytes of the body."""

    http_version: str
    headers: Headers
    trailers: Headers
    chunks: ChunkColumns
    size: int
    truncated: bool
    reencoded: bool


class ExchangeHead(msgspec.Struct, frozen=True, array_like=True):
    """The fields of an exchange that have no column."""

    format: int
    request: MessageHead
    response: MessageHead | None
    reason: str
    run_evidence: tuple[tuple[str, str], ...]
    step: int | None
    actor: str | None
    error: str | None
    exact: tuple[str, str] | None = None
    """Method and URL, if Postgres cannot store them as text."""


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(ExchangeHead)


def effect_batch(row: Mapping[str, Any], run: str) -> EffectBatch:
    """Return a batch of effects from its row. Raises `CorruptData`."""
    return EffectBatch(
        run, str(row["id"]), row["observed_at"], row["process"], row["number"], row["count"], unpack(row["items"])
    )


def storable_text(text: str, limit: int = 0) -> str:
    """Text that Postgres can store: without U+0000 and lone surrogates, and cut to `limit` characters if that is not 0."""
    if limit and len(text) > limit:
        text = text[:limit]
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def encode_head(exchange: Exchange) -> bytes:
    """Encode the head of an exchange, to be stored in a form of `blobs`."""
    request, response = exchange.request, exchange.response
    exact = (request.method, request.url)
    head = ExchangeHead(
        exchange.format,
        _message_head(request),
        None if response is None else _message_head(response),
        "" if response is None else response.reason,
        exchange.run_evidence,
        exchange.step,
        exchange.actor,
        exchange.error,
        None if exact == (storable_text(request.method), storable_text(request.url)) else exact,
    )
    return _encode(head)


def read_exchange(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Exchange:
    """Read the exchange of a row. `parts` are those that its forms refer to. Raises `CorruptData`."""
    head = _read_head(row, parts)
    method, url = head.exact or (row["method"], row["url"])
    if row["request_body"] is None:
        raise BodyUnavailable("erased", ERASED)
    body = _read_body(head.request, restore_body(row["request_body"], parts), row["request_digest"])
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
        response=_read_response(head, row, parts),
        outcome=_read_outcome(row["outcome"]),
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


def read_without_bodies(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Exchange:
    """Read the exchange of a row without the bytes of its bodies. `parts` are those that its head refers to. Raises `CorruptData`."""
    nothing = {"request_body": RAW, "response_body": RAW}
    return read_exchange({**row, **nothing, "request_digest": EMPTY_DIGEST, "response_digest": EMPTY_DIGEST}, parts)


def unpack_chunks(packed: ChunkColumns) -> tuple[Chunk, ...]:
    """Decode the chunks of a body."""
    if len(packed.sizes) == 1 and packed.kinds is None and packed.offsets is None:
        # A fast path for nearly every body of a small call.
        return (Chunk(packed.waits[0], 0, packed.sizes[0]),)
    kinds = packed.kinds or ["data"] * len(packed.sizes)
    offsets = packed.offsets or _contiguous_offsets(packed.sizes)
    return tuple(map(Chunk, _running_sums(packed.waits), offsets, packed.sizes, kinds))


def body_digest(data: bytes) -> bytes:
    """The SHA-256 of a stored body, which is checked when it is read."""
    return hashlib.sha256(data).digest() if data else EMPTY_DIGEST


def digest_bytes(digest: str) -> bytes:
    """The stored bytes of `sha256:<hex>`. Raises ValueError for any other text."""
    kind, _, value = digest.partition(":")
    if kind != "sha256" or len(value) != 64:
        raise ValueError(f"{digest[:80]!r} is not a digest of the form sha256:<hex>")
    return bytes.fromhex(value)


def digest_text(digest: bytes) -> str:
    """The inverse of `digest_bytes`."""
    return f"sha256:{digest.hex()}"


def _message_head(message: Request | Response) -> MessageHead:
    body = message.body
    return MessageHead(
        message.http_version,
        message.headers,
        message.trailers,
        _pack_chunks(body.chunks),
        body.size,
        body.truncated,
        body.reencoded,
    )


def _pack_chunks(chunks: Sequence[Chunk]) -> ChunkColumns:
    if len(chunks) == 1 and chunks[0].offset == 0 and chunks[0].kind == "data":
        # As in `unpack_chunks`.
        return ChunkColumns([chunks[0].at], [chunks[0].size])
    at = [chunk.at for chunk in chunks]
    sizes = [chunk.size for chunk in chunks]
    offsets = [chunk.offset for chunk in chunks]
    kinds = [chunk.kind for chunk in chunks]
    return ChunkColumns(
        [after - before for before, after in zip([0, *at], at, strict=False)],
        sizes,
        None if offsets == _contiguous_offsets(sizes) else offsets,
        None if all(kind == "data" for kind in kinds) else kinds,
    )


def _contiguous_offsets(sizes: Sequence[int]) -> list[int]:
    return _running_sums([0, *sizes])[:-1]


def _running_sums(numbers: Sequence[int]) -> list[int]:
    total = 0
    return [total := total + number for number in numbers]


def read_request(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Request:
    """Read only the request of a row. Raises `CorruptData`."""
    return read_exchange({**row, "response_body": RAW, "response_digest": EMPTY_DIGEST}, parts).request


def read_response(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Response | None:
    """Read only the response of a row. Raises `CorruptData`."""
    return _read_response(_read_head(row, parts), row, parts)


def _read_head(row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> ExchangeHead:
    try:
        return _head.decode(unpack(row["head"], parts))
    except msgspec.DecodeError as error:
        raise CorruptData(f"the head of a stored exchange is damaged: {error}") from error


def _read_response(head: ExchangeHead, row: Mapping[str, Any], parts: Mapping[bytes, bytes]) -> Response | None:
    if (message := head.response) is None:
        return None
    if row["response_body"] is None:
        raise BodyUnavailable("erased", ERASED)
    return Response(
        status=row["status"],
        reason=head.reason,
        http_version=message.http_version,
        headers=message.headers,
        body=_read_body(message, unpack(row["response_body"], parts), row["response_digest"]),
        trailers=message.trailers,
    )


def _read_body(message: MessageHead, data: bytes, digest: bytes) -> Body:
    if body_digest(data) != digest:
        raise CorruptData("a stored body does not match its digest")
    return Body(
        data=data,
        chunks=unpack_chunks(message.chunks),
        size=message.size,
        truncated=message.truncated,
        reencoded=message.reencoded,
    )


def _read_outcome(text: str) -> Outcome:
    if text not in _OUTCOMES:
        raise CorruptData(f"a stored exchange has the unknown outcome {text!r}")
    return cast("Outcome", text)
