"""Read SageMaker's event stream, whose frames carry arbitrary parts of another stream.

The carried stream is what the model's server sends: server-sent events, or JSON lines.
"""

from collections.abc import Iterator
from typing import Final

from calls.framing import Message, MessageDecoder, eventstream, ndjson, sse

matches = eventstream.matches

_PART: Final = "PayloadPart"


class Decoder:
    """Decodes the messages of the carried stream, and exceptions under their names."""

    def __init__(self) -> None:
        self._frames = eventstream.Decoder()
        self._carried_decoder: MessageDecoder | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the messages that they complete."""
        return [message for frame in self._frames.feed_frames(data) for message in self._frame_messages(frame)]

    def finish(self) -> list[Message]:
        """Return what is left of the carried stream."""
        self._frames.finish()
        return self._carried_decoder.finish() if self._carried_decoder else []

    @property
    def is_broken(self) -> bool:
        """Whether either stream received invalid bytes."""
        return self._frames.is_broken or (self._carried_decoder is not None and self._carried_decoder.is_broken)

    def _frame_messages(self, frame: eventstream.Frame) -> Iterator[Message]:
        if frame.headers.get(":event-type") != _PART:
            yield frame.message
        elif frame.payload:
            if self._carried_decoder is None:
                self._carried_decoder = ndjson.Decoder() if frame.payload.lstrip()[:1] == b"{" else sse.Decoder()
            yield from self._carried_decoder.feed(frame.payload)
