"""Measure the cost of the patch: stock and patched alternate in one process, in short rounds that fit a quiet moment.

Each pair also records how many CPUs the rest of the machine used meanwhile. On a shared machine, wall-clock times are
meaningful only for pairs that had the machine to themselves; these are selected by that number, independently of the result.
CPU seconds count for all pairs: with OMP_WAIT_POLICY=PASSIVE, a waiting thread does not spend them.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from proof.cells import Cell
from proof.engine import Engine
from proof.runs import Row, environment_facts
from proof.spread import is_settled

WORK: Final = {"prefill 2 x 1500": (2, 1500, 1), "decode 16 x 16": (16, 32, 16), "alone 600 + 16": (1, 600, 16)}
"""The kinds of work: number of prompts, tokens per prompt, tokens per answer."""


LEAST: Final = 8
"""Minimum number of rounds."""


def cost_cell(threads: int) -> Cell:
    """The engine for measurements: the dense model, with vLLM's default chunk size."""
    return Cell(context=2000, chunk=2048, threads=threads)


def measure_pairs(engine: Engine, rounds: int) -> Iterator[Row]:
    """Yield one row for each kind of work in each round, until all intervals are narrow. Which side is first alternates."""
    draw = random.Random(3)  # noqa: S311 # the same prompts for stock and ours
    prompts = {
        name: [engine.random_prompt(draw, length) for _ in range(count)] for name, (count, length, _) in WORK.items()
    }
    facts = environment_facts(engine)
    for name, (_, _, tokens) in WORK.items():
        engine.measure_time(prompts[name], tokens)
    rows: list[Row] = []
    for at in range(rounds):
        for name, (_, _, tokens) in WORK.items():
            rows.append(
                {"cell": "cost", "work": name} | _measure_pair(engine, prompts[name], tokens, first=at % 2 == 0) | facts
            )
            yield rows[-1]
        if at >= LEAST and is_settled(rows):
            return


def _measure_pair(engine: Engine, prompts: Sequence[list[int]], tokens: int, *, first: bool) -> Row:
    """Measure wall and CPU seconds of both sides, one right after the other."""
    busy, began = _busy_seconds(), time.perf_counter()
    found: dict[str, Any] = {}
    for on in (first, not first):
        engine.patch(on)
        wall, cpu = engine.measure_time(prompts, tokens)
        found["patched" if on else "stock"] = {"wall": round(wall, 4), "cpu": round(cpu, 4)}
    own = sum(side["cpu"] for side in found.values())
    return found | {"others": round(max(0.0, _busy_seconds() - busy - own) / (time.perf_counter() - began), 2)}


def _busy_seconds() -> float:
    """Busy seconds of all CPUs: user, nice, system, irq, softirq, steal (proc(5))."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[at]) for at in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")
