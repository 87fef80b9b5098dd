"""Find the ends that a request's body has in common with those of earlier requests, which a bundle keeps once."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from store.bundle.trace import Span

WORTH_A_REFERENCE: Final = 256
"""Bytes of a body from which on later ones may refer to it. An end in common has half of that at least."""


def shared_ends(data: bytes, recent: Iterable[tuple[int, bytes]]) -> tuple[Span | None, Span | None]:
    """Return references to an earlier body for the ends that `data` has in common with it, if they are long enough."""
    best: tuple[int, int, int] = (0, 0, 0)
    for line, other in recent:
        prefix = _common_prefix(data, other)
        suffix = _common_suffix(data[prefix:], other)
        best = max(best, (line, prefix, suffix), key=lambda candidate: candidate[1] + candidate[2])
    line, prefix, suffix = best
    return (line, prefix) if prefix else None, (line, suffix) if suffix else None


def _common_prefix(data: bytes, other: bytes) -> int:
    """Return the length of the common beginning, up to a brace, so that no character is split and the rest is readable."""
    size = _longest(min(len(data), len(other)), lambda size: data[:size] == other[:size])
    cut = max(data.rfind(b"{", 0, size), data.rfind(b"}", 0, size) + 1)
    return cut if cut >= WORTH_A_REFERENCE // 2 else 0


def _common_suffix(data: bytes, other: bytes) -> int:
    """Return the length of the common end, from the next member or the end of a list."""
    limit = min(len(data), len(other))
    size = _longest(limit, lambda size: data[len(data) - size :] == other[len(other) - size :])
    cut = _MEMBER_OR_END.search(data, len(data) - size)
    return len(data) - cut.start() if cut and len(data) - cut.start() >= WORTH_A_REFERENCE // 2 else 0


_MEMBER_OR_END = re.compile(rb',"|]')


def _longest(limit: int, agrees: Callable[[int], bool]) -> int:
    """Return the greatest size up to `limit` that agrees, by bisection."""
    low = 0
    while low < limit:
        middle = (low + limit + 1) // 2
        low, limit = (middle, limit) if agrees(middle) else (low, middle - 1)
    return low
