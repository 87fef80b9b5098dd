"""Divide a body into messages. A framing knows bytes and boundaries, not the meaning of messages.

A framing is a module of this package with the members of `Framing`. Its decoder takes bytes in pieces of any size and returns
the messages that are complete; an incomplete message waits. Its cost is linear in the bytes, however they are divided.

sse            server-sent events
ndjson         one JSON value a line
json_array     the elements of a JSON array
eventstream    AWS event streams
payloads       SageMaker's event streams, whose frames carry another stream
nul            JSON values that end with a zero byte
websocket      the messages of one side of a WebSocket
"""

from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message: its event name ("" if it has none) and its data."""

    event: str
    data: str
    id: str = ""


class MessageDecoder(Protocol):
    """Decodes the bytes of a body into messages. Never raises, whatever the bytes."""

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the messages that they complete."""

    def finish(self) -> list[Message]:
        """Return what is left at the end of the stream, if it is a message without its terminator."""

    @property
    def is_broken(self) -> bool:
        """Whether invalid bytes were received. What follows them is not read."""


class Framing(Protocol):
    """A way to divide a body into messages, implemented by each module of this package."""

    def matches(self, head: bytes, media: str, *, is_whole: bool) -> bool | None:
        """Whether a body with this beginning, without leading white space, has this framing; None: more bytes are needed."""

    def Decoder(self) -> MessageDecoder:  # noqa: N802 # a module's class
        """Create a decoder."""
