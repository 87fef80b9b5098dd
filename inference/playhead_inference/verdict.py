"""From what was seen to what may be said. Pure."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Word = Literal["holds", "varies", "inconclusive", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request was answered with, to the bit."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[tuple[int, str], ...], ...]
    """For each position the tokens looked at and their logprobs, in hexadecimal: nothing is rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way of asking the same thing many times, among others."""

    name: str
    answers: int
    distinct: int
    texts: int
    """How many distinct sequences of tokens."""
    diverges_at: int | None
    """The first position at which two sequences of tokens part."""


def cell(name: str, answers: Sequence[Answer]) -> Cell:
    """Count what should have been one."""
    texts = {answer.tokens for answer in answers}
    return Cell(
        name=name,
        answers=len(answers),
        distinct=len(Counter(answers)),
        texts=len(texts),
        diverges_at=first_divergence(texts),
    )


def first_divergence(texts: Iterable[Sequence[int]]) -> int | None:
    """The first position at which not all sequences have the same; None where there is none."""
    known = list(texts)
    longest = max(map(len, known), default=0)
    return next((at for at in range(longest) if len({text[at : at + 1] for text in map(tuple, known)}) > 1), None)


CONTROL: Final = "PLAYHEAD_CONTROL"
"""Has what a process without the patch found, where that had to be another process than the server's."""

SAME: Final = ("device", "dtype", "torch")
"""What a control must share with the server that it is the control of."""


def apart(built: Mapping[str, Any], left: str | None) -> list[Cell]:
    """The control that ran in a process of its own; none where there was none. Raises ValueError for one of something else."""
    if not left:
        return []
    control = json.loads(left)
    ours, theirs = (
        [{name: worker[name] for name in SAME} for worker in of["workers"]] for of in (built, control["of"])
    )
    if ours != theirs or any(built[name] != control["of"][name] for name in ("vllm", "model")):
        raise ValueError("the control is not of this model on this machine")
    if any(worker["mode"] for worker in control["of"]["workers"]):
        raise ValueError("the control ran with vLLM's batch-invariant mode on, so it is none")
    return [Cell(**found) for found in control["cells"]]


def word(
    patched: Sequence[Cell],
    control: Sequence[Cell],
    differing: Sequence[str],
    refused: Sequence[str],
    uncovered: Sequence[str] = (),
) -> Word:
    """The verdict. A check that could not have failed proves nothing: without a control that varied it is inconclusive.

    Nor does one that covers less than the model has: `uncovered` is what it could not look at.
    """
    if refused:
        return "refused"
    if differing or any(found.distinct > 1 for found in patched):
        return "varies"
    varied = any(found.distinct > 1 for found in control)
    looked = bool(patched) and all(found.answers > 1 for found in patched) and not uncovered
    return "holds" if varied and looked else "inconclusive"


def fingerprint(facts: Mapping[str, Any]) -> str:
    """What two servers share that may be expected to give the same bits."""
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"
