"""Replace ids that a client draws anew in each run: recorded ones in answers by present ones, present ones in requests by recorded.

Such an id is in no key (`transient`, `identity`), or counts only by its first occurrence (`fold.id`). A server repeats it, and a
client recognises its own thread, message or task by it. Once a request with a present id was answered by a recorded one, each
answer has the present id where it has a member named like an id with the recorded one. Nothing else of the answer changes.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from calls.codec.encoding import Undecodable, decode_content
from calls.keys.key import KeyResult
from calls.model import Body, Chunk, Exchange, Headers, Json, Request, Response, header
from calls.placeholder import PREFIX
from replay.reframing.id_pairs import Pairs, left_out_values
from replay.reframing.id_rewrite import is_id_name

_SHORTEST: Final = 8
"""A shorter text may be another thing's id, too."""

_LONGEST: Final = 200

_RPC_ID: Final = re.compile(r"(?:\d+/)?id")
"""The place of the id of a request of JSON-RPC, which may be one of several."""

_MEMBER: Final = re.compile(rb'"([^"\\]{1,64})"\s*:\s*"([^"\\]{%d,%d})"' % (_SHORTEST, _LONGEST))
_TOKEN: Final = re.compile(rb"[\w.:~@-]{%d,%d}" % (_SHORTEST, _LONGEST))

_TEXT: Final = re.compile(r"text/|application/(?!connect\+|grpc)[\w.+-]*json", re.IGNORECASE)
"""Types of answers that are changed. Others may say how long their parts are, or have checksums."""

_CHECKSUM: Final = re.compile(
    r"(?:[a-z]+-)*digest|content-md5|signature|content-range|x-goog-hash|x-(?:amz|ms)-.*(?:checksum|crc|md5).*"
)
"""Headers of answers that are not changed: a client that verifies them would refuse it, or makes a whole of several parts."""

_HEAVY: Final = 64 << 10
"""An answer with more bytes than this, or a compressed one, is searched for ids on a thread."""

_SEARCHED_ONE_BY_ONE: Final = 64
"""Ids up to which an answer is first searched for each: that takes a hundredth of the time of looking at each member."""

_MAX_DECODED: Final = 16 << 20
"""A compressed answer that decodes to more bytes is given as it is."""


def echo_pairs(then: KeyResult, now: KeyResult, *, is_readdressed: bool = False) -> Pairs:
    """Return the ids that the client of `now` drew anew, with those of the recorded request in their places.

    `is_readdressed`: the answer has the ids of requests of JSON-RPC already (`readdress`).
    """
    names = {name: was for _, was, name in then.notes.ids}
    links = ((names[name], was) for _, was, name in now.notes.ids if name in names)
    before = dict(_left_out_ids(then))
    places = (one for one in _left_out_ids(now) if not (is_readdressed and _RPC_ID.fullmatch(one[0])))
    others = ((before[at], value) for at, value in places if at in before)
    return tuple({pair: None for pair in (*links, *others) if _is_drawn(*pair)})


def _is_drawn(then: str, now: str) -> bool:
    return then != now and not any(map(_is_other_text, (then, now)))


def _is_other_text(text: str) -> bool:
    data = text.encode("utf-8", "replace")
    return PREFIX in data or not _TOKEN.fullmatch(data)


def _left_out_ids(key: KeyResult) -> Iterator[tuple[str, str]]:
    """The ids in fields of the body that are left out, by their places."""
    for place, value in left_out_values(key, ("transient", "identity")):
        yield from _named_ids(place, value)


def _named_ids(place: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named_ids(f"{place}/{name}", item) if isinstance(item, str) else ()
    elif isinstance(value, str) and is_id_name(place.rpartition("/")[2]):
        yield place, value


async def with_present_ids(exchange: Exchange, known: Mapping[str, str], own: Pairs = ()) -> Exchange:
    """Do what `answer_with_ids` does, where it takes long on a thread. `known` may change meanwhile."""
    response = exchange.response
    if not (known or own) or response is None or not _may_be_edited(response):
        return exchange
    if len(known) <= _SEARCHED_ONE_BY_ONE:
        known = dict(known)  # the thread looks through them
    is_heavy = len(response.body.data) > _HEAVY or header(response.headers, "content-encoding")
    if is_heavy:
        return await asyncio.to_thread(answer_with_ids, exchange, known, own)
    return answer_with_ids(exchange, known, own)


def answer_with_ids(exchange: Exchange, known: Mapping[str, str], own: Pairs = ()) -> Exchange:
    """Return the exchange with the present ids in its answer; the same object where it has none of the recorded ones.

    `own`: the ids of the request that it answers, which count before those that are `known` from others.
    """
    response = exchange.response
    if response is None or not _may_be_edited(response):
        return exchange
    encoding = header(response.headers, "content-encoding") or ""
    if encoding and exchange.outcome != "completed":
        return exchange  # what is decompressed would be a whole answer
    try:
        data = decode_content(response.body.data, encoding, _MAX_DECODED) if encoding else response.body.data
    except Undecodable:
        return exchange
    if len(known) <= _SEARCHED_ONE_BY_ONE and not any(then.encode() in data for then in (*known, *dict(own))):
        return exchange
    edits = list(_edits(data, known, dict(own)))
    if not edits:
        return exchange
    chunks = response.body.chunks
    if encoding:
        # Of a compressed body only the end is known.
        chunks = (Chunk(chunks[-1].at if chunks else 0, 0, len(data)),)
    body = _edited_body(response.body, data, chunks, edits)
    headers = _headers_of(response, len(body.data))
    return replace(exchange, response=replace(response, headers=headers, body=body))


def _may_be_edited(response: Response) -> bool:
    media_type = header(response.headers, "content-type")
    is_text = media_type is None or _TEXT.match(media_type)
    return bool(response.body.data and is_text) and not any(
        _CHECKSUM.fullmatch(name.lower()) for name, _ in response.headers
    )


def _edits(data: bytes, known: Mapping[str, str], own: Mapping[str, str]) -> Iterator[tuple[int, int, bytes]]:
    """Yield where a recorded id begins and ends, and the present one."""
    for found in _MEMBER.finditer(data):
        then = found[2].decode("utf-8", "replace")
        now = own.get(then) or known.get(then)
        if now is not None and is_id_name(found[1].decode("utf-8", "replace")):
            yield *found.span(2), now.encode()


def _edited_body(body: Body, data: bytes, chunks: tuple[Chunk, ...], edits: list[tuple[int, int, bytes]]) -> Body:
    """Return the edited data, divided where it was divided. A chunk that ended in an id ends after it."""
    ends = [chunk.offset + chunk.size for chunk in chunks]
    pieces: list[bytes] = []
    moved_ends: list[int] = []
    at = size = number = 0
    for start, end, now in edits:
        while number < len(ends) and ends[number] <= start:
            moved_ends.append(size + ends[number] - at)
            number += 1
        pieces += data[at:start], now
        size += start - at + len(now)
        while number < len(ends) and ends[number] <= end:
            moved_ends.append(size)
            number += 1
        at = end
    moved_ends += [size + end - at for end in ends[number:]]
    whole = b"".join((*pieces, data[at:]))
    starts = [0, *moved_ends[:-1]]
    moved = zip(chunks, starts, moved_ends, strict=True)
    return replace(
        body,
        data=whole,
        chunks=tuple(Chunk(chunk.at, start, end - start) for chunk, start, end in moved if end > start),
        size=len(whole),
    )


def _headers_of(response: Response, size: int) -> Headers:
    """The headers of an edited answer. One that was cut announces as much more than it has as before."""
    announced = header(response.headers, "content-length") or ""
    if announced.isdecimal() and not header(response.headers, "content-encoding"):
        size += int(announced) - len(response.body.data)
    pairs = ((name, value) for name, value in response.headers if name.lower() != "content-encoding")
    return tuple((name, str(size) if name.lower() == "content-length" else value) for name, value in pairs)


def request_with_ids(request: Request, then_of: Mapping[str, str]) -> Request | None:
    """Return the request with the recorded ids in its URL and in its body, if that is JSON; None where it has no present ones."""
    url = _TOKEN.sub(lambda found: _recorded_token(found[0], then_of), request.url.encode()).decode()
    data = request.body.data
    if data[:1] in (b"{", b"["):
        data = re.sub(rb'(?<=")' + _TOKEN.pattern + rb'(?=")', lambda found: _recorded_token(found[0], then_of), data)
    if url == request.url and data == request.body.data:
        return None
    return replace(request, url=url, body=replace(request.body, data=data, size=len(data), chunks=()))


def _recorded_token(token: bytes, then_of: Mapping[str, str]) -> bytes:
    then = then_of.get(token.decode("utf-8", "replace"))
    return token if then is None else then.encode()
