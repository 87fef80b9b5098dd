"""What is done with an engine: a cell, and the same prompt a thousand times. Each gives one row of the record."""

import ast
import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import playhead_inference
from playhead_inference.verdict import Answer
from playhead_inference.verdict import cell as counted
from playhead_inference.versions import known

from proof.cells import BATCHES, Cell
from proof.engine import Engine

Row = dict[str, Any]


def proved(engine: Engine) -> Row:
    """Stock, then ours, on the same questions in the same company."""
    layers = engine.llm.collective_rpc("playhead_layers")[0]
    found: Row = asdict(engine.cell) | {"layers": layers["swept"], "layers_differing": layers["differing"]}
    for side, on in (("stock", False), ("patched", True)):
        engine.patch(on)
        preempted, hit = engine.counters()
        answers = _swept(engine)
        now = engine.counters()
        found[side] = summed(answers) | {"preemptions": now[0] - preempted, "cached_tokens": now[1] - hit}
    return found | facts(engine)


def half(engine: Engine, side: str) -> Row:
    """Stock or ours alone, where one process cannot be both: `stock` or `patched`, with what a cell's row has of it."""
    preempted, hit = engine.counters()
    answers = _swept(engine)
    now = engine.counters()
    found = summed(answers) | {"preemptions": now[0] - preempted, "cached_tokens": now[1] - hit}
    return asdict(engine.cell) | {side: found} | facts(engine)


def uneven(engine: Engine) -> Row:
    """The same short prompt in batches of 33 to 63, with nothing else, and never from the prefix cache."""
    found: Row = asdict(engine.cell)
    for side, on in (("stock", False), ("patched", True)):
        engine.patch(on)
        draw = random.Random(4)  # noqa: S311 # likewise
        needle = engine.words(draw, engine.cell.context)
        found[side] = summed([answer for count in BATCHES for answer in engine.wave(draw, needle, (count, 0, 0))])
    return found | facts(engine)


def operations(engine: Engine) -> Row:
    """Every operation of a traced batch at every number of rows, as the self-check does it."""
    told = engine.llm.collective_rpc("playhead_trace", args=(True,))[0]
    requests, tokens = told["requests"][0], told["tokens"][-1]
    draw = random.Random(5)  # noqa: S311 # likewise
    lengths = [tokens // requests] * (requests - 1) + [tokens - tokens // requests * (requests - 1)]
    engine.answers([(engine.words(draw, length), None) for length in lengths], 4)
    engine.llm.collective_rpc("playhead_trace", args=(False,))
    began = time.perf_counter()
    found = engine.llm.collective_rpc("playhead_sweep")[0]
    verdicts = [each for each in found.pop("verdicts") if each["kind"] == "swept"]
    swept = sorted({f"{each['operation']} {each['shape']} {each['sizes']}" for each in verdicts})
    sizes = {"swept_operations": swept, "seconds": round(time.perf_counter() - began, 1)}
    return {"kind": engine.cell.kind, **found, **sizes, **facts(engine)}


def _swept(engine: Engine) -> list[Answer]:
    """Every wave cold; where there is a prefix cache, a needle to fill it and the last wave to find it there; continued."""
    draw = random.Random(1)  # noqa: S311 # the same company for stock and ours
    cell = engine.cell
    needle = engine.words(draw, cell.context)
    answers = [answer for wave in cell.waves for answer in engine.wave(draw, needle, wave)]
    if cell.prefix:
        salt = f"shared-since-{engine.asked}"
        for wave in (cell.waves[0], cell.waves[-1]):
            answers += engine.wave(draw, needle, wave, salt)
    return answers + (_continued(engine, needle, answers[0]) if cell.sampling == "greedy" else [])


def _continued(engine: Engine, needle: list[int], whole: Answer) -> list[Answer]:
    """The answer again, its beginning given as prompt: what a preempted request goes through. A drawn one would draw anew."""
    found = []
    for at in (at for at in (1, 9, 15) if at < len(whole.tokens)):
        (rest,) = engine.answers([([*needle, *whole.tokens[:at]], None)], len(whole.tokens) - at)
        found.append(Answer(tokens=whole.tokens[:at] + rest.tokens, logprobs=whole.logprobs[:at] + rest.logprobs))
    return found


THOUSAND: Final = Cell(context=560, chunk=2048, answer=4, most=64)


def thousand(engine: Engine, asks: int) -> Row:
    """The same prompt again and again, never from the prefix cache, under a load of long neighbours. A fifth shows stock."""
    found: Row = asdict(engine.cell)
    for side, on, count in (("stock", False, asks // 5), ("patched", True, asks)):
        engine.patch(on)
        draw = random.Random(2)  # noqa: S311 # likewise
        needle = engine.words(draw, engine.cell.context)
        answers = [answer for _ in range(count // 50) for answer in engine.wave(draw, needle, (50, 6, 0))]
        found[side] = summed(answers)
    return found | facts(engine)


def summed(answers: Sequence[Answer]) -> Row:
    """How many there were of how many, and which bits the first one was."""
    cell = counted("", answers)
    return {"answers": cell.answers, "distinct": cell.distinct, "texts": cell.texts, "digest": digest(answers[0])}


def digest(answer: Answer) -> str:
    """To compare the bits of one process with another's, over as many tokens as all have."""
    canonical = json.dumps([answer.tokens[:16], answer.logprobs[:16]], separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def facts(engine: Engine) -> Row:
    """Under what it was measured."""
    worker = engine.llm.collective_rpc("playhead_facts")[0]
    names = ("device", "isa", "threads", "torch", "dtype", "mode")
    return {"vllm": known(), "patch": patch(), **{name: worker[name] for name in names}}


PATCHES: Final = ("attention", "elementwise", "matmul", "sampling", "switch", "threads", "tiles")
"""The modules that change what the engine computes."""


def patch() -> str:
    """A digest of what is patched, as it is installed and without its comments: a row is about this code and no other."""
    found = hashlib.sha256()
    for name in PATCHES:
        found.update(_said((Path(playhead_inference.__file__).parent / f"{name}.py").read_text("utf-8")).encode())
    return found.hexdigest()[:12]


def _said(source: str) -> str:
    """The code alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [
                each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return ast.dump(tree)
