"""Read the frames of WebSockets (RFC 6455) as they pass: cheaply for small ones, within limits for compressed ones."""

import codecs
import zlib
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import LOCAL_ONLY_CLOSE_REASONS, CloseReason, ParseFailed

from proxy.wire.memory_budget import MemoryBudget, MemoryShare

MESSAGE_KEPT: Final = 32 << 20
"""A longer message is told in parts."""

RATIO: Final = 100
"""How much larger a compressed message may be when it is opened."""

FREE: Final = 1 << 20
"""Bytes to which a message may open whatever the ratio is: small ones that repeat themselves compress well."""

OPENED: Final = 64 << 20
"""Bytes to which a message may open at most."""

_TAIL: Final = b"\x00\x00\xff\xff"  # RFC 7692 7.2.2
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_CONTROL: Final = 8
_PAYLOAD_OF_CONTROL: Final = 125
_CODES: Final = frozenset(map(int, CloseReason))


class FrameMessage(NamedTuple):
    """A message, or a ping."""

    kind: Literal["text", "binary", "close", "ping"]
    data: bytes


class OpensTooFar(ParseFailed):
    """A compressed message opens to more than is allowed: it is sound for its receiver, and not read here."""

    def __init__(self) -> None:
        super().__init__("a message opens to more than is allowed", CloseReason.MESSAGE_TOO_BIG)


class NoRoom(ParseFailed):
    """All messages that are coming to this worker take too much memory together: this one is not read on."""

    def __init__(self) -> None:
        super().__init__("there is no room for another long message", CloseReason.TRY_AGAIN_LATER)


class FrameReader:
    """Messages out of the bytes of one side. What it holds of one that is not whole counts in `budget`."""

    def __init__(self, *, to_server: bool, extensions: list[Extension], budget: MemoryBudget) -> None:
        self._is_masked = to_server
        self._share = MemoryShare(budget)
        self._waiting = bytearray()
        self._parts = bytearray()
        self._left = 0
        """Bytes of the current data frame that are still to come."""

        self._mask = b""
        self._is_last = self._is_over = False
        self._kind: Literal["text", "binary"] | None = None
        self._decoder: codecs.IncrementalDecoder | None = None
        self._inflating = _Inflating.of(extensions, to_server=to_server)
        self._is_compressed = False

    def feed(self, data: bytes) -> Iterator[FrameMessage]:
        """What these bytes complete. Raises `ParseFailed` where they break the protocol, open too far, or find no room."""
        waiting = self._waiting
        waiting += data
        at, end = 0, len(waiting)
        while at < end and not self._is_over:
            if self._left:
                piece = bytes(waiting[at : at + self._left])
                at += len(piece)
                yield from self._take(piece)
                continue
            size = self._head_size(at, end)
            if size is None:
                break
            opcode, length, head = size
            if opcode >= _CONTROL:
                if at + head + length > end:
                    break
                frame = bytes(waiting[at : at + head + length])
                said = list(_control(opcode, self._unmasked(frame[head:], self._mask)))
                self._is_over = opcode == _CLOSE
                # A flood mostly is one frame, again and again.
                while waiting.startswith(frame, at):
                    at += len(frame)
                    yield from said
                continue
            at += head
            self._left = length
            if not length:
                yield from self._take(b"")
        del waiting[:at]

    def _head_size(self, at: int, end: int) -> tuple[int, int, int] | None:
        """Opcode, payload's and head's length of the frame at a place; None where its head is not all there."""
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
                raise ParseFailed("a frame's length is written longer than it need be")
        if bool(second & 0x80) != self._is_masked:
            raise ParseFailed("a frame is masked that may not be, or is not and must")
        if self._is_masked:
            if end - at < head + 4:
                return None
            mask = bytes(waiting[at + head : at + head + 4])
            head += 4
        else:
            mask = b""
        self._begin(first, length, mask)
        return first & 0x0F, length, head

    def _begin(self, first: int, length: int, mask: bytes) -> None:
        """Check a frame's first byte. Raises ParseFailed."""
        opcode, is_last, is_compressed = first & 0x0F, bool(first & 0x80), bool(first & 0x40)
        if first & 0x30 or (is_compressed and (self._inflating is None or opcode not in (_TEXT, _BINARY))):
            raise ParseFailed("a frame has a reserved bit that no extension uses")
        self._mask = mask
        if opcode >= _CONTROL:
            if opcode > _PONG or not is_last or length > _PAYLOAD_OF_CONTROL:
                raise ParseFailed("a control frame is unknown, in fragments or too long")
            return
        if length >> 63 or opcode > _BINARY or (opcode == _CONTINUATION) != (self._kind is not None):
            raise ParseFailed("a data frame is unknown, or stands where none may")
        self._is_last = is_last
        if opcode != _CONTINUATION:
            self._kind = "text" if opcode == _TEXT else "binary"
            self._decoder = codecs.getincrementaldecoder("utf-8")() if opcode == _TEXT else None
            self._is_compressed = is_compressed
            if self._inflating is not None:
                self._inflating.begin()

    def _take(self, piece: bytes) -> Iterator[FrameMessage]:
        """Take some of a data frame's payload."""
        assert self._kind is not None
        self._left -= len(piece)
        plain = self._unmasked(piece, self._mask)
        if self._mask and len(piece) % 4:
            turn = len(piece) % 4
            self._mask = self._mask[turn:] + self._mask[:turn]
        ends = not self._left and self._is_last
        if self._is_compressed:
            assert self._inflating is not None
            plain = self._inflating.feed(plain, ends=ends)
        if self._decoder is not None:
            try:
                self._decoder.decode(plain, ends)
            except UnicodeDecodeError as error:
                raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from error
        self._parts += plain
        if ends or len(self._parts) > MESSAGE_KEPT:
            said = FrameMessage(self._kind, bytes(self._parts))
            self._parts.clear()
            if ends:
                self._kind, self._is_last = None, False
            self._share.resize(0)
            yield said
        elif not self._share.resize(len(self._parts)):
            self._parts.clear()
            raise NoRoom

    def _unmasked(self, payload: bytes, mask: bytes) -> bytes:
        if not mask or not payload:
            return payload
        size = len(payload)
        key = (mask * (size // 4 + 1))[:size]
        return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)


class _Inflating:
    """Opens the messages of one side, which were compressed by permessage-deflate (RFC 7692)."""

    def __init__(self, bits: int, *, forgets: bool) -> None:
        self._bits, self._forgets = bits, forgets
        self._stream = zlib.decompressobj(-bits)
        self._taken = self._opened = 0

    @classmethod
    def of(cls, extensions: list[Extension], *, to_server: bool) -> "_Inflating | None":
        for one in extensions:
            if isinstance(one, PerMessageDeflate):
                if to_server:
                    return cls(int(one.client_max_window_bits), forgets=one.client_no_context_takeover)
                return cls(int(one.server_max_window_bits), forgets=one.server_no_context_takeover)
        return None

    def begin(self) -> None:
        """A new message."""
        self._taken = self._opened = 0

    def feed(self, data: bytes, *, ends: bool) -> bytes:
        """What some of a message opens to. Raises ParseFailed, and OpensTooFar before more than is allowed is opened."""
        self._taken += len(data)
        room = min(OPENED, max(FREE, RATIO * self._taken)) - self._opened
        try:
            opened = self._stream.decompress(data + _TAIL if ends else data, room + 1)
        except zlib.error as error:
            raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from error
        if len(opened) > room or self._stream.unconsumed_tail:
            raise OpensTooFar
        self._opened += len(opened)
        if ends and (self._forgets or self._stream.eof):
            self._stream = zlib.decompressobj(-self._bits)
        return opened


def _control(opcode: int, payload: bytes) -> Iterator[FrameMessage]:
    if opcode == _PING:
        yield FrameMessage("ping", payload)
    elif opcode == _CLOSE:
        yield FrameMessage("close", _close(payload))


def _close(payload: bytes) -> bytes:
    """A close frame's payload. Raises ParseFailed where it is none (RFC 6455 5.5.1, 7.4)."""
    if len(payload) == 1:
        raise ParseFailed("a close frame has half a code")
    if payload:
        code = int.from_bytes(payload[:2])
        is_known = code in _CODES or 3000 <= code < 5000
        if not is_known or code in LOCAL_ONLY_CLOSE_REASONS:
            raise ParseFailed("a close frame has a code that none may have")
        try:
            payload[2:].decode()
        except UnicodeDecodeError as error:
            raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from error
    return payload
