"""Match MCP answers that come on another exchange with the requests that they answer.

The transport of 2024-11-05 answers a POST with 202 and sends what was asked for on a stream that the client had opened before
by GET, whose first event names where to post. A streamable one may break off, and go on when the client asks by GET for
what followed the last event that it has (`Last-Event-ID`). In both the JSON-RPC id tells which answer is whose.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

from calls.codec.encoding import Undecodable, decode
from calls.codec.json import NotLossless, lenient
from calls.codec.lenient_json import members
from calls.dialects.protocols.jsonrpc import is_answer, messages
from calls.framing import sse
from calls.model import Exchange, Json, header

LIMIT: Final = 64 << 20
"""A stream that opens to more is not searched."""


@dataclass(frozen=True, slots=True)
class Late:
    """An answer on a stream."""

    message: Mapping[str, Json]
    at: int | None
    """When it was there, in nanoseconds since the stream began; None where a coding hides it."""


def awaited(request: Json, answer: Json, status: int | None) -> Json:
    """The JSON-RPC id of what a POST of MCP asked and did not get an answer to; None where nothing is lacking."""
    asked = members(request)
    lacking = not any(is_answer(message) for message in messages(answer))
    return asked.get("id") if "method" in asked and lacking and status in (200, 202) else None


def answered(asked: Exchange, id: Json, stream: Exchange) -> Late | None:  # noqa: A002 # what it is
    """The answer to what was asked under this id, where the stream is one that brings it."""
    if not isinstance(id, int | str) or not _brings(stream, asked):
        return None
    begun = asked.started_at - stream.started_at
    for message, at in _messages(stream):
        if is_answer(message) and message.get("id") == id and type(message.get("id")) is type(id):
            return None if at is not None and at < begun else Late(message, at)
    return None


def is_old(stream: Exchange) -> bool:
    """Whether it is the stream of the older transport: what it brings must wait for what the client posts meanwhile."""
    return stream.request.method == "GET" and endpoint(stream) is not None


def _brings(stream: Exchange, asked: Exchange) -> bool:
    if not _is_stream(stream) or stream.request.method != "GET":
        return False
    if there := endpoint(stream):
        return there == asked.request.url
    if stream.request.url != asked.request.url or stream.started_at < asked.started_at:
        return False
    after = header(stream.request.headers, "last-event-id")
    one, other = (header(each.request.headers, "mcp-session-id") for each in (asked, stream))
    # Without a session it is known by the event that it goes on from.
    return after is not None and one == other and (one is not None or after in set(_ids(asked)))


def _is_stream(exchange: Exchange) -> bool:
    media = header(exchange.response.headers, "content-type") if exchange.response else None
    return media is not None and "text/event-stream" in media.lower()


def endpoint(stream: Exchange) -> str | None:
    """Where the first event of the older transport's stream says to post."""
    first = next(_events(stream), None) if _is_stream(stream) else None
    if first is None or first[0].event != "endpoint":
        return None
    try:
        return urljoin(stream.request.url, first[0].data.strip())
    except ValueError:
        return None


def _ids(exchange: Exchange) -> Iterator[str]:
    return (event.id for event, _ in _events(exchange) if event.id)


def _messages(stream: Exchange) -> Iterator[tuple[Mapping[str, Json], int | None]]:
    for event, at in _events(stream):
        try:
            told = messages(lenient(event.data.encode("utf-8", "replace")))
        except NotLossless:
            continue
        yield from ((message, at) for message in told)


def _events(exchange: Exchange) -> Iterator[tuple[sse.Message, int | None]]:
    """The events of an answer, each with the time of the piece that completed it."""
    response = exchange.response
    if response is None:
        return
    decoder = sse.Decoder()
    for data, at in _pieces(exchange):
        yield from ((event, at) for event in decoder.feed(data))
    yield from ((event, exchange.ended_at) for event in decoder.finish())


def _pieces(exchange: Exchange) -> Iterator[tuple[bytes, int | None]]:
    assert exchange.response is not None
    body, coding = exchange.response.body, header(exchange.response.headers, "content-encoding")
    if not coding or coding.strip().lower() == "identity":
        yield from ((body.data[chunk.offset : chunk.offset + chunk.size], chunk.at) for chunk in body.chunks)
        return
    try:
        yield decode(body.data, coding, LIMIT), None
    except Undecodable:
        return
