"""Find the text and tool calls in a model's whole answer, by the paths that its dialect declares."""

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from functools import cache
from typing import Any

import msgspec

from calls.dialects.dialect import AnswerPaths
from calls.dialects.table import DIALECTS
from calls.model import Json

type MutableJson = Any
"""A JSON value of plain dicts and lists, which can be changed."""


@cache
def answer_paths_by_dialect() -> dict[str, AnswerPaths]:
    """Return where the dialects have the texts and tool calls of an answer, of those that can be edited."""
    return {dialect.name: dialect.answer_paths for dialect in DIALECTS if dialect.answer_paths}


class Spot(msgspec.Struct, frozen=True):
    """A place in an answer: an object or list, and the name or index in it."""

    holder: Any
    name: str | int

    @property
    def value(self) -> MutableJson:
        """The value at this place."""
        return self.holder[self.name]

    def put(self, value: MutableJson) -> None:
        """Replace the value at this place."""
        self.holder[self.name] = value


def copy_mutable(value: Json) -> MutableJson:
    """Copy a JSON value so that it can be changed."""
    match value:
        case Mapping():
            return {name: copy_mutable(one) for name, one in value.items()}
        case list() | tuple():
            return [copy_mutable(one) for one in value]
        case _:
            return value


def find_texts(dialect: str, answer: MutableJson) -> list[Spot]:
    """Find the texts of an answer, in order, without thoughts."""
    places = paths.texts if (paths := answer_paths_by_dialect().get(dialect)) else ()
    found = (spot for place in places for spot in _find_spots(answer, place))
    return [spot for spot in found if isinstance(spot.value, str) and not _is_thought(spot.holder)]


def find_empty_text(dialect: str, answer: MutableJson) -> Spot | None:
    """Find the place of the text in an answer without one, where it is null."""
    places = paths.texts if (paths := answer_paths_by_dialect().get(dialect)) else ()
    return next((spot for place in places for spot in _find_spots(answer, place) if spot.value is None), None)


def find_arguments(dialect: str, answer: MutableJson, tool: str | None) -> list[Spot]:
    """Find the arguments of calls of this tool, or of any tool."""
    places = answer_paths_by_dialect().get(dialect, AnswerPaths(texts=()))
    calls = [spot.value for place in places.calls for spot in _find_spots(answer, place)]
    return [
        Spot(call, name)
        for call in calls
        if isinstance(call, MutableMapping) and "name" in call and tool in (None, call["name"])
        for name in places.arguments
        if name in call
    ]


def _is_thought(holder: MutableJson) -> bool:
    return isinstance(holder, dict) and (holder.get("thought") is True or holder.get("type") == "reasoning_text")


def _find_spots(value: MutableJson, place: str) -> Iterator[Spot]:
    first, _, rest = place.partition("/")
    for name in _matching_names(value, first):
        if rest:
            yield from _find_spots(value[name], rest)
        else:
            yield Spot(value, name)


def _matching_names(value: MutableJson, name: str) -> Iterator[str | int]:
    match value:
        case MutableSequence():
            yield from range(len(value)) if name == "*" else [int(name)] if name.isdecimal() and value else []
        case MutableMapping() if name in value:
            yield name
