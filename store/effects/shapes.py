"""Effects as the REST API shows them: one by one, and counted between the calls."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from store.effects.observed import NAMES, SHOWN, ObservedEffect
from store.query.rest_shapes import Shape, rfc3339

RESULTS: Final = 20
"""Results of one item that are returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFilter:
    """Which effects of a run to return."""

    kinds: tuple[str, ...] = ()
    """Kinds, or their beginnings: `time` has `time.time`."""

    process: str | None = None
    step: int | None = None
    """Only those before this call and after the one before it; one more than the last step: those after the last call."""

    def matches(self, effect: ObservedEffect, step: int | None, steps: int) -> bool:
        """Whether to return an effect that came before this step of so many."""
        return (
            (not self.kinds or effect.kind.startswith(self.kinds))
            and self.process in (None, effect.process)
            and self.step in (None, steps + 1 if step is None else step)
        )


@dataclass(slots=True, kw_only=True)
class EffectGroup:
    """The effects between two calls, counted by kind."""

    step: int | None
    """The call before which they happened; None after the last one."""

    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    names: dict[str, dict[str, None]] = field(default_factory=dict)
    first: dict[str, ObservedEffect] = field(default_factory=dict)
    """The first effect of each kind."""

    def add(self, effect: ObservedEffect) -> None:
        """Count an effect."""
        self.count += effect.count
        self.kinds[effect.kind] += effect.count
        earlier = self.first.get(effect.kind)
        if earlier is None or effect.happened_at < earlier.happened_at:
            self.first[effect.kind] = replace(effect, results=effect.results[:1])
        names = self.names.setdefault(effect.kind, {})
        if (name := effect.name) and len(names) < NAMES:
            names[name[:SHOWN]] = None


def sort_groups(groups: Iterable[EffectGroup]) -> list[EffectGroup]:
    """Return groups in the order of the calls, that after the last call last."""
    return sorted(groups, key=lambda group: (group.step is None, group.step or 0))


def step_after(steps: Sequence[int], happened_at: int) -> int | None:
    """Return the number of the first call that began after an effect; None if there is none."""
    place = bisect_right(steps, happened_at)
    return place + 1 if place < len(steps) else None


def effect_shape(effect: ObservedEffect, step: int | None, *, shows_values: bool) -> Shape:
    """Return an effect as the API shows it. What a program gave and got has content, as bodies have."""
    return {
        "kind": effect.kind,
        "process": effect.process,
        "task": effect.task,
        "at": effect.at,
        "happened_at": rfc3339(effect.happened_at),
        "before_step": step,
        "count": effect.count,
        "by": effect.by or None,
        "redacted": effect.is_redacted,
        "args": dict(effect.args) if shows_values else None,
        "results": list(effect.results[:RESULTS]) if shows_values else None,
        "error": dict(effect.error) if shows_values and effect.error else None,
        "text": effect.text if shows_values else None,
    }


def group_shape(group: EffectGroup, *, shows_values: bool) -> Shape:
    """Return the effects between two calls as the API shows them."""
    return {
        "before_step": group.step,
        "count": group.count,
        "kinds": [
            {
                "kind": kind,
                "count": count,
                "at": group.first[kind].at,
                "names": list(group.names[kind]) if shows_values else None,
                "text": group.first[kind].text if shows_values else None,
            }
            for kind, count in sorted(group.kinds.items(), key=lambda one: group.first[one[0]].happened_at)
        ],
    }
