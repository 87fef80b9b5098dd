"""Turn a whole answer into the stream that its API would have sent, and a stream into the whole answer.

Whether a client requests a stream is not part of a request's key: the answer is the same. So a recording of one form answers
requests for the other, marked as reframed. Its bytes are then not the recorded ones.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from msgspec.structs import replace

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object
from calls.dialects.parts.answer_forms import AnswerForm
from calls.dialects.table import BY_NAME
from calls.model import Body, Chunk, Json, Response, header

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"

_MEDIA: Final[Mapping[AnswerForm, str]] = {
    "sse": EVENT_STREAM,
    "array": "application/json; charset=UTF-8",
    "ndjson": "application/x-ndjson",
    "eventstream": "application/vnd.amazon.eventstream",
}

# They describe the recorded body.
_OF_THE_BODY: Final = frozenset(("content-encoding", "content-length", "content-type", "etag", "content-md5"))


def is_stream(response: Response) -> bool:
    """Whether a response is a stream of server-sent events."""
    return (header(response.headers, "content-type") or "").lower().startswith("text/event-stream")


def write_stream(dialect: str, form: AnswerForm, response: Response, answer: Json, request: Json) -> Response | None:
    """Write a whole answer as a stream in this form, one chunk for each message; None where its dialect cannot."""
    writer = BY_NAME[dialect].stream_writers.get(form)
    pieces = writer(as_object(answer), as_object(request)) if writer else None
    return _replace_body(response, list(pieces), ("Content-Type", _MEDIA[form])) if pieces else None


def write_whole(response: Response, answer: Json) -> Response:
    """Write an answer as JSON in one body."""
    data = dumps(answer)
    length = ("Content-Length", str(len(data)))
    return _replace_body(response, [data], ("Content-Type", "application/json"), length)


def _replace_body(response: Response, pieces: Sequence[bytes], *described: tuple[str, str]) -> Response:
    """Replace the body, and the headers that describe it."""
    other_headers = tuple(pair for pair in response.headers if pair[0].lower() not in _OF_THE_BODY)
    at = response.body.chunks[-1].at if response.body.chunks else 0
    ends = accumulate(map(len, pieces))
    chunks = tuple(Chunk(at, end - len(piece), len(piece)) for piece, end in zip(pieces, ends, strict=True))
    data = b"".join(pieces)
    return replace(response, headers=(*other_headers, *described), body=Body(data=data, chunks=chunks, size=len(data)))
