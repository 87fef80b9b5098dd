"""Recognise Playhead's own response fields, which an upstream must not be able to imitate."""

from functools import lru_cache


@lru_cache(2048)
def is_own_field(name: str) -> bool:
    """Return whether a field name is one of Playhead's: `Playhead` or `X-Playhead-…`, in any case."""
    lowered = name.lower()
    return lowered == "playhead" or lowered.startswith("x-playhead-")
