"""Read the messages of one side of a WebSocket as they are stored: kind, length, bytes.

A WebSocket's body is kept as messages without anything between them, so that their bounds are those of its chunks. `framed`
writes the bounds into the bytes, and from then on such a body is read as every other one: in any pieces.
"""

from base64 import b64encode
from typing import Final

from calls.framing import Message
from calls.model import Body, ChunkKind

MEDIA: Final = "application/x-websocket-messages"
"""The media type of such bytes. They never cross a wire."""

_KINDS: Final[dict[int, ChunkKind]] = {0: "text", 1: "binary", 2: "close"}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_HEAD: Final = 9


def framed(body: Body) -> bytes:
    """The messages of one side, with their bounds."""
    return b"".join(
        _NUMBERS[chunk.kind].to_bytes() + chunk.size.to_bytes(_HEAD - 1) + body.data[chunk.offset :][: chunk.size]
        for chunk in body.chunks
        if chunk.kind != "data"
    )


def begins(head: bytes, media: str, *, ended: bool) -> bool | None:  # noqa: ARG001 # as the protocol has it
    """Only the label tells."""
    return media == MEDIA


class Decoder:
    """A decoder. The event of a message is its kind, or `bytes` for what is no UTF-8: that comes in base64."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.broken = False

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes."""
        self._held += data
        messages: list[Message] = []
        at = 0
        while not self.broken and (end := self._end(at)) <= len(self._held):
            messages.append(_message(_KINDS[self._held[at]], bytes(self._held[at + _HEAD : end])))
            at = end
        del self._held[:at]
        return messages

    def finish(self) -> list[Message]:
        """A message that is not whole means nothing."""
        return []

    def _end(self, at: int) -> int:
        """Where the message that begins here ends; beyond what is held where its head is not there yet."""
        head = self._held[at : at + _HEAD]
        self.broken = bool(head) and head[0] not in _KINDS
        return at + _HEAD + int.from_bytes(head[1:]) if len(head) == _HEAD else len(self._held) + 1


def _message(kind: ChunkKind, data: bytes) -> Message:
    try:
        return Message(kind, data.decode())
    except UnicodeDecodeError:
        return Message("bytes", b64encode(data).decode())
