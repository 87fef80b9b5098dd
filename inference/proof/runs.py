"""Run an engine: a cell, or the same prompt a thousand times. Each run returns one row of the record."""

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
from playhead_inference.verdict import Answer, summarize_answers
from playhead_inference.versions import require_known_version

from proof.cells import BATCHES, Cell
from proof.engine import Engine

Row = dict[str, Any]


def run_cell(engine: Engine) -> Row:
    """Run a cell, first as stock and then patched, with the same requests."""
    layers = engine.llm.collective_rpc("playhead_layers")[0]
    found: Row = asdict(engine.cell) | {"layers": layers["swept"], "layers_differing": layers["differing"]}
    for side, on in (("stock", False), ("patched", True)):
        engine.patch(on)
        preempted, hit = engine.counters()
        answers = _answer_waves(engine)
        now = engine.counters()
        found[side] = summarize(answers) | {"preemptions": now[0] - preempted, "cached_tokens": now[1] - hit}
    return found | environment_facts(engine)


def run_side(engine: Engine, side: str) -> Row:
    """Run one side of a cell (`stock` or `patched`), if one process cannot run both."""
    preempted, hit = engine.counters()
    answers = _answer_waves(engine)
    now = engine.counters()
    found = summarize(answers) | {"preemptions": now[0] - preempted, "cached_tokens": now[1] - hit}
    return asdict(engine.cell) | {side: found} | environment_facts(engine)


def run_uneven(engine: Engine) -> Row:
    """Send the same short prompt in batches of 33 to 63, without neighbours and never from the prefix cache."""
    found: Row = asdict(engine.cell)
    for side, on in (("stock", False), ("patched", True)):
        engine.patch(on)
        draw = random.Random(4)  # noqa: S311 # likewise
        needle = engine.random_prompt(draw, engine.cell.context)
        found[side] = summarize([answer for count in BATCHES for answer in engine.wave(draw, needle, (count, 0, 0))])
    return found | environment_facts(engine)


def run_operations(engine: Engine) -> Row:
    """Sweep every operation of a traced batch over all numbers of rows, as the self-check does."""
    counts = engine.llm.collective_rpc("playhead_trace", args=(True,))[0]
    requests, tokens = counts["requests"][0], counts["tokens"][-1]
    draw = random.Random(5)  # noqa: S311 # likewise
    lengths = [tokens // requests] * (requests - 1) + [tokens - tokens // requests * (requests - 1)]
    engine.answers([(engine.random_prompt(draw, length), None) for length in lengths], 4)
    engine.llm.collective_rpc("playhead_trace", args=(False,))
    began = time.perf_counter()
    found = engine.llm.collective_rpc("playhead_sweep")[0]
    verdicts = [each for each in found.pop("verdicts") if each["kind"] == "swept"]
    swept = sorted({f"{each['operation']} {each['shape']} {each['sizes']}" for each in verdicts})
    sizes = {"swept_operations": swept, "seconds": round(time.perf_counter() - began, 1)}
    return {"kind": engine.cell.kind, **found, **sizes, **environment_facts(engine)}


def _answer_waves(engine: Engine) -> list[Answer]:
    """Send every wave past the prefix cache; then, if there is one, fill it and hit it; then continue an answer."""
    draw = random.Random(1)  # noqa: S311 # the same company for stock and ours
    cell = engine.cell
    needle = engine.random_prompt(draw, cell.context)
    answers = [answer for wave in cell.waves for answer in engine.wave(draw, needle, wave)]
    if cell.prefix:
        salt = f"shared-since-{engine.request_count}"
        for wave in (cell.waves[0], cell.waves[-1]):
            answers += engine.wave(draw, needle, wave, salt)
    return answers + (_continue_answer(engine, needle, answers[0]) if cell.sampling == "greedy" else [])


def _continue_answer(engine: Engine, needle: list[int], whole: Answer) -> list[Answer]:
    """Request an answer with its beginning in the prompt, as for a preempted request. Only for greedy sampling."""
    found = []
    for at in (at for at in (1, 9, 15) if at < len(whole.tokens)):
        (rest,) = engine.answers([([*needle, *whole.tokens[:at]], None)], len(whole.tokens) - at)
        found.append(Answer(tokens=whole.tokens[:at] + rest.tokens, logprobs=whole.logprobs[:at] + rest.logprobs))
    return found


THOUSAND: Final = Cell(context=560, chunk=2048, answer=4, most=64)


def run_thousand(engine: Engine, asks: int) -> Row:
    """Send the same prompt many times, never from the prefix cache, among long neighbours; a fifth as often to stock."""
    found: Row = asdict(engine.cell)
    for side, on, count in (("stock", False, asks // 5), ("patched", True, asks)):
        engine.patch(on)
        draw = random.Random(2)  # noqa: S311 # likewise
        needle = engine.random_prompt(draw, engine.cell.context)
        answers = [answer for _ in range(count // 50) for answer in engine.wave(draw, needle, (50, 6, 0))]
        found[side] = summarize(answers)
    return found | environment_facts(engine)


def summarize(answers: Sequence[Answer]) -> Row:
    """Count the answers and the distinct ones, with a digest of the first answer's bits."""
    cell = summarize_answers("", answers)
    return {
        "answers": cell.answers,
        "distinct": cell.distinct,
        "texts": cell.texts,
        "digest": answer_digest(answers[0]),
    }


def answer_digest(answer: Answer) -> str:
    """A digest of the first 16 tokens, to compare the bits of different processes."""
    canonical = json.dumps([answer.tokens[:16], answer.logprobs[:16]], separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def environment_facts(engine: Engine) -> Row:
    """The environment of the measurement."""
    worker = engine.llm.collective_rpc("playhead_facts")[0]
    names = ("device", "isa", "threads", "torch", "dtype", "mode")
    return {"vllm": require_known_version(), "patch": patch_digest(), **{name: worker[name] for name in names}}


PATCHES: Final = ("attention", "elementwise", "matmul", "sampling", "switch", "threads", "tiles")
"""The modules that change what the engine computes.

The rows of the record belong to one version of their code: even a renamed variable in them calls for a new record.
"""


def patch_digest() -> str:
    """A digest of the installed code of `PATCHES`, without comments and docstrings, to which a row applies."""
    found = hashlib.sha256()
    for name in PATCHES:
        found.update(_code_only((Path(playhead_inference.__file__).parent / f"{name}.py").read_text("utf-8")).encode())
    return found.hexdigest()[:12]


def _code_only(source: str) -> str:
    """Code without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [
                each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return ast.dump(tree)
