"""Redact a whole request, with the result that the recorder has, which redacts it as it comes."""

from msgspec.structs import replace

from calls.model import Body, Chunk, Request
from calls.redaction.declared import UnreadableBody
from calls.redaction.redactor import Redactor, redact_whole_body
from calls.websocket_messages import is_websocket_body, opening_request


def redact_request(request: Request, redactor: Redactor) -> Request:
    """Redact a request as the recorder does, so that keys match and no secret gets into a message."""
    head = redactor.redact_request_head(request.method, request.url, request.headers)
    body = request.body
    if body.data and not (head.is_plain and redactor.is_clean(body.data)):
        data, _, reencoded = redact_whole_body(head.new_body_redactor(), body.data)
        body = body if data == body.data else replace(body, data=data, reencoded=reencoded)
    # `replace` would take three times as long.
    return Request(
        method=request.method,
        url=head.url,
        http_version=request.http_version,
        headers=head.headers,
        body=body,
        trailers=request.trailers,
    )


def redact_recorded_request(request: Request, redactor: Redactor) -> Request:
    """Redact a request that was recorded, with the messages that its client sent if it opened a WebSocket."""
    if not is_websocket_body(request.body):
        return redact_request(request, redactor)
    opening = redact_request(opening_request(request), redactor)
    own_redactor = redactor.for_request(request.method, request.url, request.headers)
    return replace(opening, body=_redact_messages(request.body, own_redactor))


def redact_message(data: bytes, redactor: Redactor) -> bytes:
    """Redact one message of a WebSocket; nothing is left of one that cannot be redacted, as in a recording."""
    try:
        return redactor.redact_message(data)[0]
    except UnreadableBody:
        return b""


def _redact_messages(body: Body, redactor: Redactor) -> Body:
    """Redact each message of a client as a replay does, which does not know the next ones."""
    chunks: list[Chunk] = []
    messages: list[bytes] = []
    offset = 0
    for chunk in body.chunks:
        message = body.data[chunk.offset : chunk.offset + chunk.size]
        message = message if chunk.kind == "close" else redact_message(message, redactor)
        messages.append(message)
        chunks.append(Chunk(chunk.at, offset, len(message), chunk.kind))
        offset += len(message)
    data = b"".join(messages)
    return body if data == body.data else replace(body, data=data, chunks=tuple(chunks))
