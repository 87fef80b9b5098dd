"""Replace the recorded ids in an answer of JSON-RPC by those of the request that it answers now.

Clients number their requests, so the same request can have another id, and an answer with the recorded id would be
ignored. The same is true of progress tokens. Nothing else is changed.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, Literal

from msgspec.structs import replace

from calls.codec.encoding import Undecodable, decode_content
from calls.codec.json import InvalidJson, dumps, parse_json
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import is_answer, split_messages
from calls.model import Body, Chunk, Json, Response, header

LIMIT: Final = 64 * 1024 * 1024

_EVENT: Final = re.compile(rb"(?<=\r\n\r\n)|(?<=\n\n)|(?<=\r\r)")
_LINE: Final = re.compile(rb"(data:[ ]?)([^\r\n]*)")


def readdress_response(response: Response, then: Json, now: Json) -> Response:
    """Return the response with the ids of `now`; the same object where no id differs."""
    ids, tokens = _changed_names(then, now, "id"), _changed_names(then, now, "token")
    if not ids and not tokens:
        return response
    encoding = header(response.headers, "content-encoding") or ""
    try:
        was = _EVENT.split(decode_content(response.body.data, encoding, LIMIT) if encoding else response.body.data)
    except Undecodable:
        return response
    now_pieces = [_readdress_piece(piece, ids, tokens) for piece in was]
    if now_pieces == was:
        return response
    times = _arrival_times(response.body, was, whole=bool(encoding))
    return replace(
        response, headers=_rewrite_headers(response, sum(map(len, now_pieces))), body=_build_body(now_pieces, times)
    )


def split_events(body: Body) -> Body:
    """Divide a body into a chunk for each event."""
    pieces = _EVENT.split(body.data)
    return _build_body(pieces, _arrival_times(body, pieces, whole=False))


def readdress_event(event: bytes, then: Json, now: Json) -> bytes:
    """Return one event with the ids of `now`."""
    ids, tokens = _changed_names(then, now, "id"), _changed_names(then, now, "token")
    return _readdress_piece(event, ids, tokens) if ids or tokens else event


type Names = Mapping[str, Json]
"""The new ids, by the recorded ones as JSON: 1 and "1" differ."""


def _changed_names(then: Json, now: Json, kind: Literal["id", "token"]) -> Names:
    pairs = zip(_request_names(then, kind), _request_names(now, kind), strict=False)
    return {_name_key(was): name for was, name in pairs if was is not None and name is not None and was != name}


def _request_names(request: Json, kind: Literal["id", "token"]) -> Iterator[Json]:
    for message in split_messages(request):
        if kind == "id":
            yield message.get("id")
        else:
            yield as_object(as_object(message.get("params")).get("_meta")).get("progressToken")


def _name_key(name: Json) -> str:
    return dumps(name).decode()


def _readdress_piece(piece: bytes, ids: Names, tokens: Names) -> bytes:
    """Replace the ids in one event or a whole body; anything but messages stays unchanged."""
    if piece.lstrip()[:1] in (b"{", b"["):
        return _readdress_json(piece, ids, tokens)
    return _LINE.sub(lambda line: line[1] + _readdress_json(line[2], ids, tokens), piece)


def _readdress_json(data: bytes, ids: Names, tokens: Names) -> bytes:
    try:
        value = parse_json(data)
    except InvalidJson:
        return data
    messages = [_readdress_message(message, ids, tokens) for message in split_messages(value)]
    return (
        dumps(messages if isinstance(value, list) else messages[0]) if messages != list(split_messages(value)) else data
    )


def _readdress_message(message: Mapping[str, Json], ids: Names, tokens: Names) -> Mapping[str, Json]:
    if is_answer(message) and _name_key(message.get("id")) in ids:
        return {**message, "id": ids[_name_key(message.get("id"))]}
    params = as_object(message.get("params"))
    token = _name_key(params.get("progressToken"))
    if message.get("method") == "notifications/progress" and token in tokens:
        return {**message, "params": {**params, "progressToken": tokens[token]}}
    return message


def _rewrite_headers(response: Response, size: int) -> tuple[tuple[str, str], ...]:
    pairs = ((name, value) for name, value in response.headers if name.lower() != "content-encoding")
    return tuple((name, str(size) if name.lower() == "content-length" else value) for name, value in pairs)


def _arrival_times(body: Body, pieces: list[bytes], *, whole: bool) -> list[int]:
    """When the last byte of each piece arrived. Of a compressed body only the end is known."""
    if whole or not body.chunks:
        return [body.chunks[-1].at if body.chunks else 0] * len(pieces)
    ends = [chunk.offset + chunk.size for chunk in body.chunks]
    last = len(ends) - 1
    return [body.chunks[min(bisect_left(ends, end), last)].at for end in accumulate(map(len, pieces))]


def _build_body(pieces: list[bytes], times: list[int]) -> Body:
    """Build a body with a chunk for each piece."""
    data = b"".join(pieces)
    starts = accumulate(map(len, pieces), initial=0)
    found = zip(times, starts, pieces, strict=False)
    return Body(data=data, chunks=tuple(Chunk(at, start, len(one)) for at, start, one in found if one), size=len(data))
