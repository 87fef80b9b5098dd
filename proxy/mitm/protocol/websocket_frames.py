"""Read the frames of WebSockets (RFC 6455): small ones at low cost, compressed ones within limits."""

import codecs
import zlib
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import LOCAL_ONLY_CLOSE_REASONS, CloseReason, ParseFailed

from proxy.wire.memory_budget import MemoryBudget, MemoryShare

MAX_MESSAGE: Final = 32 << 20
"""Maximum bytes of a message. A longer one is returned in several parts."""

MAX_RATIO: Final = 100
"""Maximum ratio of the decompressed size of a message to its compressed size."""

ALWAYS_ALLOWED: Final = 1 << 20
"""Decompressed size that is allowed at any ratio, because small repetitive messages compress well."""

MAX_OPENED: Final = 64 << 20
"""Maximum decompressed size of a message."""

_TAIL: Final = b"\x00\x00\xff\xff"  # RFC 7692 7.2.2
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_CONTROL: Final = 8
_PAYLOAD_OF_CONTROL: Final = 125
_CODES: Final = frozenset(map(int, CloseReason))


class FrameMessage(NamedTuple):
    """A message, or a ping."""

    kind: Literal["text", "binary", "close", "ping"]
    data: bytes


class DecompressedTooLarge(ParseFailed):
    """The decompressed size of a message exceeds the limit. It is not read here, but valid for its receiver."""

    def __init__(self) -> None:
        super().__init__("the decompressed message exceeds the limit", CloseReason.MESSAGE_TOO_BIG)


class NoRoom(ParseFailed):
    """The incomplete messages of this worker exceed the memory budget, so this one is not read."""

    def __init__(self) -> None:
        super().__init__("the memory budget for incomplete messages is used up", CloseReason.TRY_AGAIN_LATER)


class FrameReader:
    """Reads the messages of one side. Its part of an incomplete message counts towards `budget`."""

    def __init__(self, *, to_server: bool, extensions: list[Extension], budget: MemoryBudget) -> None:
        self._is_masked = to_server
        self._share = MemoryShare(budget)
        self._waiting = bytearray()
        self._parts = bytearray()
        self._remaining = 0
        """Remaining bytes of the current data frame."""

        self._mask = b""
        self._is_last = self._is_over = False
        self._kind: Literal["text", "binary"] | None = None
        self._decoder: codecs.IncrementalDecoder | None = None
        self._inflater = _Inflater.for_extensions(extensions, to_server=to_server)
        self._is_compressed = False

    def feed(self, data: bytes) -> Iterator[FrameMessage]:
        """Yield the messages that the data completes. Raises ParseFailed if it violates the protocol or exceeds a limit."""
        waiting = self._waiting
        waiting += data
        at, end = 0, len(waiting)
        while at < end and not self._is_over:
            if self._remaining:
                piece = bytes(waiting[at : at + self._remaining])
                at += len(piece)
                yield from self._feed_payload(piece)
                continue
            size = self._head_size(at, end)
            if size is None:
                break
            opcode, length, head = size
            if opcode >= _CONTROL:
                if at + head + length > end:
                    break
                frame = bytes(waiting[at : at + head + length])
                messages = list(_control_message(opcode, self._unmask(frame[head:], self._mask)))
                self._is_over = opcode == _CLOSE
                # A flood mostly repeats one frame.
                while waiting.startswith(frame, at):
                    at += len(frame)
                    yield from messages
                continue
            at += head
            self._remaining = length
            if not length:
                yield from self._feed_payload(b"")
        del waiting[:at]

    def _head_size(self, at: int, end: int) -> tuple[int, int, int] | None:
        """Return opcode, payload length and head length of the frame at a position, or None if its head is incomplete."""
        if end - at < 2:
            return None
        waiting = self._waiting
        first, second = waiting[at], waiting[at + 1]
        length, head = second & 0x7F, 2
        if length > _PAYLOAD_OF_CONTROL:
            head = 4 if length == 126 else 10
            if end - at < head:
                return None
            length = int.from_bytes(waiting[at + 2 : at + head])
            if length <= _PAYLOAD_OF_CONTROL or (head == 10 and length < 1 << 16):
                raise ParseFailed("the length of a frame is not encoded in its shortest form")
        if bool(second & 0x80) != self._is_masked:
            raise ParseFailed("a frame of the client is not masked, or one of the server is")
        if self._is_masked:
            if end - at < head + 4:
                return None
            mask = bytes(waiting[at + head : at + head + 4])
            head += 4
        else:
            mask = b""
        self._begin_frame(first, length, mask)
        return first & 0x0F, length, head

    def _begin_frame(self, first: int, length: int, mask: bytes) -> None:
        """Check the first byte of a frame, and start to read it. Raises ParseFailed."""
        opcode, is_last, is_compressed = first & 0x0F, bool(first & 0x80), bool(first & 0x40)
        if first & 0x30 or (is_compressed and (self._inflater is None or opcode not in (_TEXT, _BINARY))):
            raise ParseFailed("a frame has a reserved bit set that no extension uses")
        self._mask = mask
        if opcode >= _CONTROL:
            if opcode > _PONG or not is_last or length > _PAYLOAD_OF_CONTROL:
                raise ParseFailed("a control frame is unknown, fragmented or too long")
            return
        if length >> 63 or opcode > _BINARY or (opcode == _CONTINUATION) != (self._kind is not None):
            raise ParseFailed("a data frame is unknown or out of sequence")
        self._is_last = is_last
        if opcode != _CONTINUATION:
            self._kind = "text" if opcode == _TEXT else "binary"
            self._decoder = codecs.getincrementaldecoder("utf-8")() if opcode == _TEXT else None
            self._is_compressed = is_compressed
            if self._inflater is not None:
                self._inflater.begin_message()

    def _feed_payload(self, piece: bytes) -> Iterator[FrameMessage]:
        """Feed part of the payload of a data frame."""
        assert self._kind is not None
        self._remaining -= len(piece)
        plain = self._unmask(piece, self._mask)
        if self._mask and len(piece) % 4:
            turn = len(piece) % 4
            self._mask = self._mask[turn:] + self._mask[:turn]
        ends = not self._remaining and self._is_last
        if self._is_compressed:
            assert self._inflater is not None
            plain = self._inflater.feed(plain, ends=ends)
        if self._decoder is not None:
            try:
                self._decoder.decode(plain, ends)
            except UnicodeDecodeError as error:
                raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from error
        self._parts += plain
        if ends or len(self._parts) > MAX_MESSAGE:
            message = FrameMessage(self._kind, bytes(self._parts))
            self._parts.clear()
            if ends:
                self._kind, self._is_last = None, False
            self._share.resize(0)
            yield message
        elif not self._share.resize(len(self._parts)):
            self._parts.clear()
            raise NoRoom

    def _unmask(self, payload: bytes, mask: bytes) -> bytes:
        if not mask or not payload:
            return payload
        size = len(payload)
        key = (mask * (size // 4 + 1))[:size]
        return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)


class _Inflater:
    """Decompresses the messages of one side (permessage-deflate, RFC 7692)."""

    def __init__(self, bits: int, *, forgets: bool) -> None:
        self._bits, self._resets_context = bits, forgets
        self._stream = zlib.decompressobj(-bits)
        self._fed_bytes = self._opened_bytes = 0

    @classmethod
    def for_extensions(cls, extensions: list[Extension], *, to_server: bool) -> "_Inflater | None":
        for one in extensions:
            if isinstance(one, PerMessageDeflate):
                if to_server:
                    return cls(int(one.client_max_window_bits), forgets=one.client_no_context_takeover)
                return cls(int(one.server_max_window_bits), forgets=one.server_no_context_takeover)
        return None

    def begin_message(self) -> None:
        """Start a new message."""
        self._fed_bytes = self._opened_bytes = 0

    def feed(self, data: bytes, *, ends: bool) -> bytes:
        """Decompress part of a message. Raises ParseFailed, and DecompressedTooLarge before the limit is exceeded."""
        self._fed_bytes += len(data)
        room = min(MAX_OPENED, max(ALWAYS_ALLOWED, MAX_RATIO * self._fed_bytes)) - self._opened_bytes
        try:
            opened = self._stream.decompress(data + _TAIL if ends else data, room + 1)
        except zlib.error as error:
            raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from error
        if len(opened) > room or self._stream.unconsumed_tail:
            raise DecompressedTooLarge
        self._opened_bytes += len(opened)
        if ends and (self._resets_context or self._stream.eof):
            self._stream = zlib.decompressobj(-self._bits)
        return opened


def _control_message(opcode: int, payload: bytes) -> Iterator[FrameMessage]:
    if opcode == _PING:
        yield FrameMessage("ping", payload)
    elif opcode == _CLOSE:
        yield FrameMessage("close", _checked_close_payload(payload))


def _checked_close_payload(payload: bytes) -> bytes:
    """Return the payload of a close frame. Raises ParseFailed if it is invalid (RFC 6455 5.5.1, 7.4)."""
    if len(payload) == 1:
        raise ParseFailed("a close frame has half a code")
    if payload:
        code = int.from_bytes(payload[:2])
        is_known = code in _CODES or 3000 <= code < 5000
        if not is_known or code in LOCAL_ONLY_CLOSE_REASONS:
            raise ParseFailed("a close frame has a code that must not be sent")
        try:
            payload[2:].decode()
        except UnicodeDecodeError as error:
            raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from error
    return payload
