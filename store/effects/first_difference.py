"""Find the first effect that differs between two runs: before a call that differs, the one that explains it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final

from calls.effects.redact_items import MADE_UP
from store.effects.observed import WALL_CLOCKS, ObservedEffect

MOST_VALUES: Final = 100_000
"""Results of one run that are compared. What follows is not."""

_SHORTEST: Final = 4
"""Characters from which on a result is recognised in a request."""

_CLOCKS: Final = (*WALL_CLOCKS, "time.monotonic", "time.perf_counter")

type _Key = tuple[str, str, str, str]
type _Value = tuple[str, ObservedEffect]


@dataclass(slots=True)
class EffectValues:
    """What the tasks of a run got, by process, task, kind and arguments, in order."""

    until: int | None = None
    """The time up to which effects count; None for all."""

    total: int = 0
    by_key: dict[_Key, list[_Value]] = field(default_factory=dict)

    def add(self, effects: Iterable[ObservedEffect]) -> bool:
        """Add effects; return whether more may be added. A result as the one before it is not added again: its number says nothing."""
        for effect in effects:
            if self.until is not None and effect.happened_at > self.until:
                continue
            key = effect.process, effect.task, effect.kind, json.dumps(effect.args, sort_keys=True)
            values = self.by_key.setdefault(key, [])
            for value in [json.dumps(one, sort_keys=True) for one in _values_to_compare(effect)]:
                if self.total < MOST_VALUES and not (values and values[-1][0] == value):
                    values.append((value, effect))
                    self.total += 1
        return self.total < MOST_VALUES


def _values_to_compare(effect: ObservedEffect) -> Sequence[Any]:
    if effect.error is not None:
        return [effect.error]
    return effect.results[:1] if effect.kind in _CLOCKS else effect.results


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingEffect:
    """An effect that two runs got differently; or that only one of them asked for."""

    one: ObservedEffect | None
    other: ObservedEffect | None
    texts: tuple[str, str]
    """What each got, shortened."""

    explains: bool = False
    """Whether what each run got is in the call that differs."""


def first_difference(one: EffectValues, other: EffectValues, requests: tuple[str, str]) -> DifferingEffect | None:
    """Return the effect to name. `requests` are the texts of the first call in which the runs differ, empty if there is none.

    Clocks and random numbers differ between any two runs, so others come before them, and those that are found in the requests before
    all others.
    """
    found = list(_differences(one, other, requests))
    return min(found, key=_rank, default=None)


def _rank(difference: DifferingEffect) -> tuple[bool, bool, bool, int]:
    effect = difference.one or difference.other
    assert effect is not None
    is_volatile = effect.kind in _CLOCKS or effect.kind.startswith((*MADE_UP, "numpy.", "torch."))
    return not difference.explains, is_volatile, None in (difference.one, difference.other), effect.happened_at


def _differences(one: EffectValues, other: EffectValues, requests: tuple[str, str]) -> Iterator[DifferingEffect]:
    """Yield of each key the first result that differs, or the first one that differs and is in the requests."""
    for key in dict.fromkeys((*one.by_key, *other.by_key)):
        pairs = [pair for pair in zip_longest(one.by_key.get(key, ()), other.by_key.get(key, ())) if _differ(*pair)]
        explaining = next((pair for pair in pairs if all(map(_is_in, pair, requests))), None)
        for a, b in [explaining] if explaining else pairs[:1]:
            yield DifferingEffect(
                one=a[1] if a else None,
                other=b[1] if b else None,
                texts=(_text(a), _text(b)),
                explains=explaining is not None,
            )


def _differ(a: _Value | None, b: _Value | None) -> bool:
    return a is None or b is None or a[0] != b[0]


def _text(value: _Value | None) -> str:
    if value is None:
        return "nothing: it was not asked for"
    effect = value[1]
    return effect.text.partition(" … ")[0] if effect.kind in _CLOCKS else effect.text


def _is_in(value: _Value | None, request: str) -> bool:
    return (
        value is not None
        and bool(request)
        and any(len(form) >= _SHORTEST and form in request for form in _forms(*value))
    )


def _forms(value: str, effect: ObservedEffect) -> Iterator[str]:
    """Yield the ways in which a program may write a result into a request."""
    if effect.kind in WALL_CLOCKS:
        seconds = int(json.loads(value)) // 1_000_000_000
        when = datetime.fromtimestamp(seconds, UTC)
        yield from (str(seconds), f"{when:%Y-%m-%d}", f"{when:%d %B}", f"{when.day} {when:%B}", f"{when:%B %d}")
        return
    match json.loads(value):
        case {"$float": str(text)} | {"$int": str(text)} | {"$text": str(text)}:
            yield text
        case {"text": str(text)} if text.strip():
            yield json.dumps(text.strip(), ensure_ascii=False)[1:-1]
        case str() as result:
            yield json.dumps(result.strip(), ensure_ascii=False)[1:-1]
        case int() as result:
            yield str(result)
        case list() as result:
            yield from (json.dumps(one.strip(), ensure_ascii=False)[1:-1] for one in result if isinstance(one, str))
