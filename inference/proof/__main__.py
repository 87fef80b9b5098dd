"""`python -m proof CELL…`, run in inference/ by the environment's Python: one JSON line for each cell.

`python -m proof --list` names the cells, `--cost` measures what the patch costs, `--thousand` asks the same 1,000 times.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from playhead_inference.verdict import cell as counted

from proof.cells import CELLS, Cell
from proof.engine import Engine


def proved(models: Path, name: str, cell: Cell, model: Path | None = None) -> dict[str, Any]:
    """One engine: every sampling, stock and then ours."""
    engine = Engine(models, cell, model)
    layers = engine.llm.collective_rpc("playhead_layers")[0]
    found: dict[str, Any] = {"cell": name, **asdict(cell), "layers_differing": layers["differing"]}
    for side, on in (("stock", False), ("patched", True)):
        engine.patch(on)
        before = engine.preemptions()
        for sampling in cell.samplings:
            found[f"{side}_{sampling}"] = _swept(engine, sampling)
        found[f"{side}_preemptions"] = engine.preemptions() - before
    facts = engine.llm.collective_rpc("playhead_facts")[0]
    return {**found, "device": facts["device"], "isa": facts["isa"]}


def _swept(engine: Engine, sampling: str) -> dict[str, Any]:
    draw = random.Random(1)  # noqa: S311 # the same company for stock and ours
    needle = engine.words(draw, engine.cell.context)
    answers = []
    for needles, neighbours in engine.cell.waves:
        answers += engine.wave(draw, needle, needles, neighbours, sampling, shared=False)
    if engine.cell.prefix:
        needles, neighbours = engine.cell.waves[-1]
        answers += engine.wave(draw, needle, needles, neighbours, sampling, shared=True)
    result = counted(sampling, answers)
    return {"answers": result.answers, "distinct": result.distinct, "texts": result.texts}


def thousand(models: Path, asks: int) -> dict[str, Any]:
    """The same prompt again and again, never from the prefix cache, under a load of long neighbours."""
    engine = Engine(models, Cell(context=560, chunk=2048, tokens=4, waves=()))
    found: dict[str, Any] = {"cell": f"{asks} identical", "context": 560}
    for side, on in (("stock", False), ("patched", True)):
        engine.patch(on)
        draw = random.Random(2)  # noqa: S311 # likewise
        needle = engine.words(draw, 560)
        answers = [
            answer for _ in range(asks // 50) for answer in engine.wave(draw, needle, 50, 6, "greedy", shared=False)
        ]
        result = counted("greedy", answers)
        found[side] = {"answers": result.answers, "distinct": result.distinct, "texts": result.texts}
    return found


def cost(models: Path, pairs: int) -> dict[str, Any]:
    """Seconds of stock and ours in turn, on the same work: prompts, answers, and both."""
    engine = Engine(models, Cell(context=2000, chunk=2048))
    draw = random.Random(3)  # noqa: S311 # likewise
    work = {
        "prefill 4 x 1500": ([engine.words(draw, 1500) for _ in range(4)], 1),
        "decode 16 x 32": ([engine.words(draw, 32) for _ in range(16)], 32),
        "one alone, 600 + 24": ([engine.words(draw, 600)], 24),
    }
    found: dict[str, Any] = {"cell": "cost", "pairs": pairs}
    for name, (prompts, tokens) in work.items():
        engine.timed(prompts, tokens)
        found[name] = _compared([_pair(engine, prompts, tokens, at % 2 == 0) for at in range(pairs)])
    return found


def _pair(
    engine: Engine, prompts: list[list[int]], tokens: int, patched_first: bool
) -> dict[bool, tuple[float, float]]:
    """(seconds, CPU seconds) of both, one right after the other."""
    times = {}
    for on in (True, False) if patched_first else (False, True):
        engine.patch(on)
        began = time.process_time()
        times[on] = engine.timed(prompts, tokens), time.process_time() - began
    return times


def _compared(pairs: list[dict[bool, tuple[float, float]]]) -> dict[str, Any]:
    """Ours over stock. On a busy machine the best of each says more than any pair: nobody is faster than the work takes."""
    found: dict[str, Any] = {}
    for at, clock in enumerate(("wall", "cpu")):
        ratios = [times[True][at] / times[False][at] for times in pairs]
        best = {on: min(times[on][at] for times in pairs) for on in (True, False)}
        found[clock] = {
            "median_ratio": round(statistics.median(ratios), 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
            "best_over_best": round(best[True] / best[False], 3),
            "best_stock_s": round(best[False], 3),
        }
    return found


def main() -> None:
    """Each cell in a process of its own, so that an engine leaves no memory behind."""
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "playhead-proof-models")
    parser.add_argument("--model", type=Path, help="a model of yours in place of the cell's")
    parser.add_argument("--cost", type=int, metavar="PAIRS")
    parser.add_argument("--thousand", type=int, metavar="ASKS")
    wanted = parser.parse_args()
    if wanted.list:
        print("\n".join(CELLS))  # noqa: T201 # a script's output
    elif wanted.cost:
        _say(cost(wanted.models, wanted.cost))
    elif wanted.thousand:
        _say(thousand(wanted.models, wanted.thousand))
    elif len(wanted.cells) == 1:
        _say(proved(wanted.models, wanted.cells[0], CELLS[wanted.cells[0]], wanted.model))
    else:
        for name in wanted.cells or CELLS:
            subprocess.run([sys.executable, "-m", "proof", name, "--models", str(wanted.models)], check=False)


def _say(found: dict[str, Any]) -> None:
    # vLLM logs to stdout too: a line of ours is one that begins with a brace.
    print(json.dumps(found), flush=True)  # noqa: T201 # a script's output


if __name__ == "__main__":
    main()
