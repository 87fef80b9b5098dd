"""What the patch costs: stock and ours in turns, in one process, in rounds so short that a quiet moment holds a whole one.

Each pair also says how many CPUs the rest of the machine used meanwhile. On a machine that others use too, only pairs that
had it to themselves say anything of the wall clock; they are picked by that number, which knows nothing of the result. CPU
seconds are counted of all pairs: with OMP_WAIT_POLICY=PASSIVE a thread that waits for another does not spend them.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from proof.cells import Cell
from proof.engine import Engine
from proof.runs import Row, facts
from proof.spread import is_settled

WORK: Final = {"prefill 2 x 1500": (2, 1500, 1), "decode 16 x 16": (16, 32, 16), "alone 600 + 16": (1, 600, 16)}
"""So many prompts of so many tokens, answered with so many."""


LEAST: Final = 8
"""Rounds before an interval is believed."""


def cell(threads: int) -> Cell:
    """The engine it is measured on: the dense model, with the step that vLLM takes by default."""
    return Cell(context=2000, chunk=2048, threads=threads)


def pairs(engine: Engine, rounds: int) -> Iterator[Row]:
    """One row for each kind of work in each round, until each interval is narrow enough; who is first alternates."""
    draw = random.Random(3)  # noqa: S311 # the same prompts for stock and ours
    prompts = {name: [engine.words(draw, length) for _ in range(count)] for name, (count, length, _) in WORK.items()}
    told = facts(engine)
    for name, (_, _, tokens) in WORK.items():
        engine.timed(prompts[name], tokens)
    rows: list[Row] = []
    for at in range(rounds):
        for name, (_, _, tokens) in WORK.items():
            rows.append({"cell": "cost", "work": name} | _pair(engine, prompts[name], tokens, first=at % 2 == 0) | told)
            yield rows[-1]
        if at >= LEAST and is_settled(rows):
            return


def _pair(engine: Engine, prompts: Sequence[list[int]], tokens: int, *, first: bool) -> Row:
    """Wall seconds and CPU seconds of both, one right after the other."""
    busy, began = _busy(), time.perf_counter()
    found: dict[str, Any] = {}
    for on in (first, not first):
        engine.patch(on)
        wall, cpu = engine.timed(prompts, tokens)
        found["patched" if on else "stock"] = {"wall": round(wall, 4), "cpu": round(cpu, 4)}
    own = sum(side["cpu"] for side in found.values())
    return found | {"others": round(max(0.0, _busy() - busy - own) / (time.perf_counter() - began), 2)}


def _busy() -> float:
    """Seconds that this machine's CPUs have worked: user, nice, system, irq, softirq, steal (proc(5))."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[at]) for at in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")
