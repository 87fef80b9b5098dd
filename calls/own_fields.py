"""Name Playhead's own response fields: under these names an upstream could imitate what we say."""

from functools import lru_cache


@lru_cache(2048)
def is_own_field(name: str) -> bool:
    """Whether a field of this name is ours, `Playhead` or `X-Playhead-…` in any case."""
    lowered = name.lower()
    return lowered == "playhead" or lowered.startswith("x-playhead-")
