"""Define the cells: every pair of settings, in as few engines as possible.

The full product would be 61,440 engines. Faults typically need one setting or a combination of two, so each pair of settings
occurs in at least one cell (a pairwise cover). The list is the same in every run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any, Final

FACTORS: Final[Mapping[str, Sequence[Any]]] = {
    "kind": ("dense", "moe", "uneven"),
    "ratio": (1, 2, 3, 4, 8),
    "context": (600, 1200, 2500, 4048),
    "chunked": (True, False),
    "prefix": (True, False),
    "preempted": (False, True),
    "most": (4, 16, 64, 128),
    "streamed": (False, True),
    "sampling": ("greedy", "seeded"),
    "threads": (2, 3, 4, 8),
}
"""The settings and their values."""

BLOCK, GROWING = 32, 48
"""Tokens per block and per answer if requests are to be preempted: every answer outgrows the blocks of its prompt."""

WAVES: Final[Mapping[int, tuple[tuple[int, int, int], ...]]] = {
    1: (),
    4: ((2, 2, 0), (2, 2, 0)),
    16: ((5, 3, 8),),
    64: ((6, 4, 54),),
    128: ((6, 4, 118),),
}
"""Waves by the number of concurrent requests: needles, long neighbours and short ones of each wave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One engine that gets the same request among others, first as stock, then patched."""

    kind: str = "dense"
    ratio: int = 2
    """Heads per KV head."""
    context: int = 1200
    chunked: bool = True
    """True if prompts longer than `chunk` are prefilled in pieces."""
    prefix: bool = True
    preempted: bool = False
    """True if the KV cache has too few blocks for all requests, so that some are preempted and computed again."""
    most: int = 16
    streamed: bool = False
    """True if the engine returns each token as it comes, instead of the whole answer at its end."""
    sampling: str = "greedy"
    threads: int = 2
    answer: int = 16
    """Tokens per answer, without preemption."""
    chunk: int = 512

    @property
    def waves(self) -> tuple[tuple[int, int, int], ...]:
        """The waves: alone, then among others."""
        return ((1, 0, 0), *WAVES[self.most])

    @property
    def tokens(self) -> int:
        """Tokens per answer."""
        return GROWING if self.preempted else self.answer

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer together."""
        return self.context + self.tokens

    @property
    def blocks(self) -> int | None:
        """Blocks of the KV cache: enough for two needles' prompts, but not for their answers. None: as many as fit."""
        return 2 * -(-self.context // BLOCK) + 2 if self.preempted else None

    @property
    def name(self) -> str:
        """A name that lists the settings."""
        words = [self.kind, f"r{self.ratio}", str(self.context), "chunked" if self.chunked else "whole"]
        words += ["prefix"] * self.prefix + ["preempted"] * self.preempted
        words += [f"x{self.most}", "streamed" if self.streamed else "final", self.sampling]
        return "-".join(words + ([f"t{self.threads}"] if self.threads != 2 else []))


@cache
def pairwise_cover() -> tuple[Cell, ...]:
    """Cells in which every pair of settings occurs, chosen greedily by the number of new pairs.

    Ties go to the cell whose settings were used least, so that the last cells are as mixed as the first.
    """
    rows = list(product(*FACTORS.values()))
    bit: dict[tuple[object, ...], int] = {}
    pairs = [sum(1 << bit.setdefault(pair, len(bit)) for pair in _pairs(row)) for row in rows]
    remaining = (1 << len(bit)) - 1
    chosen: list[tuple[Any, ...]] = []
    while remaining:
        found = [(mine & remaining).bit_count() for mine in pairs]
        most = max(found)
        equals = [at for at, count in enumerate(found) if count == most]
        best = min(equals, key=lambda at: (_times_used(rows[at], chosen), at))
        remaining &= ~pairs[best]
        chosen.append(rows[best])
    return tuple(Cell(**dict(zip(FACTORS, row, strict=True))) for row in chosen)


def _times_used(row: Sequence[Any], chosen: Sequence[Sequence[Any]]) -> int:
    return sum(mine == theirs for other in chosen for mine, theirs in zip(row, other, strict=True))


def _pairs(row: Sequence[Any]) -> list[tuple[object, ...]]:
    return [(one, two, row[one], row[two]) for one, two in combinations(range(len(row)), 2)]


UNEVEN: Final = Cell(kind="uneven", context=40, most=64, answer=12)
"""A model with one layer and 1,000 columns in its activation function, for batches of 33 to 63."""

BATCHES: Final = tuple(range(33, 64, 3))


def repeated_cells() -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Cells for comparing the bits of different processes: those run several times, and variants with other settings."""
    dense, moe = Cell(sampling="seeded", most=4), Cell(kind="moe", most=4)
    otherwise = (
        {"threads": 1},
        {"threads": 4},
        {"threads": 8},
        {"chunked": False},
        {"prefix": False},
        {"preempted": True},
        {"most": 16},
    )
    return (dense, moe), (*(replace(dense, **each) for each in otherwise), replace(moe, threads=1))


REAL: Final = Cell(ratio=3, context=800, most=4, answer=8)
"""The cell for a real model: large enough to vary, small enough for a hundred million parameters on two cores."""
