"""Read JSON values that end with a zero byte, as vLLM's demonstration server streams them."""

from typing import Final

from calls.framing import ndjson

_MARK: Final = b"\0"


def begins(head: bytes, media: str, *, ended: bool) -> bool | None:  # noqa: ARG001 # no label says so
    """An object, and the mark somewhere behind it: text that is JSON holds none."""
    if head[:1] != b"{":
        return False
    return True if _MARK in head else False if ended else None


class Decoder(ndjson.Decoder):
    """Bytes in, values out."""

    mark = _MARK
