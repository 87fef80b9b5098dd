"""Decode gzip, deflate, br and zstd (RFC 9110 8.4) in pieces, never beyond a limit.

A decoder gives what there is: a body that breaks off decodes up to there, without an error, and is not `complete`. What
is damaged, or opens to more than the limit, is `Undecodable`. An encoder flushes after each piece, so that pieces stay
pieces.
"""

import zlib
from typing import Any, Final, Protocol

import zstandard

try:
    import brotli
except ImportError:  # the store server's image leaves it out with the rest of the wire
    brotli = None

DEPTH: Final = 3
"""More codings around each other than this are an attack or an error."""

LIMIT: Final = 64 << 20
"""Bytes to which a body may open at most."""

RATIO: Final = 100
"""How many times larger a body may be when it is opened, in all its codings together."""

FREE: Final = 1 << 20
"""Bytes to which a body may open whatever the ratio is: short ones that repeat themselves compress well."""

STEP: Final = 256 << 10
"""Bytes that are opened at a time, where the library can be told."""

_ALIASES: Final = {"x-gzip": "gzip"}
_NO_CODING: Final = ("", "identity", "none")


class Undecodable(ValueError):
    """The bytes are not what their content-encoding says, or open to more than is allowed."""


class TooLarge(Undecodable):
    """They open to more than is allowed."""

    def __init__(self) -> None:
        super().__init__("it opens to more than is allowed")


def codings(content_encoding: str | None) -> tuple[str, ...]:
    """The codings of a body, in the order in which they were applied. Raises Undecodable for what nobody can undo."""
    parts = (part.strip().lower() for part in (content_encoding or "").split(","))
    names = tuple(_ALIASES.get(name, name) for name in parts if name not in _NO_CODING)
    for name in names:
        if name not in _DECODERS or (name == "br" and brotli is None):
            raise Undecodable(f"the content coding {name!r} is not known here")
    if len(names) > DEPTH:
        raise Undecodable(f"{len(names)} codings around each other")
    return names


def decode(data: bytes, content_encoding: str | None, limit: int = LIMIT) -> bytes:
    """The body without its codings, as far as it goes. Raises Undecodable."""
    return Decoder(codings(content_encoding), limit).feed(data)


# -- undoing


class Decoder:
    """Undoes the codings of one body."""

    def __init__(self, names: tuple[str, ...], limit: int = LIMIT) -> None:
        self._layers: list[_Layer] = [_DECODERS[name]() for name in reversed(names)]
        self._limit = limit
        self._taken = 0
        self._opened = [0] * len(self._layers)

    @property
    def complete(self) -> bool:
        """Whether every coding has come to its own end."""
        return all(layer.complete for layer in self._layers)

    @property
    def surplus(self) -> bool:
        """Whether bytes came after the end; no client reads them, and they are not decoded."""
        return any(layer.surplus for layer in self._layers)

    def feed(self, data: bytes) -> bytes:
        """What the next piece opens to."""
        self._taken += len(data)
        most = min(self._limit, max(FREE, RATIO * self._taken))
        for number, layer in enumerate(self._layers):
            data = layer.feed(data, most - self._opened[number])
            self._opened[number] += len(data)
        return data


class _Layer(Protocol):
    complete: bool
    surplus: bool

    def feed(self, data: bytes, room: int) -> bytes:
        """What the data opens to; raises Undecodable, at the latest soon after it is more than `room`."""


class _Sliced:
    """Goes through its input slice by slice, and through the streams that may follow one another in it.

    A slice bounds what is copied for each of many tiny streams, and, where the library cannot, what one call opens to.
    """

    slice = 16384
    follower = b""
    """How a stream begins that may follow the end of another; empty: none may."""

    def __init__(self) -> None:
        self.complete = False
        self.surplus = False
        self._stream = self._new()

    def feed(self, data: bytes, room: int) -> bytes:
        out: list[bytes] = []
        for start in range(0, len(data), self.slice):
            piece = data[start : start + self.slice]
            while piece and not self.surplus:
                opened, piece = self._opened(piece, room)
                room -= len(opened)
                if room < 0:
                    raise TooLarge
                out.append(opened)
        return b"".join(out)

    def _opened(self, piece: bytes, room: int) -> tuple[bytes, bytes]:
        if self._stream.eof:
            if not self.follower or not piece.startswith(self.follower):
                self.surplus = True
                return b"", b""
            self._stream = self._new()
        opened = self._decompress(piece, room)
        self.complete = self._stream.eof
        return opened, self._stream.unused_data

    def _new(self) -> Any:
        raise NotImplementedError

    def _decompress(self, piece: bytes, room: int) -> bytes:
        raise NotImplementedError


class _Zlib(_Sliced):
    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        super().__init__()

    def _new(self) -> Any:
        return zlib.decompressobj(self._wbits)

    def _decompress(self, piece: bytes, room: int) -> bytes:
        try:
            opened: bytes = self._stream.decompress(piece, room + 1)
        except zlib.error as error:
            raise Undecodable(str(error)) from error
        if self._stream.unconsumed_tail:
            raise TooLarge
        return opened


class _Gzip(_Zlib):
    follower = b"\x1f"  # RFC 1952 2.2: members simply appear one after another

    def __init__(self) -> None:
        super().__init__(zlib.MAX_WBITS + 16)


class _Deflate:
    """With the zlib header that RFC 9110 asks for, or without it, as some servers send it."""

    def __init__(self) -> None:
        self._head = b""
        self._inner: _Zlib | None = None

    @property
    def complete(self) -> bool:
        return self._inner is not None and self._inner.complete

    @property
    def surplus(self) -> bool:
        return self._inner is not None and self._inner.surplus

    def feed(self, data: bytes, room: int) -> bytes:
        if self._inner is None:
            self._head += data
            if len(self._head) < 2:
                return b""
            self._inner, data = _Zlib(zlib.MAX_WBITS if _is_zlib(self._head) else -zlib.MAX_WBITS), self._head
        return self._inner.feed(data, room)


def _is_zlib(head: bytes) -> bool:
    return head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0


class _Zstd(_Sliced):
    slice = 256  # four bytes can open to 128 KiB, and the library has no limit of its own
    follower = b"\x28\xb5\x2f\xfd"

    def _new(self) -> Any:
        # RFC 9659: a window of 8 MiB is the most that a client has to take.
        return zstandard.ZstdDecompressor(max_window_size=8 << 20).decompressobj()

    def _decompress(self, piece: bytes, room: int) -> bytes:  # noqa: ARG002 - see `slice`
        try:
            opened: bytes = self._stream.decompress(piece)
        except zstandard.ZstdError as error:
            raise Undecodable(str(error)) from error
        return opened


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self.complete = False
        self.surplus = False

    def feed(self, data: bytes, room: int) -> bytes:
        self.surplus |= self.complete and bool(data)
        if self.surplus:
            return b""
        out: list[bytes] = []
        try:
            opened = self._stream.process(data, output_buffer_limit=min(room + 1, STEP))
            # It may hold output back although it says that it wants more input (1.2.0).
            while opened:
                out.append(opened)
                room -= len(opened)
                if room < 0:
                    raise TooLarge
                opened = self._stream.process(b"", output_buffer_limit=min(room + 1, STEP))
        except brotli.error as error:
            raise Undecodable(str(error)) from error
        self.complete = self._stream.is_finished()
        return b"".join(out)


_DECODERS: Final[dict[str, type[Any]]] = {"gzip": _Gzip, "deflate": _Deflate, "br": _Brotli, "zstd": _Zstd}


# -- doing


class Encoder:
    """Applies codings to one body again. After each piece all of it is out."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._layers = [_ENCODERS[name]() for name in names]

    def feed(self, data: bytes) -> bytes:
        """The next piece, encoded; nothing for nothing."""
        for layer in self._layers:
            data = layer.feed(data) if data else b""
        return data

    def finish(self) -> bytes:
        """The end of the body."""
        end = b""
        for layer in self._layers:
            end = (layer.feed(end) if end else b"") + layer.finish()
        return end


class _Deflated:
    def __init__(self, wbits: int) -> None:
        self._stream = zlib.compressobj(wbits=wbits)

    def feed(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._stream.flush(zlib.Z_FINISH)


class _Brotlied:
    def __init__(self) -> None:
        self._stream = brotli.Compressor(quality=5)

    def feed(self, data: bytes) -> bytes:
        return bytes(self._stream.process(data) + self._stream.flush())

    def finish(self) -> bytes:
        return bytes(self._stream.finish())


class _Zstded:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdCompressor().compressobj()

    def feed(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def finish(self) -> bytes:
        return self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


_ENCODERS: Final[dict[str, Any]] = {
    "gzip": lambda: _Deflated(zlib.MAX_WBITS + 16),
    "deflate": lambda: _Deflated(zlib.MAX_WBITS),
    "br": _Brotlied,
    "zstd": _Zstded,
}
