"""Cut requests into tiles that are the same whoever else is in the batch.

The CPU kernel shares out KV ranges and groups of queries by looking at the whole batch. Given only tiles that fit one of its
iterations it has nothing left to choose: each tile is a request of its own, with the queries of at most one iteration,
aligned to their absolute position, so that neither a chunk's end nor a cached prefix moves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

ROWS: Final = 8
"""Rows of queries, over the heads that share a KV head, up to which a tile is the same to the kernel whatever their number.

Measured on AVX-512 (vLLM 0.32.0): a row has the same bits in tiles of 1 to 8 rows, and other ones from 9 on where the context has
2,048 tokens and more; not with 1,200. The size of the pieces in which the kernel walks the context would explain it. It shows
where a request is preempted, and its answer so far is computed again as a prompt.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """A batch cut into tiles; each is one request to the kernel."""

    request: tuple[int, ...]
    """Whose tile it is: the row of the block table."""
    starts: tuple[int, ...]
    """Where each tile's queries begin in the flat batch, and at last where the last one's end."""
    lengths: tuple[int, ...]
    """How much context each tile sees, its own queries included."""
    longest: int
    """The queries of the largest tile."""


def width(heads: int, kv_heads: int) -> int:
    """How many positions fit one iteration of the kernel. Raises ValueError where not even one does."""
    ratio = heads // kv_heads
    if ratio > ROWS:
        raise ValueError(f"{heads} heads over {kv_heads} KV heads do not fit the kernel's {ROWS} rows")
    return ROWS // ratio


def cut(starts: Sequence[int], lengths: Sequence[int], positions: int) -> Tiles:
    """Cut each request's queries at multiples of `positions`. `starts` has one entry more than `lengths`."""
    request: list[int] = []
    begins = [starts[0]]
    seen: list[int] = []
    for row, length in enumerate(lengths):
        here, end = starts[row], starts[row + 1]
        context = length - (end - here)
        while here < end:
            step = min(positions - context % positions, end - here)
            here, context = here + step, context + step
            request.append(row)
            begins.append(here)
            seen.append(context)
    longest = max((after - before for before, after in pairwise(begins)), default=0)
    return Tiles(request=tuple(request), starts=tuple(begins), lengths=tuple(seen), longest=longest)
