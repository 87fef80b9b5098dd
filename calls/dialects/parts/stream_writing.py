"""Write the messages of a stream."""

from collections.abc import Callable, Iterator, Mapping

from calls.codec.json import dumps
from calls.model import Json

type StreamWriter = Callable[[Mapping[str, Json], Mapping[str, Json]], Iterator[bytes] | None]
"""Write an answer to a request as the pieces of a stream, one for each message; None where it cannot be streamed."""


def sse_message(event: str, data: Json | str) -> bytes:
    """A server-sent event, without a name if that is empty. A string is sent as it is, like OpenAI's `[DONE]`."""
    line = data.encode() if isinstance(data, str) else dumps(data)
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + line + b"\n\n"


def ndjson_line(value: Json) -> bytes:
    """A line of JSON."""
    return dumps(value) + b"\n"
