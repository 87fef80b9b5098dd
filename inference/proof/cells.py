"""What is run: every pair of settings that might conspire, in as few engines as cover them.

The whole product would be 61,440 engines. A fault needs one setting, or two that meet; so each pair of settings meets in one
cell at least (pairwise cover), and the list is the same at every run.
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
"""Each setting and what it is set to."""

BLOCK, GROWING = 32, 48
"""Tokens to a block, and to an answer, where requests are to be preempted: every answer outgrows the blocks of its prompt."""

COMPANY: Final[Mapping[int, tuple[tuple[int, int, int], ...]]] = {
    1: (),
    4: ((2, 2, 0), (2, 2, 0)),
    16: ((5, 3, 8),),
    64: ((6, 4, 54),),
    128: ((6, 4, 118),),
}
"""By how many are at once: waves of so many needles, long neighbours and short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One engine, asked the same thing in company: stock first, then ours."""

    kind: str = "dense"
    ratio: int = 2
    """Heads to a KV head."""
    context: int = 1200
    chunked: bool = True
    """Whether a prompt longer than `chunk` is prefilled in pieces."""
    prefix: bool = True
    preempted: bool = False
    """Whether the KV cache has too few blocks for all: requests are put out and computed again."""
    most: int = 16
    streamed: bool = False
    """Whether the engine hands out each token as it comes, or the whole answer at its end."""
    sampling: str = "greedy"
    threads: int = 2
    answer: int = 16
    """Tokens to an answer, where nobody is to be preempted."""
    chunk: int = 512

    @property
    def waves(self) -> tuple[tuple[int, int, int], ...]:
        """Alone, then in company."""
        return ((1, 0, 0), *COMPANY[self.most])

    @property
    def tokens(self) -> int:
        """To an answer."""
        return GROWING if self.preempted else self.answer

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer together."""
        return self.context + self.tokens

    @property
    def blocks(self) -> int | None:
        """Of the KV cache: room for the prompts of two needles and not for their answers. None: as many as fit."""
        return 2 * -(-self.context // BLOCK) + 2 if self.preempted else None

    @property
    def name(self) -> str:
        """Says what is set."""
        said = [self.kind, f"r{self.ratio}", str(self.context), "chunked" if self.chunked else "whole"]
        said += ["prefix"] * self.prefix + ["preempted"] * self.preempted
        said += [f"x{self.most}", "streamed" if self.streamed else "final", self.sampling]
        return "-".join(said + ([f"t{self.threads}"] if self.threads != 2 else []))


@cache
def cover() -> tuple[Cell, ...]:
    """Cells in which every two settings meet, found greedily: each is the one with most pairs that are still to meet.

    Of equals the one whose settings were used least, so that the last cells are as mixed as the first.
    """
    rows = list(product(*FACTORS.values()))
    bit: dict[tuple[object, ...], int] = {}
    pairs = [sum(1 << bit.setdefault(pair, len(bit)) for pair in _pairs(row)) for row in rows]
    left = (1 << len(bit)) - 1
    chosen: list[tuple[Any, ...]] = []
    while left:
        found = [(mine & left).bit_count() for mine in pairs]
        most = max(found)
        equals = [at for at, count in enumerate(found) if count == most]
        best = min(equals, key=lambda at: (_used(rows[at], chosen), at))
        left &= ~pairs[best]
        chosen.append(rows[best])
    return tuple(Cell(**dict(zip(FACTORS, row, strict=True))) for row in chosen)


def _used(row: Sequence[Any], chosen: Sequence[Sequence[Any]]) -> int:
    return sum(mine == theirs for other in chosen for mine, theirs in zip(row, other, strict=True))


def _pairs(row: Sequence[Any]) -> list[tuple[object, ...]]:
    return [(one, two, row[one], row[two]) for one, two in combinations(range(len(row)), 2)]


UNEVEN: Final = Cell(kind="uneven", context=40, most=64, answer=12)
"""One layer, 1,000 columns in its activation function: asked the same in batches of 33 to 63."""

BATCHES: Final = tuple(range(33, 64, 3))


def again() -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Cells to compare the bits of one process with another's: to be run several times, and set otherwise where it should
    not matter, or may.
    """
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
"""For a model of somebody's own: large enough to vary, small enough for a hundred million parameters on two cores."""
