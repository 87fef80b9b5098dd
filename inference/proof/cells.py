"""What is run: every pair of settings that might conspire, in as few engines as cover them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One engine, asked the same thing in company: stock first, then ours."""

    kind: str = "dense"
    ratio: int = 2
    context: int = 1200
    chunk: int | None = 512
    """Tokens of a step, smaller than a prompt: prefill in chunks. None: never in chunks."""
    prefix: bool = True
    blocks: int | None = None
    """Of the KV cache, too few for all: requests are preempted and computed again. None: enough."""
    waves: tuple[tuple[int, int], ...] = ((1, 0), (4, 4), (8, 3))
    """Needles and neighbours at once."""
    samplings: tuple[str, ...] = ("greedy", "seeded")
    tokens: int = 16
    threads: int = 2


CELLS: Final[dict[str, Cell]] = {
    "dense-r1": Cell(ratio=1, prefix=False),
    "dense-r2-long": Cell(context=4000, chunk=1024, waves=((1, 0), (3, 3), (4, 1))),
    "dense-r3-whole": Cell(ratio=3, chunk=None),
    "dense-r4-preempted": Cell(ratio=4, context=700, blocks=40, tokens=200, waves=((1, 0), (6, 4))),
    "dense-r8-whole": Cell(ratio=8, context=2500, chunk=None, prefix=False, waves=((1, 0), (4, 3))),
    "dense-batch-64": Cell(
        context=600, chunk=2048, prefix=False, waves=((1, 0), (6, 2), (48, 16)), samplings=("greedy",)
    ),
    "moe-r2": Cell(kind="moe"),
    "moe-r1-long": Cell(
        kind="moe", ratio=1, context=4000, chunk=1024, prefix=False, waves=((1, 0), (3, 2)), samplings=("greedy",)
    ),
    "moe-r4-whole": Cell(kind="moe", ratio=4, context=2500, chunk=None, waves=((1, 0), (4, 2)), samplings=("seeded",)),
    "moe-r8-preempted": Cell(
        kind="moe", ratio=8, context=700, blocks=40, tokens=100, waves=((1, 0), (6, 2)), samplings=("seeded",)
    ),
    # For --model: large enough to vary, small enough for a model of a hundred million parameters on two cores.
    "small": Cell(ratio=3, context=800, waves=((1, 0), (3, 2)), samplings=("greedy",), tokens=8),
}
