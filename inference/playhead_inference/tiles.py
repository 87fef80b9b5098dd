"""Cut requests into tiles that do not depend on the other requests in the batch.

The CPU kernel distributes KV ranges and groups of queries according to the whole batch. If it gets only tiles that fit one of
its iterations, it has no choices left: each tile is a request to it, with the queries of at most one iteration, aligned to
their absolute position, so that neither the end of a chunk nor a cached prefix moves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

ROWS: Final = 8
"""Maximum rows of queries (over the heads that share a KV head) for which a row's bits do not depend on their number.

Measured on AVX-512 (vLLM 0.32.0): a row has the same bits in tiles of 1 to 8 rows, and others from 9 rows on if the context has
2,048 tokens or more, but not with 1,200. The size of the pieces in which the kernel walks the context would explain that. It
shows when a request is preempted and its answer so far is computed again as a prompt.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """A batch cut into tiles, each of which is one request to the kernel."""

    request: tuple[int, ...]
    """The request of each tile: its row in the block table."""
    starts: tuple[int, ...]
    """The start of each tile's queries in the flat batch, followed by the end of the last one's."""
    lengths: tuple[int, ...]
    """The context length of each tile, including its own queries."""
    longest: int
    """The number of queries of the largest tile."""


def width(heads: int, kv_heads: int) -> int:
    """The number of positions that fit one iteration of the kernel. Raises ValueError if not even one does."""
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
