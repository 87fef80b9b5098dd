"""Read JSON values that end with a zero byte, as vLLM's demo server streams them."""

from typing import Final

from calls.framing import ndjson

_MARK: Final = b"\0"


def matches(head: bytes, media: str, *, is_whole: bool) -> bool | None:  # noqa: ARG001 # there is no media type for it
    """Match an object with a zero byte after it, which JSON text never contains."""
    if head[:1] != b"{":
        return False
    return True if _MARK in head else False if is_whole else None


class Decoder(ndjson.Decoder):
    """Decodes values that end with a zero byte."""

    mark = _MARK
