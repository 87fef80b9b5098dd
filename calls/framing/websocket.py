"""Read the messages of one side of a WebSocket, framed as kind, length and bytes.

A WebSocket's body is stored as its messages without separators; their boundaries are those of its chunks. `frame_messages`
writes the boundaries into the bytes, so that such a body can be decoded in pieces of any size like every other one.
"""

from base64 import b64encode
from typing import Final

from calls.framing import Message
from calls.model import Body, ChunkKind

MEDIA: Final = "application/x-websocket-messages"
"""The media type of framed messages. It is never sent over the network."""

_KINDS: Final[dict[int, ChunkKind]] = {0: "text", 1: "binary", 2: "close"}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_HEAD_SIZE: Final = 9


def frame_messages(body: Body) -> bytes:
    """Return the messages of one side, each preceded by its kind and length."""
    return b"".join(
        _NUMBERS[chunk.kind].to_bytes() + chunk.size.to_bytes(_HEAD_SIZE - 1) + body.data[chunk.offset :][: chunk.size]
        for chunk in body.chunks
        if chunk.kind != "data"
    )


def matches(head: bytes, media: str, *, is_whole: bool) -> bool | None:  # noqa: ARG001 # required by the protocol
    """Match the media type only."""
    return media == MEDIA


class Decoder:
    """Decodes framed messages. Their event name is their kind, or `bytes` with base64 data if they are not UTF-8."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_broken = False

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the messages that they complete."""
        self._buffer += data
        messages: list[Message] = []
        at = 0
        while not self.is_broken and (end := self._message_end(at)) <= len(self._buffer):
            messages.append(_decode_message(_KINDS[self._buffer[at]], bytes(self._buffer[at + _HEAD_SIZE : end])))
            at = end
        del self._buffer[:at]
        return messages

    def finish(self) -> list[Message]:
        """Return nothing: an incomplete message is discarded."""
        return []

    def _message_end(self, at: int) -> int:
        """Return the end of the message that begins here; beyond the buffer while its head is incomplete."""
        head = self._buffer[at : at + _HEAD_SIZE]
        self.is_broken = bool(head) and head[0] not in _KINDS
        return at + _HEAD_SIZE + int.from_bytes(head[1:]) if len(head) == _HEAD_SIZE else len(self._buffer) + 1


def _decode_message(kind: ChunkKind, data: bytes) -> Message:
    try:
        return Message(kind, data.decode())
    except UnicodeDecodeError:
        return Message("bytes", b64encode(data).decode())
