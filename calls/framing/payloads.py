"""Read SageMaker's event stream, whose frames carry parts of another stream, divided anywhere.

What is carried is whatever the model's server sends: events, or JSON line by line.
"""

from collections.abc import Iterator
from typing import Final

from calls.framing import DecoderInterface, Message, eventstream, ndjson, sse

begins = eventstream.begins

_PART: Final = "PayloadPart"


class Decoder:
    """Bytes in, the carried stream's messages out, and exceptions under their names."""

    def __init__(self) -> None:
        self._frames = eventstream.Decoder()
        self._carried: DecoderInterface | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes."""
        return [message for frame in self._frames.frames(data) for message in self._opened(frame)]

    def finish(self) -> list[Message]:
        """What the carried stream left open."""
        self._frames.finish()
        return self._carried.finish() if self._carried else []

    @property
    def broken(self) -> bool:
        """Whether either stream is."""
        return self._frames.broken or (self._carried is not None and self._carried.broken)

    def _opened(self, frame: eventstream.Frame) -> Iterator[Message]:
        if frame.headers.get(":event-type") != _PART:
            yield frame.message
        elif frame.payload:
            if self._carried is None:
                self._carried = ndjson.Decoder() if frame.payload.lstrip()[:1] == b"{" else sse.Decoder()
            yield from self._carried.feed(frame.payload)
