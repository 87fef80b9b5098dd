"""Read what only cassetter writes into cassettes: typed bodies, and WebSocket frames with their times."""

from collections.abc import Mapping
from typing import Any, Final

from calls.model import ChunkKind, Headers, Request, Response
from store.foreign.contents import UNVERSIONED, Broken, Interaction
from store.foreign.parts import json_bytes, talk, url

_TYPES: Final = ("json", "text", "binary", "none")
_SWITCHED: Final = (("upgrade", "websocket"), ("connection", "upgrade"))


def is_typed(value: Any) -> bool:
    """Whether this is a body with a type. Plain JSON that looks like one has, nearly always, a member more."""
    return isinstance(value, Mapping) and value.get("type") in _TYPES and value.keys() <= {"type", "content"}


def typed(value: Mapping[str, Any]) -> bytes:
    """The bytes of a body with a type. Raises Broken."""
    content = value.get("content")
    match value["type"], content:
        case "json", _:
            return json_bytes(content)
        case "none", _:
            return b""
        case "text", str():
            return content.encode("utf-8", "surrogatepass")
        case "binary", str():
            return _unhexed(content)
        case "binary", bytes():
            return content
        case _:
            # Of a text of digits alone YAML makes a number, and forgets the zeros before it.
            raise Broken("its body is no text")


def _unhexed(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Broken("its body is not the hexadecimal that it should be") from None


def conversation(place: str, told: Mapping[str, Any], asked: Headers, started_at: int | None) -> Interaction:
    """A WebSocket's frames as the chunks of both bodies. Raises Broken."""
    sides: dict[str, list[tuple[int, ChunkKind, bytes]]] = {"send": [], "recv": []}
    last = 0
    for side, at, kind, data in map(_frame, told.get("frames") or ()):
        # They are in their order; a clock that went back does not change it.
        last = max(last, at)
        sides[side].append((last, kind, data))
    request = Request(
        method="GET",
        url=url(told.get("uri")),
        http_version="",
        headers=(*asked, *_SWITCHED),
        body=talk(sides["send"]),
    )
    return Interaction(
        place=place,
        request=request,
        response=Response(status=101, headers=_SWITCHED, body=talk(sides["recv"])),
        started_at=started_at,
        first_byte_at=0,
        ended_at=last,
        notes=(UNVERSIONED,),
    )


def _frame(told: Any) -> tuple[str, int, ChunkKind, bytes]:
    match told:
        case {"direction": "send" | "recv" as side, "frame_type": "text" | "binary" as kind, "body": body} if is_typed(
            body
        ):
            offset = told.get("offset_ms")
            measured = isinstance(offset, int | float) and 0 <= offset < 10**9
            return side, round(offset * 1_000_000) if measured else 0, kind, typed(body)
        case _:
            raise Broken("one of its frames has no direction, no kind or no body")
