"""Decode gzip, deflate, br and zstd (RFC 9110 8.4) in pieces, within size limits.

A body that breaks off is decoded up to that point without an error; `is_complete` is then false. Damaged data, or data that
decodes to more than the limit, raises `Undecodable`. An encoder flushes after each piece, so that the pieces of a body stay
separate.
"""

import zlib
from typing import Any, Final, Protocol

import zstandard

try:
    import brotli
except ImportError:  # the store server's image has none of the proxy's dependencies
    brotli = None

MAX_CODINGS: Final = 3
"""A body with more nested codings is an attack or an error."""

MAX_DECODED_SIZE: Final = 64 << 20
"""The largest size of a decoded body in bytes."""

MAX_RATIO: Final = 100
"""The largest ratio of decoded to encoded size, over all codings of a body together."""

RATIO_EXEMPT_SIZE: Final = 1 << 20
"""Decoded bytes that are exempt from the ratio: short repetitive bodies compress well."""

OUTPUT_STEP: Final = 256 << 10
"""Bytes that are decoded at a time by libraries with such a limit."""

_ALIASES: Final = {"x-gzip": "gzip"}
_NO_CODING: Final = ("", "identity", "none")


class Undecodable(ValueError):
    """The bytes do not match their content-encoding, or decode to more than the limit."""


class TooLarge(Undecodable):
    """The body decodes to more than the limit."""

    def __init__(self) -> None:
        super().__init__("the decoded body exceeds the size limit")


def parse_codings(content_encoding: str | None) -> tuple[str, ...]:
    """Return the codings of a body in the order in which they were applied. Raises Undecodable for unknown codings."""
    parts = (part.strip().lower() for part in (content_encoding or "").split(","))
    names = tuple(_ALIASES.get(name, name) for name in parts if name not in _NO_CODING)
    for name in names:
        if name not in _DECODERS or (name == "br" and brotli is None):
            raise Undecodable(f"unknown content coding {name!r}")
    if len(names) > MAX_CODINGS:
        raise Undecodable(f"Content-Encoding names {len(names)} codings, and at most {MAX_CODINGS} are decoded")
    return names


def decode_content(data: bytes, content_encoding: str | None, limit: int = MAX_DECODED_SIZE) -> bytes:
    """Decode a body; of one that breaks off, what there is. Raises Undecodable."""
    return ContentDecoder(parse_codings(content_encoding), limit).feed(data)


# -- decoding


class ContentDecoder:
    """Decode one body in pieces."""

    def __init__(self, names: tuple[str, ...], limit: int = MAX_DECODED_SIZE) -> None:
        self._layers: list[_Layer] = [_DECODERS[name]() for name in reversed(names)]
        self._limit = limit
        self._input_size = 0
        self._output_sizes = [0] * len(self._layers)

    @property
    def is_complete(self) -> bool:
        """Whether every coding has reached its own end."""
        return all(layer.is_complete for layer in self._layers)

    @property
    def has_surplus(self) -> bool:
        """Whether bytes followed the end. Clients ignore them, and they are not decoded."""
        return any(layer.has_surplus for layer in self._layers)

    def feed(self, data: bytes) -> bytes:
        """Decode the next piece."""
        self._input_size += len(data)
        most = min(self._limit, max(RATIO_EXEMPT_SIZE, MAX_RATIO * self._input_size))
        for number, layer in enumerate(self._layers):
            data = layer.feed(data, most - self._output_sizes[number])
            self._output_sizes[number] += len(data)
        return data


class _Layer(Protocol):
    is_complete: bool
    has_surplus: bool

    def feed(self, data: bytes, room: int) -> bytes:
        """Decode data. Raises Undecodable, at the latest soon after the result exceeds `room`."""


class _SlicedDecoder:
    """Decode the input slice by slice, and several streams that follow one another.

    A slice bounds what is copied for each of many tiny streams, and the output of one call if the library has no limit.
    """

    slice_size = 16384
    follower_magic = b""
    """The first bytes of a stream that may follow another; empty if none may."""

    def __init__(self) -> None:
        self.is_complete = False
        self.has_surplus = False
        self._stream = self._new_stream()

    def feed(self, data: bytes, room: int) -> bytes:
        out: list[bytes] = []
        for start in range(0, len(data), self.slice_size):
            piece = data[start : start + self.slice_size]
            while piece and not self.has_surplus:
                opened, piece = self._decode_piece(piece, room)
                room -= len(opened)
                if room < 0:
                    raise TooLarge
                out.append(opened)
        return b"".join(out)

    def _decode_piece(self, piece: bytes, room: int) -> tuple[bytes, bytes]:
        if self._stream.eof:
            if not self.follower_magic or not piece.startswith(self.follower_magic):
                self.has_surplus = True
                return b"", b""
            self._stream = self._new_stream()
        opened = self._decompress(piece, room)
        self.is_complete = self._stream.eof
        return opened, self._stream.unused_data

    def _new_stream(self) -> Any:
        raise NotImplementedError

    def _decompress(self, piece: bytes, room: int) -> bytes:
        raise NotImplementedError


class _ZlibDecoder(_SlicedDecoder):
    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        super().__init__()

    def _new_stream(self) -> Any:
        return zlib.decompressobj(self._wbits)

    def _decompress(self, piece: bytes, room: int) -> bytes:
        try:
            opened: bytes = self._stream.decompress(piece, room + 1)
        except zlib.error as error:
            raise Undecodable(str(error)) from error
        if self._stream.unconsumed_tail:
            raise TooLarge
        return opened


class _GzipDecoder(_ZlibDecoder):
    follower_magic = b"\x1f"  # RFC 1952 2.2: members simply appear one after another

    def __init__(self) -> None:
        super().__init__(zlib.MAX_WBITS + 16)


class _DeflateDecoder:
    """Deflate with the zlib header that RFC 9110 requires, or without it, as some servers send it."""

    def __init__(self) -> None:
        self._head = b""
        self._inner: _ZlibDecoder | None = None

    @property
    def is_complete(self) -> bool:
        return self._inner is not None and self._inner.is_complete

    @property
    def has_surplus(self) -> bool:
        return self._inner is not None and self._inner.has_surplus

    def feed(self, data: bytes, room: int) -> bytes:
        if self._inner is None:
            self._head += data
            if len(self._head) < 2:
                return b""
            self._inner, data = _ZlibDecoder(zlib.MAX_WBITS if _is_zlib(self._head) else -zlib.MAX_WBITS), self._head
        return self._inner.feed(data, room)


def _is_zlib(head: bytes) -> bool:
    return head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0


class _ZstdDecoder(_SlicedDecoder):
    slice_size = 256  # four bytes can decode to 128 KiB, and the library has no output limit
    follower_magic = b"\x28\xb5\x2f\xfd"

    def _new_stream(self) -> Any:
        # RFC 9659: clients must support windows of up to 8 MiB.
        return zstandard.ZstdDecompressor(max_window_size=8 << 20).decompressobj()

    def _decompress(self, piece: bytes, room: int) -> bytes:  # noqa: ARG002 - see `slice`
        try:
            opened: bytes = self._stream.decompress(piece)
        except zstandard.ZstdError as error:
            raise Undecodable(str(error)) from error
        return opened


class _BrotliDecoder:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self.is_complete = False
        self.has_surplus = False

    def feed(self, data: bytes, room: int) -> bytes:
        self.has_surplus |= self.is_complete and bool(data)
        if self.has_surplus:
            return b""
        out: list[bytes] = []
        try:
            opened = self._stream.process(data, output_buffer_limit=min(room + 1, OUTPUT_STEP))
            # brotli 1.2.0 may hold output back although it reports that it needs more input.
            while opened:
                out.append(opened)
                room -= len(opened)
                if room < 0:
                    raise TooLarge
                opened = self._stream.process(b"", output_buffer_limit=min(room + 1, OUTPUT_STEP))
        except brotli.error as error:
            raise Undecodable(str(error)) from error
        self.is_complete = self._stream.is_finished()
        return b"".join(out)


_DECODERS: Final[dict[str, type[Any]]] = {
    "gzip": _GzipDecoder,
    "deflate": _DeflateDecoder,
    "br": _BrotliDecoder,
    "zstd": _ZstdDecoder,
}


# -- encoding


class ContentEncoder:
    """Apply codings to one body. The output is flushed after each piece."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._layers = [_ENCODERS[name]() for name in names]

    def feed(self, data: bytes) -> bytes:
        """Encode the next piece; empty input has no output."""
        for layer in self._layers:
            data = layer.feed(data) if data else b""
        return data

    def finish(self) -> bytes:
        """Return the end of the encoded body."""
        end = b""
        for layer in self._layers:
            end = (layer.feed(end) if end else b"") + layer.finish()
        return end


class _ZlibEncoder:
    def __init__(self, wbits: int) -> None:
        self._stream = zlib.compressobj(wbits=wbits)

    def feed(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._stream.flush(zlib.Z_FINISH)


class _BrotliEncoder:
    def __init__(self) -> None:
        self._stream = brotli.Compressor(quality=5)

    def feed(self, data: bytes) -> bytes:
        return bytes(self._stream.process(data) + self._stream.flush())

    def finish(self) -> bytes:
        return bytes(self._stream.finish())


class _ZstdEncoder:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdCompressor().compressobj()

    def feed(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def finish(self) -> bytes:
        return self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


_ENCODERS: Final[dict[str, Any]] = {
    "gzip": lambda: _ZlibEncoder(zlib.MAX_WBITS + 16),
    "deflate": lambda: _ZlibEncoder(zlib.MAX_WBITS),
    "br": _BrotliEncoder,
    "zstd": _ZstdEncoder,
}
