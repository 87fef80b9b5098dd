"""Negotiate WebSocket extensions, and act as the server of a WebSocket that is answered from a recording.

Compression is negotiated again: permessage-deflate if the recorded server accepted it and this client offers it. Pings are
answered and are not messages. A message that was recorded in fragments is sent in one frame.
"""

import base64
import binascii
import hashlib
from typing import Final

from mitmproxy import http
from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import FrameProtocol
from wsproto.utilities import split_comma_header

from calls.model import Headers, header
from proxy.mitm.protocol.websocket_frames import FrameReader
from proxy.wire.memory_budget import MemoryBudget
from proxy.wire.problem import Problem
from replay.answer import Frame

_OURS: Final = frozenset(
    ("sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol", "content-length")
)
"""Headers of the upgrade that are computed, not taken from the recording."""

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accepted_extensions(extensions: str) -> list[Extension]:
    """Return the supported extensions that a server accepted. Raises ValueError if their parameters are invalid."""
    found: list[Extension] = []
    for offer in split_comma_header(extensions.encode("ascii", "replace")):
        if _is_deflate(offer):
            extension = PerMessageDeflate()
            extension.finalize(offer)
            found.append(extension)
    return found


class WebsocketUpgrade:
    """The response to one WebSocket request, and its frames. Raises Problem if the request is invalid."""

    def __init__(self, request: http.Request, recorded: Headers, budget: MemoryBudget) -> None:
        key = request.headers.get("sec-websocket-key", "").strip()
        if request.is_http2 or not _is_key(key):
            detail = "the WebSocket request has no valid Sec-WebSocket-Key; send 16 random bytes in base64"
            raise Problem(400, "malformed_request", detail)
        extension = _negotiate_deflate(
            header(recorded, "sec-websocket-extensions") or "", request.headers.get("sec-websocket-extensions", "")
        )
        fields: Headers = (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", _accept_value(key)),
            *_subprotocol_field(
                header(recorded, "sec-websocket-protocol"), request.headers.get("sec-websocket-protocol", "")
            ),
            *((("Sec-WebSocket-Extensions", extension[0]),) if extension else ()),
            *((name, value) for name, value in recorded if name.lower() not in _OURS),
        )
        raw = http.Headers([(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields])
        self.response = http.Response(b"HTTP/1.1", 101, b"Switching Protocols", raw, None, None, 0.0, None)
        extensions: list[Extension] = [extension[1]] if extension else []
        self.frame_reader = FrameReader(to_server=True, extensions=extensions, budget=budget)
        self._frames = FrameProtocol(client=False, extensions=extensions)

    def encode_frame(self, frame: Frame) -> bytes:
        """Encode a recorded message for this client."""
        match frame.kind:
            case "text":
                return bytes(self._frames.send_data(frame.data.decode("utf-8", "replace"), fin=True))
            case "close" if len(frame.data) >= 2:
                code = int.from_bytes(frame.data[:2])
                return bytes(self._frames.close(code, frame.data[2:].decode("utf-8", "replace")))
            case "close":
                return bytes(self._frames.close())
            case _:
                return bytes(self._frames.send_data(frame.data, fin=True))

    def encode_pong(self, data: bytes) -> bytes:
        """Encode the response to a ping."""
        return bytes(self._frames.pong(data))


def _is_key(key: str) -> bool:
    """Return whether this is a valid Sec-WebSocket-Key: 16 bytes in base64 (RFC 6455 4.1)."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _accept_value(key: str) -> str:
    """Return the Sec-WebSocket-Accept value for a key (RFC 6455 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _subprotocol_field(recorded: str | None, offered: str) -> Headers:
    """Return the recorded subprotocol if this client offers it. A client must refuse one that it did not offer."""
    names = [name.strip() for name in offered.split(",")]
    return (("Sec-WebSocket-Protocol", recorded),) if recorded in names else ()


def _negotiate_deflate(recorded: str, offered: str) -> tuple[str, PerMessageDeflate] | None:
    if not any(map(_is_deflate, split_comma_header(recorded.encode("ascii", "replace")))):
        return None
    for offer in filter(_is_deflate, split_comma_header(offered.encode("ascii", "replace"))):
        extension = PerMessageDeflate()
        try:
            accepted = extension.accept(offer)
        except ValueError:
            continue
        if isinstance(accepted, str):
            return "; ".join(filter(None, (PerMessageDeflate.name, accepted))), extension
    return None


def _is_deflate(offer: str) -> bool:
    return offer.split(";", 1)[0].strip() == PerMessageDeflate.name
