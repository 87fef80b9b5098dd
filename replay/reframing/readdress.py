"""Address a recorded answer of JSON-RPC to the request that it answers now.

Clients count their requests, so that the same question may come under another id; an answer that bears the recorded one
would wait for nobody. The same goes for the token under which progress is told. Nothing else is touched.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Final

from calls.codec.encoding import Undecodable, decode
from calls.codec.json import NotLossless, dumps, parse
from calls.codec.lenient_json import members
from calls.dialects.protocols.jsonrpc import is_answer, messages
from calls.model import Body, Chunk, Json, Response, header

DIALECTS: Final = frozenset(("mcp", "a2a"))

LIMIT: Final = 64 * 1024 * 1024

_EVENT: Final = re.compile(rb"(?<=\r\n\r\n)|(?<=\n\n)|(?<=\r\r)")
_LINE: Final = re.compile(rb"(data:[ ]?)([^\r\n]*)")


def readdressed(response: Response, then: Json, now: Json) -> Response:
    """The response as an answer to `now`; the same one where it is no other address."""
    ids, tokens = _pairs(then, now, "id"), _pairs(then, now, "token")
    if not ids and not tokens:
        return response
    encoding = header(response.headers, "content-encoding") or ""
    try:
        was = _EVENT.split(decode(response.body.data, encoding, LIMIT) if encoding else response.body.data)
    except Undecodable:
        return response
    now_pieces = [_rewritten(piece, ids, tokens) for piece in was]
    if now_pieces == was:
        return response
    times = _times(response.body, was, whole=bool(encoding))
    return replace(response, headers=_headers(response, sum(map(len, now_pieces))), body=_body(now_pieces, times))


def by_event(body: Body) -> Body:
    """The same bytes, a piece for each event."""
    pieces = _EVENT.split(body.data)
    return _body(pieces, _times(body, pieces, whole=False))


def event_for(event: bytes, then: Json, now: Json) -> bytes:
    """One event as an answer to `now`."""
    ids, tokens = _pairs(then, now, "id"), _pairs(then, now, "token")
    return _rewritten(event, ids, tokens) if ids or tokens else event


type Names = Mapping[str, Json]
"""What the recorded ids are now, by the recorded one as JSON: 1 and "1" are two."""


def _pairs(then: Json, now: Json, what: str) -> Names:
    pairs = zip(_named(then, what), _named(now, what), strict=False)
    return {_key(was): name for was, name in pairs if was is not None and name is not None and was != name}


def _named(request: Json, what: str) -> Iterator[Json]:
    for message in messages(request):
        if what == "id":
            yield message.get("id")
        else:
            yield members(members(message.get("params")).get("_meta")).get("progressToken")


def _key(name: Json) -> str:
    return dumps(name).decode()


def _rewritten(piece: bytes, ids: Names, tokens: Names) -> bytes:
    """One event, or a whole body, with its messages addressed anew; what is no message stays as it is."""
    if piece.lstrip()[:1] in (b"{", b"["):
        return _addressed(piece, ids, tokens)
    return _LINE.sub(lambda line: line[1] + _addressed(line[2], ids, tokens), piece)


def _addressed(data: bytes, ids: Names, tokens: Names) -> bytes:
    try:
        value = parse(data)
    except NotLossless:
        return data
    made = [_message(message, ids, tokens) for message in messages(value)]
    return dumps(made if isinstance(value, list) else made[0]) if made != list(messages(value)) else data


def _message(message: Mapping[str, Json], ids: Names, tokens: Names) -> Mapping[str, Json]:
    if is_answer(message) and _key(message.get("id")) in ids:
        return {**message, "id": ids[_key(message.get("id"))]}
    params = members(message.get("params"))
    token = _key(params.get("progressToken"))
    if message.get("method") == "notifications/progress" and token in tokens:
        return {**message, "params": {**params, "progressToken": tokens[token]}}
    return message


def _headers(response: Response, size: int) -> tuple[tuple[str, str], ...]:
    kept = ((name, value) for name, value in response.headers if name.lower() != "content-encoding")
    return tuple((name, str(size) if name.lower() == "content-length" else value) for name, value in kept)


def _times(body: Body, pieces: list[bytes], *, whole: bool) -> list[int]:
    """When the last byte of every piece came; of a body that had to be opened only the end is known."""
    if whole or not body.chunks:
        return [body.chunks[-1].at if body.chunks else 0] * len(pieces)
    ends = [chunk.offset + chunk.size for chunk in body.chunks]
    last = len(ends) - 1
    return [body.chunks[min(bisect_left(ends, end), last)].at for end in accumulate(map(len, pieces))]


def _body(pieces: list[bytes], times: list[int]) -> Body:
    """A piece of the body for each event."""
    data = b"".join(pieces)
    starts = accumulate(map(len, pieces), initial=0)
    found = zip(times, starts, pieces, strict=False)
    return Body(data=data, chunks=tuple(Chunk(at, start, len(one)) for at, start, one in found if one), size=len(data))
