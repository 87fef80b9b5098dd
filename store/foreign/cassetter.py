"""Read the parts of cassettes that only cassetter writes: typed bodies, and WebSocket frames with their times."""

from collections.abc import Mapping
from typing import Any, Final

from calls.model import ChunkKind, Headers, Request, Response
from store.foreign.contents import UNVERSIONED, BrokenInteraction, Interaction
from store.foreign.parts import checked_url, json_bytes, messages_body

_TYPES: Final = ("json", "text", "binary", "none")
_UPGRADE_HEADERS: Final = (("upgrade", "websocket"), ("connection", "upgrade"))


def is_typed_body(value: Any) -> bool:
    """Whether this is a typed body. Other JSON with a `type` nearly always has further members."""
    return isinstance(value, Mapping) and value.get("type") in _TYPES and value.keys() <= {"type", "content"}


def typed_body(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of a typed body. Raises BrokenInteraction."""
    content = value.get("content")
    match value["type"], content:
        case "json", _:
            return json_bytes(content)
        case "none", _:
            return b""
        case "text", str():
            return content.encode("utf-8", "surrogatepass")
        case "binary", str():
            return _decode_hex(content)
        case "binary", bytes():
            return content
        case _:
            # YAML reads text that consists of digits as a number, without leading zeros.
            raise BrokenInteraction("its body is not text")


def _decode_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BrokenInteraction("its body is not valid hexadecimal") from None


def websocket_interaction(
    place: str, raw: Mapping[str, Any], request_headers: Headers, started_at: int | None
) -> Interaction:
    """Convert a WebSocket's frames into the chunks of both bodies. Raises BrokenInteraction."""
    sides: dict[str, list[tuple[int, ChunkKind, bytes]]] = {"send": [], "recv": []}
    last = 0
    for side, at, kind, data in map(_frame, raw.get("frames") or ()):
        # The frames are in order, even if the clock went back.
        last = max(last, at)
        sides[side].append((last, kind, data))
    request = Request(
        method="GET",
        url=checked_url(raw.get("uri")),
        http_version="",
        headers=(*request_headers, *_UPGRADE_HEADERS),
        body=messages_body(sides["send"]),
    )
    return Interaction(
        place=place,
        request=request,
        response=Response(status=101, headers=_UPGRADE_HEADERS, body=messages_body(sides["recv"])),
        started_at=started_at,
        first_byte_at=0,
        ended_at=last,
        notes=(UNVERSIONED,),
    )


def _frame(raw: Any) -> tuple[str, int, ChunkKind, bytes]:
    match raw:
        case {"direction": "send" | "recv" as side, "frame_type": "text" | "binary" as kind, "body": body} if (
            is_typed_body(body)
        ):
            offset = raw.get("offset_ms")
            is_measured = isinstance(offset, int | float) and 0 <= offset < 10**9
            return side, round(offset * 1_000_000) if is_measured else 0, kind, typed_body(body)
        case _:
            raise BrokenInteraction("one of its frames has no direction, no type or no body")
