"""Match MCP answers that arrive on another exchange with the requests that they answer.

The transport of 2024-11-05 responds to a POST with 202 and sends the answer on a stream that the client opened before with
a GET; the first event of that stream names the URL to post to. A stream of the streamable HTTP transport may break off and
continue on a GET with the id of the last event received (`Last-Event-ID`). In both, the JSON-RPC id identifies the request.
"""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urljoin

import msgspec

from calls.codec.encoding import Undecodable, decode_content
from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import is_answer, split_messages
from calls.framing import sse
from calls.model import Exchange, Json, header

MAX_STREAM_SIZE: Final = 64 << 20
"""A compressed stream that decodes to more bytes is not searched."""


class LateAnswer(msgspec.Struct, frozen=True):
    """An answer that arrived on a stream."""

    message: Mapping[str, Json]
    at: int | None
    """When it was complete, in nanoseconds since the stream began; None if the stream is compressed."""


def unanswered_id(request: Json, answer: Json, status: int | None) -> Json:
    """Return the JSON-RPC id of an MCP POST that was not answered; None if it needs no answer or has one."""
    message = as_object(request)
    is_unanswered = not any(is_answer(message) for message in split_messages(answer))
    return message.get("id") if "method" in message and is_unanswered and status in (200, 202) else None


def find_late_answer(post: Exchange, id: Json, stream: Exchange) -> LateAnswer | None:  # noqa: A002 # what it is
    """Find the answer to the request with this id on a stream; None if the stream does not carry it."""
    if not isinstance(id, int | str) or not _can_answer(stream, post):
        return None
    posted_at = post.started_at - stream.started_at
    for message, at in _jsonrpc_messages(stream):
        if is_answer(message) and message.get("id") == id and type(message.get("id")) is type(id):
            return None if at is not None and at < posted_at else LateAnswer(message, at)
    return None


def is_old_transport(stream: Exchange) -> bool:
    """Return whether this is a stream of the transport of 2024-11-05, whose answers must wait for the client's POSTs."""
    return stream.request.method == "GET" and announced_endpoint(stream) is not None


def _can_answer(stream: Exchange, post: Exchange) -> bool:
    if not _is_stream(stream) or stream.request.method != "GET":
        return False
    if target := announced_endpoint(stream):
        return target == post.request.url
    if stream.request.url != post.request.url or stream.started_at < post.started_at:
        return False
    after = header(stream.request.headers, "last-event-id")
    one, other = (header(each.request.headers, "mcp-session-id") for each in (post, stream))
    # Without a session id, the stream is identified by the event that it continues from.
    return after is not None and one == other and (one is not None or after in set(_event_ids(post)))


def _is_stream(exchange: Exchange) -> bool:
    media = header(exchange.response.headers, "content-type") if exchange.response else None
    return media is not None and "text/event-stream" in media.lower()


def announced_endpoint(stream: Exchange) -> str | None:
    """Return the URL to post to from the first event of a stream of the transport of 2024-11-05."""
    first = next(_answer_events(stream), None) if _is_stream(stream) else None
    if first is None or first[0].event != "endpoint":
        return None
    try:
        return urljoin(stream.request.url, first[0].data.strip())
    except ValueError:
        return None


def _event_ids(exchange: Exchange) -> Iterator[str]:
    return (event.id for event, _ in _answer_events(exchange) if event.id)


def _jsonrpc_messages(stream: Exchange) -> Iterator[tuple[Mapping[str, Json], int | None]]:
    for event, at in _answer_events(stream):
        try:
            found = split_messages(parse_json_leniently(event.data.encode("utf-8", "replace")))
        except InvalidJson:
            continue
        yield from ((message, at) for message in found)


def _answer_events(exchange: Exchange) -> Iterator[tuple[sse.Message, int | None]]:
    """Yield the events of an answer, each with the time of the piece that completed it."""
    response = exchange.response
    if response is None:
        return
    decoder = sse.Decoder()
    for data, at in _body_pieces(exchange):
        yield from ((event, at) for event in decoder.feed(data))
    yield from ((event, exchange.ended_at) for event in decoder.finish())


def _body_pieces(exchange: Exchange) -> Iterator[tuple[bytes, int | None]]:
    assert exchange.response is not None
    body, coding = exchange.response.body, header(exchange.response.headers, "content-encoding")
    if not coding or coding.strip().lower() == "identity":
        yield from ((body.data[chunk.offset : chunk.offset + chunk.size], chunk.at) for chunk in body.chunks)
        return
    try:
        yield decode_content(body.data, coding, MAX_STREAM_SIZE), None
    except Undecodable:
        return
