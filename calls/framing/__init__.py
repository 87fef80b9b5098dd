"""Divide a body into messages. A framing knows bytes and boundaries, never what a message means.

A framing is a module of this package with the members of `Framing`. Its decoder takes bytes in pieces of any size and returns
the messages that are complete; an incomplete message waits. The work is linear in the bytes, however they are divided.

sse            server-sent events
ndjson         one JSON value a line
json_array     the elements of a JSON array
eventstream    AWS event streams
payloads       SageMaker's event streams, whose frames carry another stream
nul            JSON values that end with a zero byte
websocket      the messages of one side of a WebSocket
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its name ("" where the stream gave none) and its data."""

    event: str
    data: str
    id: str = ""


class DecoderInterface(Protocol):
    """Bytes in, messages out. Total: no bytes make it raise."""

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; give the messages that they complete."""

    def finish(self) -> list[Message]:
        """Give what waits at the end of the stream and means something though nothing closed it."""

    @property
    def broken(self) -> bool:
        """Whether bytes came that cannot be of this framing: what follows them is not read."""


class Framing(Protocol):
    """One way to cut a body. A module of this folder is one."""

    def begins(self, head: bytes, media: str, *, ended: bool) -> bool | None:
        """Whether a body that begins so, without leading blanks, is cut this way; None while only more of it can tell."""

    def Decoder(self) -> DecoderInterface:  # noqa: N802 # a module's class
        """A new decoder."""
