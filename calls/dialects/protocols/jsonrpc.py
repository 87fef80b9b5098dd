"""JSON-RPC 2.0, on which MCP and A2A are built: the body names the method, whatever the path is."""

from collections.abc import Mapping, Sequence
from typing import Final

from calls.codec.json import NotLossless, lenient
from calls.codec.lenient_json import elements, members, some
from calls.model import Json

_MARK: Final = b'"jsonrpc"'


def messages(body: Json) -> Sequence[Mapping[str, Json]]:
    """The messages of a body: one, or a batch of them."""
    return [members(one) for one in (elements(body) if isinstance(body, Sequence) else [body])]


def methods(data: bytes) -> tuple[str, ...] | None:
    """What the requests and notifications of a body call; none are called by answers. None where this is no JSON-RPC."""
    if _MARK not in data:
        return None
    try:
        spoken = [message for message in messages(lenient(data)) if message.get("jsonrpc") == "2.0"]
    except NotLossless:
        return None
    named = (some(message.get("method")) for message in spoken)
    return tuple(name for name in named if name) if spoken else None


def is_answer(message: Mapping[str, Json]) -> bool:
    """Whether a message answers a request."""
    return "method" not in message and ("result" in message or "error" in message)
