"""Derive the verdict from the results of the self-check. Pure."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Word = Literal["holds", "varies", "inconclusive", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request, bit by bit."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[tuple[int, str], ...], ...]
    """For each position, the top tokens and their logprobs in hexadecimal, so that nothing is rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The results of one request that was sent many times among other requests."""

    name: str
    answers: int
    distinct: int
    texts: int
    """The number of distinct token sequences."""
    diverges_at: int | None
    """The first position at which two token sequences differ."""


def summarize_answers(name: str, answers: Sequence[Answer]) -> Cell:
    """Count the distinct answers, of which there should be one."""
    texts = {answer.tokens for answer in answers}
    return Cell(
        name=name,
        answers=len(answers),
        distinct=len(Counter(answers)),
        texts=len(texts),
        diverges_at=first_divergence(texts),
    )


def first_divergence(texts: Iterable[Sequence[int]]) -> int | None:
    """The first position at which the sequences differ; None if there is none."""
    known = list(texts)
    longest = max(map(len, known), default=0)
    return next((at for at in range(longest) if len({text[at : at + 1] for text in map(tuple, known)}) > 1), None)


CONTROL: Final = "PLAYHEAD_CONTROL"
"""The environment variable with the control's result, if the control ran in another process."""

SAME: Final = ("device", "dtype", "torch")
"""The facts that must be equal for a control and its server."""


def read_control(identity: Mapping[str, Any], result: str | None) -> list[Cell]:
    """Read the control that ran in another process; empty if there was none. Raises ValueError if it does not match."""
    if not result:
        return []
    control = json.loads(result)
    own, other = (
        [{name: worker[name] for name in SAME} for worker in of["workers"]] for of in (identity, control["of"])
    )
    if own != other or any(identity[name] != control["of"][name] for name in ("vllm", "model")):
        raise ValueError("the control is not of this model on this machine")
    if any(worker["mode"] for worker in control["of"]["workers"]):
        raise ValueError("the control ran with vLLM's batch-invariant mode on, so it proves nothing")
    return [Cell(**found) for found in control["cells"]]


def decide_verdict(
    patched: Sequence[Cell],
    control: Sequence[Cell],
    differing: Sequence[str],
    refused: Sequence[str],
    uncovered: Sequence[str] = (),
) -> Word:
    """Decide the verdict.

    It is inconclusive if no control varied, because then the check could not have failed, or if the check did not cover
    everything: `uncovered` lists what is missing.
    """
    if refused:
        return "refused"
    if differing or any(found.distinct > 1 for found in patched):
        return "varies"
    has_control_varied = any(found.distinct > 1 for found in control)
    is_covered = bool(patched) and all(found.answers > 1 for found in patched) and not uncovered
    return "holds" if has_control_varied and is_covered else "inconclusive"


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A digest that two servers share if they can be expected to give the same bits."""
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"
