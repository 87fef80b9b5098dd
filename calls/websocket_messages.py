"""Read the messages of a WebSocket as values; a stream of audio is one value, however it was divided.

A client sends audio as it comes from a microphone, divided arbitrarily. So consecutive pieces of audio are joined into
one value, and so are binary messages, in which many services take it; every other message is a value of its own.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec

from calls.codec.json import InvalidJson, dumps, parse_json
from calls.model import EMPTY_BODY, Body, ChunkKind, Headers, Json, Request, header

_AUDIO_TYPES: Final = ("input_audio_buffer.append", "input_audio.append")


class AudioPiece(msgspec.Struct, frozen=True):
    """A piece of an audio stream. Consecutive pieces with the same `frame` belong together."""

    frame: tuple[str, ...]
    """The type of the message that carries the audio, and its media type if it names one; or the message without the audio,
    and the names that lead to it; empty for a binary message."""

    data: bytes


type Message = Json | AudioPiece


def is_websocket_body(body: Body) -> bool:
    """Return whether a body consists of the messages of one side of a WebSocket."""
    return any(chunk.kind != "data" for chunk in body.chunks[:1])


def opening_request(request: Request) -> Request:
    """Return the request that opened a WebSocket without its messages; any other request unchanged."""
    if not is_websocket_body(request.body):
        return request
    return Request(
        method=request.method,
        url=request.url,
        http_version=request.http_version,
        headers=request.headers,
        body=EMPTY_BODY,
        trailers=request.trailers,
    )


def message_values(body: Body) -> list[Json]:
    """Return all messages of one side as values, without its close."""
    chunks = (chunk for chunk in body.chunks if chunk.kind != "close")
    return list(
        join_audio(read_message(chunk.kind, body.data[chunk.offset : chunk.offset + chunk.size]) for chunk in chunks)
    )


def read_message(kind: ChunkKind, data: bytes) -> Message:
    """Return a message as a piece of audio, if it is nothing else, or as a value."""
    if (value := _json_value(data)) is not None:
        return audio_piece(value) or value
    return AudioPiece((), data) if kind == "binary" else message_value(data)


def message_value(data: bytes) -> Json:
    """Return a message as JSON if it is an object or an array (some servers send it as binary), else as text or a digest."""
    if (value := _json_value(data)) is not None:
        return value
    try:
        return data.decode()
    except UnicodeDecodeError:
        return digest_bytes(data)


def _json_value(data: bytes) -> Json:
    """Return the object or the array in a message; None if there is none."""
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return parse_json(data)
        except InvalidJson:
            pass
    return None


def join_audio(messages: Iterable[Message]) -> Iterator[Json]:
    """Yield the messages with consecutive pieces of audio joined into one."""
    frame: tuple[str, ...] = ()
    audio: list[bytes] = []
    for message in messages:
        piece = message if isinstance(message, AudioPiece) else audio_piece(message)
        if audio and (piece is None or piece.frame != frame):
            yield digest_audio(AudioPiece(frame, b"".join(audio)))
            audio = []
        if piece is None:
            yield cast("Json", message)
        else:
            frame = piece.frame
            audio.append(piece.data)
    if audio:
        yield digest_audio(AudioPiece(frame, b"".join(audio)))


def audio_piece(message: Json) -> AudioPiece | None:
    """Return the audio of a message, if it carries nothing else.

    OpenAI sends `input_audio_buffer.append` and `session.input_audio.append`, Google `realtimeInput` with audio, others a member
    such as `user_audio_chunk`, or `data` or `chunk` in a message of a type with `audio` in its name.
    """
    match message:
        case {"type": str() as kind, "audio": str() as text} if kind.endswith(_AUDIO_TYPES):
            return _decode_audio((kind,), text)
        case {"realtimeInput": Mapping() as media, **more} | {"realtime_input": Mapping() as media, **more} if not more:
            return _google_audio(media)
        case dict():
            return _named_audio(message)
        case _:
            return None


def digest_audio(piece: AudioPiece) -> Json:
    """Return a message of the audio's type with a digest in place of the bytes."""
    match piece.frame:
        case ():
            return _text_or_digest(piece.data)
        case (str() as rest, *names) if rest.startswith("{"):
            return _put_digest(parse_json(rest.encode()), names, digest_bytes(piece.data))
        case ("realtimeInput", media):
            return {"realtimeInput": {"audio": {"mimeType": media, "data": digest_bytes(piece.data)}}}
        case _:
            return {"type": piece.frame[0], "audio": digest_bytes(piece.data)}


def _text_or_digest(data: bytes) -> Json:
    # A terminal sends its text in binary messages. Text has no NUL, silence has.
    try:
        return data.decode() if b"\0" not in data else digest_bytes(data)
    except UnicodeDecodeError:
        return digest_bytes(data)


def _named_audio(message: Mapping[str, Json]) -> AudioPiece | None:
    """Return the audio of a message that has it in one member of its own or of an object in it."""
    kind = message.get("type", message.get("message_type", ""))
    is_audio_type = isinstance(kind, str) and "audio" in kind.lower()
    found: list[tuple[tuple[str, ...], str]] = []
    for name, value in message.items():
        if isinstance(value, str) and (name in _AUDIO_NAMES or (is_audio_type and name in _DATA_NAMES)):
            found.append(((name,), value))
        elif isinstance(value, dict) and (name in _AUDIO_NAMES or is_audio_type):
            inner = ((inner, text) for inner, text in value.items() if isinstance(text, str))
            found += [((name, inner), text) for inner, text in inner if inner in (*_AUDIO_NAMES, *_DATA_NAMES)]
    if len(found) != 1:
        return None
    names, text = found[0]
    rest = _put_digest(message, names, None)
    piece = _decode_audio((dumps(rest).decode(), *names), text)
    return piece if piece is not None and piece.data else None


_AUDIO_NAMES: Final = (
    "audio",
    "audio_chunk",
    "user_audio_chunk",
    "audio_data",
    "audio_base_64",
    "audio_base64",
    "input_audio",
)
_DATA_NAMES: Final = ("data", "chunk", "payload")


def _put_digest(message: Json, names: Sequence[str], digest: Json) -> Json:
    """Return a message with a digest in the place of its audio."""
    if not names or not isinstance(message, Mapping):
        return digest
    return {**message, names[0]: _put_digest(message[names[0]], names[1:], digest)}


def digest_bytes(data: bytes) -> Json:
    """Return the digest and size of bytes as a value."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _google_audio(fields: Mapping[str, Json]) -> AudioPiece | None:
    """Return the audio of a `realtimeInput`; older clients send a list of one."""
    match fields:
        case {"audio": Mapping() as blob, **more} if not more:
            return _blob_audio(blob)
        case {"mediaChunks": [Mapping() as blob], **more} | {"media_chunks": [Mapping() as blob], **more} if not more:
            return _blob_audio(blob)
        case _:
            return None


def _blob_audio(blob: Mapping[str, Json]) -> AudioPiece | None:
    media = blob.get("mimeType", blob.get("mime_type"))
    text = blob.get("data")
    if not isinstance(media, str) or not isinstance(text, str) or not media.startswith("audio/"):
        return None
    return _decode_audio(("realtimeInput", media), text)


_URL_SAFE: Final = str.maketrans("-_", "+/")


def _decode_audio(frame: tuple[str, ...], text: str) -> AudioPiece | None:
    plain = text.translate(_URL_SAFE).rstrip("=")
    try:
        data = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return AudioPiece(frame, data)


def is_websocket_request(method: str, headers: Headers) -> bool:
    """Return whether a request opens a WebSocket (RFC 6455 4.1)."""
    return method == "GET" and (header(headers, "upgrade") or "").strip().lower() == "websocket"
