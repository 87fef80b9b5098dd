"""Read the messages of WebSockets, and be the server of one that is answered from a recording.

Compression is negotiated anew: permessage-deflate where the recorded server accepted it and this client offers it. Pings are
answered, and are nothing that anybody said. A message that came in fragments goes out in one frame.
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
from replay import answer as given

_OURS: Final = frozenset(
    ("sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol", "content-length")
)
"""Headers of an upgrade that belong to this one, and not to the recorded one."""

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accepted(extensions: str) -> list[Extension]:
    """The extensions that a server has accepted, as far as we know them. Raises `ValueError` for what none may accept."""
    found: list[Extension] = []
    for offer in split_comma_header(extensions.encode("ascii", "replace")):
        if _is_deflate(offer):
            extension = PerMessageDeflate()
            extension.finalize(offer)
            found.append(extension)
    return found


class Upgrade:
    """The answer to one request for a WebSocket. Raises `Problem` where it cannot be one."""

    def __init__(self, request: http.Request, recorded: Headers, budget: MemoryBudget) -> None:
        key = request.headers.get("sec-websocket-key", "").strip()
        if request.is_http2 or not _is_key(key):
            detail = "the request asks for a WebSocket without a valid Sec-WebSocket-Key"
            raise Problem(400, "malformed_request", detail)
        extension = _negotiated(
            header(recorded, "sec-websocket-extensions") or "", request.headers.get("sec-websocket-extensions", "")
        )
        fields: Headers = (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", _accept(key)),
            *_protocol(header(recorded, "sec-websocket-protocol"), request.headers.get("sec-websocket-protocol", "")),
            *((("Sec-WebSocket-Extensions", extension[0]),) if extension else ()),
            *((name, value) for name, value in recorded if name.lower() not in _OURS),
        )
        raw = http.Headers([(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields])
        self.response = http.Response(b"HTTP/1.1", 101, b"Switching Protocols", raw, None, None, 0.0, None)
        extensions: list[Extension] = [extension[1]] if extension else []
        self.listener = FrameReader(to_server=True, extensions=extensions, budget=budget)
        self._frames = FrameProtocol(client=False, extensions=extensions)

    def sent(self, frame: given.Frame) -> bytes:
        """A message of the recording as bytes for this client."""
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

    def pong(self, data: bytes) -> bytes:
        """The answer to a ping."""
        return bytes(self._frames.pong(data))


def _is_key(key: str) -> bool:
    """RFC 6455 4.1: sixteen bytes in base64."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _accept(key: str) -> str:
    """RFC 6455 4.2.2."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _protocol(recorded: str | None, offered: str) -> Headers:
    """The recorded subprotocol, where this client offers it: another one it would have to refuse."""
    names = [name.strip() for name in offered.split(",")]
    return (("Sec-WebSocket-Protocol", recorded),) if recorded in names else ()


def _negotiated(recorded: str, offered: str) -> tuple[str, PerMessageDeflate] | None:
    if not any(map(_is_deflate, split_comma_header(recorded.encode("ascii", "replace")))):
        return None
    for offer in filter(_is_deflate, split_comma_header(offered.encode("ascii", "replace"))):
        extension = PerMessageDeflate()
        try:
            taken = extension.accept(offer)
        except ValueError:
            continue
        if isinstance(taken, str):
            return "; ".join(filter(None, (PerMessageDeflate.name, taken))), extension
    return None


def _is_deflate(offer: str) -> bool:
    return offer.split(";", 1)[0].strip() == PerMessageDeflate.name
