"""Name the first effect that differs between two compared runs, in the document of their comparison (docs/effects.md)."""

from collections.abc import Mapping, Sequence
from typing import Any

from calls.codec.json import dumps
from store.bundle.bundle import Bundle
from store.effects.first_difference import DifferingEffect, EffectValues, first_difference
from store.effects.observed import EffectReader, ObservedEffect
from store.query.rest_shapes import Shape, rfc3339


def effects_until(step: int | None, starts: Sequence[int]) -> EffectValues:
    """Return what collects the effects before a call; all, if there is none."""
    return EffectValues(until=starts[step - 1] if step and step <= len(starts) else None)


def steps_of_cause(diff: Shape) -> tuple[int | None, int | None]:
    """Return the steps of the first requests that differ; None for each if there are none."""
    for pair in diff["pairs"]:
        if pair["cause"] != "same" and (pair["request"] or pair["volatile"]):
            return pair["a"] and pair["a"]["step"], pair["b"] and pair["b"]["step"]
    return None, None


def shape_with_effect(diff: Shape, one: EffectValues, other: EffectValues) -> Shape:
    """Return the comparison with the first effect that differs, null if none does or a run has none."""
    if not (one.total and other.total):
        return diff
    found = first_difference(one, other, _request_texts(diff))
    return {**diff, "effect": found and _shape(found, diff)}


def shape_with_recorded_effects(
    diff: Shape, one: tuple[Bundle, Sequence[int]], other: tuple[Bundle, Sequence[int]]
) -> Shape:
    """Do the same for recordings in files, each with the times at which its steps began."""
    collected = []
    for step, (bundle, starts) in zip(steps_of_cause(diff), (one, other), strict=True):
        values = effects_until(step, starts)
        readers: dict[str, EffectReader] = {}
        for batch in bundle.effects:
            values.add(readers.setdefault(batch.process, EffectReader()).read(batch))
        collected.append(values)
    return shape_with_effect(diff, *collected)


def _request_texts(diff: Shape) -> tuple[str, str]:
    """Return what each run requested otherwise in the first call that differs."""
    for pair in diff["pairs"]:
        places = [*pair["request"], *pair["volatile"]]
        if places and pair["a"] and pair["b"]:
            one, other = (
                "\n".join(_text(place[side]) for place in places if place.get("only") in (None, side))
                for side in ("a", "b")
            )
            return one, other
    return "", ""


def _text(value: Any) -> str:
    return dumps(value).decode()


def _shape(difference: DifferingEffect, diff: Shape) -> Shape:
    differing_effect = difference.one or difference.other
    assert differing_effect is not None
    return {
        "kind": differing_effect.kind,
        "args": dict(differing_effect.args),
        "task": differing_effect.task,
        "process": differing_effect.process,
        "a": _side(difference.one, difference.texts[0]),
        "b": _side(difference.other, difference.texts[1]),
        "explains": difference.explains,
        "words": _words(difference, differing_effect, diff),
    }


def _side(effect: ObservedEffect | None, text: str) -> Mapping[str, Any] | None:
    return None if effect is None else {"at": effect.at, "happened_at": rfc3339(effect.happened_at), "text": text}


def _words(difference: DifferingEffect, differing_effect: ObservedEffect, diff: Shape) -> str:
    places = [effect.at for effect in (difference.one, difference.other) if effect is not None]
    where = places[0] if len(set(places)) == 1 else f"{places[0]} (of B: {places[-1]})"
    request = f"{differing_effect.kind} {differing_effect.name}".rstrip()
    step = steps_of_cause(diff)[0] or steps_of_cause(diff)[1]
    because = f", which is in the request of step {step}" if difference.explains else ""
    return f"{request} at {where} gave {difference.texts[0]} in A, {difference.texts[1]} in B{because}"
