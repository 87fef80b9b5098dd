"""Recognise gRPC, gRPC-Web, Connect and Twirp by the head of a request, and read the messages in its body."""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final, Literal

from calls.codec.encoding import Undecodable, decode_content
from calls.codec.json import InvalidJson, parse_json
from calls.codec.lenient_json import as_object
from calls.codec.protobuf import MAX_SIZE, bytes_digest, read_protobuf
from calls.model import Json, Request, Response, header

type RpcProtocol = Literal["grpc", "connect", "connect_stream", "twirp"]
"""`grpc` includes gRPC-Web. A call by Connect streams if it has enveloped messages."""

_PREFIX_SIZE: Final = 5
"""Bytes before each message of a stream: flags, and the length of the message."""

_COMPRESSED: Final = 1

_CONNECT_END: Final = 2
"""The flag of the message that ends a stream of Connect."""

_WEB_TRAILERS: Final = 0x80
"""The flag of the message with the trailers of gRPC-Web."""

_PROTOBUF: Final = ("application/proto", "application/protobuf", "application/x-protobuf")


def rpc_protocol(request: Request) -> RpcProtocol | None:
    """Return the protocol of a request; None if it is none of these."""
    media = _media_type(request)
    if media.startswith("application/grpc"):
        return "grpc"
    if media.startswith("application/connect+"):
        return "connect_stream"
    path, _, query = request.url.partition("?")
    if "/twirp/" in path:
        return "twirp"
    if header(request.headers, "connect-protocol-version") or "connect=v1" in query.split("&"):
        return "connect"
    return "connect" if media == "application/proto" else None


def read_rpc_messages(request: Request) -> Json:
    """Return the messages of a body in protobuf by the numbers of their fields; None if it cannot be read so.

    A call whose messages are enveloped has a list of them.
    """
    media, data = _media_type(request), request.body.data
    if len(data) > MAX_SIZE or not data:
        return None
    if media in _PROTOBUF:
        whole = _decompress(data, header(request.headers, "content-encoding"))
        return read_protobuf(whole) if whole else None
    if not media.startswith(("application/grpc", "application/connect+")):
        return None
    if media.startswith("application/grpc-web-text"):
        data = _decode_pieces(data)
    encoding = header(request.headers, "grpc-encoding") or header(request.headers, "connect-content-encoding")
    messages = [_read_message(media, flags, part, encoding) for flags, part in _envelopes(data)]
    return messages if messages and None not in messages else None


def has_rpc_failed(response: Response) -> bool:
    """Return whether an answer of gRPC, or a stream of Connect, says under HTTP's status of success that the call failed."""
    media = _media_type(response)
    if media.startswith("application/grpc"):
        status = header(response.trailers, "grpc-status") or header(response.headers, "grpc-status")
        if status is None and media.startswith("application/grpc-web"):
            status = _status_in_body(media, response.body.data)
        return status not in (None, "0")
    if not media.startswith("application/connect+"):
        return False
    last = next((data for flags, data in _envelopes(response.body.data) if flags & _CONNECT_END), None)
    try:
        return "error" in as_object(parse_json(last)) if last else False
    except InvalidJson:
        return False  # it is compressed, or was not recorded to its end


def _status_in_body(media: str, data: bytes) -> str | None:
    """Return the status in the trailers that gRPC-Web sends as its last message."""
    if media.startswith("application/grpc-web-text"):
        data = _decode_pieces(data)
    trailers = next((part for flags, part in _envelopes(data) if flags & _WEB_TRAILERS), None) or b""
    fields = (line.partition(b":") for line in trailers.split(b"\r\n"))
    return next((value.strip().decode("latin-1") for name, _, value in fields if name.lower() == b"grpc-status"), None)


def _decode_pieces(data: bytes) -> bytes:
    """Decode base64 of which each piece may be padded; nothing of what is invalid."""
    try:
        return b"".join(base64.b64decode(piece) for piece in re.findall(rb"[^=]+=*", data))
    except binascii.Error:
        return b""


def _media_type(message: Request | Response) -> str:
    return (header(message.headers, "content-type") or "").partition(";")[0].strip().lower()


def _envelopes(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield the flags and the bytes of each message; None for one that is not there to its end."""
    at = 0
    while at < len(data):
        start = at + _PREFIX_SIZE
        size = int.from_bytes(data[at + 1 : start], "big")
        yield data[at], data[start : start + size] if start + size <= len(data) else None
        at = start + size


def _read_message(media: str, flags: int, data: bytes | None, encoding: str | None) -> Json:
    whole = _decompress(data, encoding) if data and flags & _COMPRESSED else data
    if whole is None:
        return None
    try:
        message = parse_json(whole) if "+json" in media else read_protobuf(whole)
    except InvalidJson:
        return None
    # A message that is compressed by itself is recorded as it came: nobody has looked for secrets in its texts.
    return _with_digests(message) if flags & _COMPRESSED else message


def _with_digests(value: Json) -> Json:
    """Replace texts by their digests, which tell only whether they are equal."""
    match value:
        case str():
            return bytes_digest(value.encode("utf-8", "replace"))
        case dict():
            return {name: _with_digests(item) for name, item in value.items()}
        case list():
            return [_with_digests(item) for item in value]
        case _:
            return value


def _decompress(data: bytes, encoding: str | None) -> bytes | None:
    try:
        return decode_content(data, encoding, MAX_SIZE) if encoding else data
    except Undecodable:
        return None
