"""What is known of a canary, and how an answer changes that. It has digests and counts, never what anybody said."""

from typing import Final, Literal

import msgspec

from calls.canary.observation import Observation
from calls.canary.series import Series

type Level = Literal["exact", "structure", "embedding", "judged", "fingerprint"]

LEVELS: Final[tuple[Level, ...]] = ("exact", "structure", "embedding", "judged", "fingerprint")

DISTANCES: Final[tuple[Level, ...]] = ("embedding", "judged")
"""Levels at which an answer has a distance, from 0 to 1, where at the others it differs or does not."""

NEAR: Final = 0.5
"""An answer that is nearer than this is no example of one that differs."""

type Stage = Literal["model", "traffic", "answers"]
"""What shows a change: the model that an answer names, one that answers in ordinary traffic, or the answers themselves."""


class CanaryRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a canary decides. Another value of one of the first two begins it anew."""

    references: int = 3
    """Answers of each pinned call that are the forms which later ones are compared with."""

    baseline: int = 200
    """Answers after them that measure how often an answer differs while nothing has changed."""

    effect: float = 0.1
    """The smallest rise of that rate that matters: without one it is unchanged."""

    false_alarm: float = 0.05
    """The probability that it is ever said to have changed, if it has not; and of the opposite."""

    embeddings: str | None = None
    """The model whose embeddings give distances. Another one begins the level anew."""

    judge: str | None = None
    """The model that judges. Another one begins the level anew."""


class PinnedForms(msgspec.Struct, frozen=True, kw_only=True):
    """The forms of the reference answers of a pinned call."""

    answers: int = 0
    models: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    structure: tuple[str, ...] = ()
    example: str | None = None
    """The exchange of the first."""

    exchanges: tuple[str, ...] = ()
    """The exchanges of all that are known."""


class ChangeFound(msgspec.Struct, frozen=True, kw_only=True):
    """The first time at which it was said to have changed."""

    at: int
    stage: Stage
    reason: str
    example: str | None = None


class CanaryState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a canary."""

    rules: CanaryRules
    began_at: int
    pins: dict[str, PinnedForms] = {}
    exact: Series = Series()
    structure: Series = Series()
    embedding: Series = Series()
    judged: Series = Series()
    fingerprint: Series = Series()
    shots: int = 0
    calls: int = 0
    failed: int = 0
    last_at: int | None = None
    last_run: str | None = None
    problem: str | None = None
    """What was wrong in the last shot."""

    example: str | None = None
    """The last exchange whose answer differed."""

    hints: tuple[str, ...] = ()
    """What ordinary traffic showed before the last shot that is no change by itself."""

    changed: ChangeFound | None = None

    def series(self, level: Level) -> Series:
        """The series of a level."""
        found: Series = getattr(self, level)
        return found

    @property
    def used_levels(self) -> tuple[Level, ...]:
        """The levels at which answers were compared."""
        return tuple(level for level in LEVELS if self.series(level).count)

    def missing_references(self, pin: str) -> int:
        """The number of reference answers that a pinned call lacks."""
        known = self.pins.get(pin)
        return self.rules.references - (known.answers if known else 0)


def begin_canary(rules: CanaryRules, at: int) -> CanaryState:
    """Return the state of a canary that has not asked yet."""
    return CanaryState(rules=rules, began_at=at)


def add_answer(state: CanaryState, pin: str, answer: Observation, at: int) -> CanaryState:
    """Add an answer to a pinned call: to its references, or to the series."""
    state = msgspec.structs.replace(state, calls=state.calls + 1)
    forms = state.pins.get(pin, PinnedForms())
    if state.missing_references(pin) > 0:
        return msgspec.structs.replace(state, pins={**state.pins, pin: _with_reference(forms, answer)})
    differences: dict[Level, float | None] = {
        "exact": answer.exact not in forms.exact,
        "structure": answer.structure not in forms.structure,
        "embedding": answer.embedding,
        "judged": answer.judged,
        "fingerprint": None if answer.fingerprint is None else answer.fingerprint not in forms.fingerprints,
    }
    for level, differs in differences.items():
        if differs is not None:
            state = msgspec.structs.replace(state, **{level: state.series(level).with_answer(differs)})
    distances = [distance for level in DISTANCES if (distance := differences[level]) is not None]
    if differences["exact"] and (differences["structure"] or not distances or max(distances) >= NEAR):
        state = msgspec.structs.replace(state, example=answer.exchange)
    if answer.model is not None and forms.models and answer.model not in forms.models and state.changed is None:
        reason = f"{answer.model} answers {pin}, where {', '.join(forms.models)} did"
        return note_change(state, ChangeFound(at=at, stage="model", reason=reason, example=answer.exchange))
    return state


def note_change(state: CanaryState, changed: ChangeFound) -> CanaryState:
    """Note that something changed, unless that was noted before."""
    return state if state.changed is not None else msgspec.structs.replace(state, changed=changed)


def begin_levels_anew(state: CanaryState, rules: CanaryRules) -> CanaryState:
    """Return the state under rules in which other models may give distances: theirs are a series of their own."""
    embeddings, judge = rules.embeddings or state.rules.embeddings, rules.judge or state.rules.judge
    if embeddings != state.rules.embeddings:
        state = msgspec.structs.replace(state, embedding=Series())
    if judge != state.rules.judge:
        state = msgspec.structs.replace(state, judged=Series())
    return msgspec.structs.replace(state, rules=msgspec.structs.replace(rules, embeddings=embeddings, judge=judge))


def end_shot(state: CanaryState, at: int, *, run: str | None, failed: int, problem: str | None) -> CanaryState:
    """Note the end of a shot: from here something may have changed."""
    moments = {level: state.series(level).with_moment(state.rules.baseline) for level in LEVELS}
    return msgspec.structs.replace(
        state,
        **moments,
        shots=state.shots + 1,
        failed=state.failed + failed,
        last_at=at,
        last_run=run if run is not None else state.last_run,
        problem=problem,
    )


def _with_reference(forms: PinnedForms, answer: Observation) -> PinnedForms:
    return PinnedForms(
        answers=forms.answers + 1,
        models=_with_form(forms.models, answer.model),
        fingerprints=_with_form(forms.fingerprints, answer.fingerprint),
        exact=_with_form(forms.exact, answer.exact),
        structure=_with_form(forms.structure, answer.structure),
        example=forms.example or answer.exchange,
        exchanges=_with_form(forms.exchanges, answer.exchange),
    )


def _with_form(forms: tuple[str, ...], form: str | None) -> tuple[str, ...]:
    return forms if form is None or form in forms else (*forms, form)
