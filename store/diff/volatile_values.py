"""Make the volatile values of two runs equal, so that recordings can be mixed from them.

A time in a tool's answer is part of every request that repeats the answer. With an answer of one run followed by one of the
other, an agent would send a request that neither run has. Each such value is therefore replaced by its counterpart in the
first run, wherever it occurs in either run. The resulting exchanges are for trials only and are never stored.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from calls.codec.encoding import Undecodable, decode_content
from calls.comparison.answer_volatile import VolatilePair, ignored_values
from calls.model import Body, Chunk, Exchange, Headers, Json, header
from store.diff.cause import ComparedCall, examine_call, volatile_answers
from store.diff.diff import Diff
from store.diff.steps import Step, StepReader

_LONG: Final = 8
"""Characters from which a value is unique by itself; a shorter one is replaced only under the name of its member."""

type _Value = tuple[str | None, str]
"""The name of a value's member, where it is short, and the value as text."""


@dataclass(slots=True)
class _Counterparts:
    """Values that correspond to each other, as a union-find forest: each leads to the one that replaces it."""

    _above: dict[_Value, _Value] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    def add(self, twins: VolatilePair) -> None:
        if not twins.is_time and twins.name is None:
            # Ids must stay distinct: an id that already has a different counterpart is not replaced.
            if self._ids.setdefault(twins.other, twins.one) != twins.one:
                return
            if self._ids.setdefault(f"<{twins.one}", twins.other) != twins.other:
                return
        here, there = self._top((twins.name, twins.one)), self._top((twins.name, twins.other))
        if here != there:
            self._above[there] = here

    def replacements(self) -> dict[_Value, str]:
        """Return the replacement of each value that has one."""
        return {value: self._top(value)[1] for value in self._above}

    def _top(self, value: _Value) -> _Value:
        while value in self._above:
            value = self._above[value]
        return value


def equalize_volatile_values(
    one: Sequence[Exchange], other: Sequence[Exchange], diff: Diff, reader: StepReader
) -> tuple[list[Exchange], list[Exchange]] | None:
    """Return both runs with equal volatile values; None where there are none to replace."""
    counterparts = _Counterparts()
    here, there = ({each.id: each for each in side} for side in (one, other))
    for _, a, b, _ in diff.pairs():
        if a and b:
            for twins in _pair_twins(_examine_step(a, here, reader), _examine_step(b, there, reader)):
                counterparts.add(twins)
    replacer = _ValueReplacer(counterparts.replacements())
    if not replacer.has_work:
        return None
    return [replacer.replace_in_exchange(each) for each in one], [replacer.replace_in_exchange(each) for each in other]


def _examine_step(step: Step, exchanges: dict[str, Exchange], reader: StepReader) -> ComparedCall:
    return examine_call(exchanges[step.ids[0]], exchanges[step.ids[-1]], reader)


def _pair_twins(one: ComparedCall, other: ComparedCall) -> Iterator[VolatilePair]:
    if (found := volatile_answers(one, other, ids=True)) is not None:
        yield from found.volatile
    pairs = zip(
        ignored_values(one.call.answer, one.ignore_plan),
        ignored_values(other.call.answer, other.ignore_plan),
        strict=False,
    )
    for (name, a), (_, b) in pairs:
        here, there = _json_text(a), _json_text(b)
        if here is not None and there is not None and here != there:
            is_long = min(len(here), len(there)) >= _LONG
            yield VolatilePair(here, there, name=None if is_long else name, is_time=True)


def _json_text(value: Json) -> str | None:
    """Write a value as in JSON, without quotes; None for null, booleans and structures."""
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, bool) else str(value)


class _ValueReplacer:
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

    def replace_in_exchange(self, exchange: Exchange) -> Exchange:
        request, response = exchange.request, exchange.response
        headers, body = self._replace_in_message(request.headers, request.body)
        url = self._replace_in_text(request.url)
        request = replace(request, url=url, headers=headers, body=body)
        if response is not None:
            headers, body = self._replace_in_message(response.headers, response.body)
            response = replace(response, headers=headers, body=body)
        return replace(exchange, request=request, response=response)

    def _replace_in_message(self, headers: Headers, body: Body) -> tuple[Headers, Body]:
        coding = header(headers, "content-encoding")
        try:
            plain = decode_content(body.data, coding)
        except Undecodable:
            return headers, body
        # Latin-1 decodes any bytes, and the values to replace are ASCII.
        data = self._replace_in_text(plain.decode("latin-1")).encode("latin-1", "replace")
        if data == plain:
            return headers, body
        dropped = ("content-encoding", "content-length") if coding else ("content-length",)
        other_headers = tuple((name, value) for name, value in headers if name.lower() not in dropped)
        at = body.chunks[-1].at if body.chunks else 0
        new_body = replace(body, data=data, size=len(data), chunks=(Chunk(at=at, offset=0, size=len(data)),))
        return (*other_headers, ("content-length", str(len(data)))), new_body

    def _replace_in_text(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self._long[match[0]], text)
        for (name, value), new in self._short.items():
            # In JSON, and in JSON within a JSON string, where quotes are escaped.
            place = rf'(\\*"{re.escape(name or "")}\\*"\s*:\s*(?:\\*")?){re.escape(value)}(?![\w.])'
            text = re.sub(place, rf"\g<1>{_literal(new)}", text)
        return text


def _literal(text: str) -> str:
    """Escape a text for use as a replacement in `re.sub`."""
    return text.replace("\\", r"\\")
