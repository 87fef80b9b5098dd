"""Read the messages of a WebSocket as values; a stream of audio is one value, however it was divided.

A client sends sound as it comes from a microphone: where it cuts it means nothing. So pieces that follow one another
count by their bytes together; every other message counts by itself.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from calls.codec.json import NotLossless, parse
from calls.model import EMPTY, Body, Headers, Json, Request, header

_HEARD: Final = ("input_audio_buffer.append", "input_audio.append")

NORMAL: Final = 1000
"""RFC 6455 7.4.1: the close code of a work that is done."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A piece of a stream of sound. Pieces with the same `frame` go on with one another."""

    frame: tuple[str, ...]
    """The message that carries it, as a path of names, and what kind of sound it is."""

    data: bytes


def spoken(body: Body) -> bool:
    """Whether this is one side of a WebSocket."""
    return any(chunk.kind != "data" for chunk in body.chunks[:1])


def opening(request: Request) -> Request:
    """The request that opened a WebSocket, without what was said over it; any other one as it is."""
    if not spoken(request.body):
        return request
    return Request(
        method=request.method,
        url=request.url,
        http_version=request.http_version,
        headers=request.headers,
        body=EMPTY,
        trailers=request.trailers,
    )


def values(body: Body) -> list[Json]:
    """All that one side said, but for its goodbye."""
    pieces = (body.data[chunk.offset : chunk.offset + chunk.size] for chunk in body.chunks if chunk.kind != "close")
    return list(joined(map(value, pieces)))


def value(data: bytes) -> Json:
    """One message: JSON where it is an object or an array (some servers send that as binary too), else text, else a digest."""
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return parse(data)
        except NotLossless:
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return digested(data)


def joined(said: Iterable[Json]) -> Iterator[Json]:
    """The messages, with the pieces of one stream of sound in the place of the first."""
    frame: tuple[str, ...] = ()
    heard: list[bytes] = []
    for message in said:
        piece = sound(message)
        if heard and (piece is None or piece.frame != frame):
            yield whole(Sound(frame, b"".join(heard)))
            heard = []
        if piece is None:
            yield message
        else:
            frame = piece.frame
            heard.append(piece.data)
    if heard:
        yield whole(Sound(frame, b"".join(heard)))


def sound(message: Json) -> Sound | None:
    """The piece of sound that a message is: OpenAI's `input_audio_buffer.append` and `session.input_audio.append`, Google's `realtimeInput` with audio."""
    match message:
        case {"type": str() as kind, "audio": str() as text} if kind.endswith(_HEARD):
            return _piece((kind,), text)
        case {"realtimeInput": Mapping() as given, **more} | {"realtime_input": Mapping() as given, **more} if not more:
            return _google(given)
        case _:
            return None


def whole(piece: Sound) -> Json:
    """A stream of sound as a message of its kind, with a digest in the place of its bytes."""
    match piece.frame:
        case ("realtimeInput", media):
            return {"realtimeInput": {"audio": {"mimeType": media, "data": digested(piece.data)}}}
        case _:
            return {"type": piece.frame[0], "audio": digested(piece.data)}


def digested(data: bytes) -> Json:
    """Bytes that count by their digest."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _google(given: Mapping[str, Json]) -> Sound | None:
    """The audio of a `realtimeInput`; older clients sent it in a list of one."""
    match given:
        case {"audio": Mapping() as blob, **more} if not more:
            return _blob(blob)
        case {"mediaChunks": [Mapping() as blob], **more} | {"media_chunks": [Mapping() as blob], **more} if not more:
            return _blob(blob)
        case _:
            return None


def _blob(blob: Mapping[str, Json]) -> Sound | None:
    media = blob.get("mimeType", blob.get("mime_type"))
    text = blob.get("data")
    if not isinstance(media, str) or not isinstance(text, str) or not media.startswith("audio/"):
        return None
    return _piece(("realtimeInput", media), text)


_URL_SAFE: Final = str.maketrans("-_", "+/")


def _piece(frame: tuple[str, ...], text: str) -> Sound | None:
    plain = text.translate(_URL_SAFE).rstrip("=")
    try:
        data = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return Sound(frame, data)


def opens(method: str, headers: Headers) -> bool:
    """Whether a request asks for a WebSocket (RFC 6455 4.1)."""
    return method == "GET" and (header(headers, "upgrade") or "").strip().lower() == "websocket"
