"""Make the volatile values of two runs equal, so that recordings can be mixed from them.

A time in each answer of a tool is part of every request that repeats the answer: with the one run's answer and the other
run's next, an agent would ask what neither has asked. So each such value is replaced by its counterpart of the first run,
wherever either run has it. The exchanges that come of it are for trials only, and are kept nowhere.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from calls.codec.encoding import Undecodable, decode
from calls.comparison.answer_volatile import Twins, ignored
from calls.model import Body, Chunk, Exchange, Headers, Json, header
from store.diff.cause import ComparedCall, seen, volatile_answers
from store.diff.diff import Diff
from store.diff.steps import Step, StepReader

_LONG: Final = 8
"""Characters from which a value is told from others by itself; a shorter one needs the name of its member."""

type _Value = tuple[str | None, str]
"""A value as a text, with the name of its member where it needs one."""


@dataclass(slots=True)
class _Counterparts:
    """Values that stand for each other, as a forest: each leads to the one that replaces it (union-find)."""

    _above: dict[_Value, _Value] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    def add(self, twins: Twins) -> None:
        if not twins.is_time and twins.name is None:
            # An id is one thing's: no two things may become one.
            if self._ids.setdefault(twins.other, twins.one) != twins.one:
                return
            if self._ids.setdefault(f"<{twins.one}", twins.other) != twins.other:
                return
        here, there = self._top((twins.name, twins.one)), self._top((twins.name, twins.other))
        if here != there:
            self._above[there] = here

    def replacements(self) -> dict[_Value, str]:
        """Each value that has a counterpart, and by what it is replaced."""
        return {value: self._top(value)[1] for value in self._above}

    def _top(self, value: _Value) -> _Value:
        while value in self._above:
            value = self._above[value]
        return value


def settled(
    one: Sequence[Exchange], other: Sequence[Exchange], diff: Diff, reading: StepReader
) -> tuple[list[Exchange], list[Exchange]] | None:
    """Both runs with equal volatile values; None where they have none."""
    counterparts = _Counterparts()
    here, there = ({each.id: each for each in side} for side in (one, other))
    for _, a, b, _ in diff.pairs():
        if a and b:
            for twins in _pair_twins(_looked(a, here, reading), _looked(b, there, reading)):
                counterparts.add(twins)
    rewriting = _Rewriting(counterparts.replacements())
    if not rewriting.has_work:
        return None
    return [rewriting.exchange(each) for each in one], [rewriting.exchange(each) for each in other]


def _looked(step: Step, held: dict[str, Exchange], reading: StepReader) -> ComparedCall:
    return seen(held[step.ids[0]], held[step.ids[-1]], reading)


def _pair_twins(one: ComparedCall, other: ComparedCall) -> Iterator[Twins]:
    if (found := volatile_answers(one, other, ids=True)) is not None:
        yield from found.volatile
    named = zip(ignored(one.call.answer, one.ignored), ignored(other.call.answer, other.ignored), strict=False)
    for (name, a), (_, b) in named:
        here, there = _written(a), _written(b)
        if here is not None and there is not None and here != there:
            is_long = min(len(here), len(there)) >= _LONG
            yield Twins(here, there, name=None if is_long else name, is_time=True)


def _written(value: Json) -> str | None:
    """A value as it stands in JSON, without quotes."""
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, bool) else str(value)


class _Rewriting:
    """Replaces values in exchanges."""

    def __init__(self, replacements: dict[_Value, str]) -> None:
        self._long = {value: new for (name, value), new in replacements.items() if name is None}
        for value, new in list(self._long.items()):
            self._long.setdefault(quote(value, safe=""), quote(new, safe=""))
        self._short = {(name, value): new for (name, value), new in replacements.items() if name is not None}
        found = "|".join(re.escape(value) for value in sorted(self._long, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{found})(?![A-Za-z0-9])") if found else None

    @property
    def has_work(self) -> bool:
        """Whether there is something to replace."""
        return bool(self._long or self._short)

    def exchange(self, exchange: Exchange) -> Exchange:
        request, response = exchange.request, exchange.response
        headers, body = self._message(request.headers, request.body)
        url = self._text(request.url)
        request = replace(request, url=url, headers=headers, body=body)
        if response is not None:
            headers, body = self._message(response.headers, response.body)
            response = replace(response, headers=headers, body=body)
        return replace(exchange, request=request, response=response)

    def _message(self, headers: Headers, body: Body) -> tuple[Headers, Body]:
        coding = header(headers, "content-encoding")
        try:
            plain = decode(body.data, coding)
        except Undecodable:
            return headers, body
        # Latin-1 takes any bytes, and what is looked for is ASCII.
        data = self._text(plain.decode("latin-1")).encode("latin-1", "replace")
        if data == plain:
            return headers, body
        dropped = ("content-encoding", "content-length") if coding else ("content-length",)
        kept = tuple((name, value) for name, value in headers if name.lower() not in dropped)
        at = body.chunks[-1].at if body.chunks else 0
        made = replace(body, data=data, size=len(data), chunks=(Chunk(at=at, offset=0, size=len(data)),))
        return (*kept, ("content-length", str(len(data)))), made

    def _text(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._long[found[0]], text)
        for (name, value), new in self._short.items():
            # In JSON, and in JSON within a text of JSON, where quotes are escaped.
            place = rf'(\\*"{re.escape(name or "")}\\*"\s*:\s*(?:\\*")?){re.escape(value)}(?![\w.])'
            text = re.sub(place, rf"\g<1>{_literal(new)}", text)
        return text


def _literal(text: str) -> str:
    """A text as `re.sub` gives it back unchanged."""
    return text.replace("\\", r"\\")
