"""Choose the edits of each variation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from calls.perturbation.draws import Draws
from calls.perturbation.edits import AnswerEdit, ToolAnswer, apply_edits

SIZES: Final = (1, 1, 1, 2, 2, 3)
"""How many edits a variation has: mostly one, so that what breaks is plain."""

TRIES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Some edits that are made together."""

    number: int
    edits: tuple[AnswerEdit, ...]


def choose_variations(
    proposals: Sequence[AnswerEdit], answers: Sequence[ToolAnswer], count: int, seed: int
) -> list[Variation]:
    """Return up to `count` different variations; fewer if there are no more. The same seed gives the same ones."""
    by_kind: dict[str, list[AnswerEdit]] = {}
    for edit in proposals:
        by_kind.setdefault(edit.kind, []).append(edit)
    kinds = sorted(by_kind)
    found: dict[str, Variation] = {}
    for number in range(1, count * TRIES + 1):
        if len(found) >= count or not kinds:
            break
        draws = Draws(seed, number)
        edits = [draws.choose(by_kind[draws.choose(kinds)]) for _ in range(draws.choose(SIZES))]
        used = apply_edits(answers, _without_conflicts(edits)).used
        name = repr(used)
        if used and name not in found:
            found[name] = Variation(number=len(found) + 1, edits=tuple(used))
    return list(found.values())


def _without_conflicts(edits: Sequence[AnswerEdit]) -> list[AnswerEdit]:
    """Return the edits with at most one fault for each step, because a second one would only wait for the first."""
    faulty: set[int] = set()
    compatible_edits = []
    for edit in dict.fromkeys(map(_Hashable, edits)):
        if edit.edit.fault is not None:
            if edit.edit.step in faulty:
                continue
            faulty.add(edit.edit.step)
        compatible_edits.append(edit.edit)
    return compatible_edits


@dataclass(frozen=True, slots=True)
class _Hashable:
    """An edit that equals one with the same content, whatever JSON is in it."""

    edit: AnswerEdit

    def __hash__(self) -> int:
        return hash((self.edit.kind, self.edit.step, self.edit.place))
