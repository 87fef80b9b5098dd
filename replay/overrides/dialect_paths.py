"""Locate the text and tool calls in a model's whole answer, for each dialect."""

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from typing import Any, Final

from calls.model import Json

type Thawed = Any
"""A JSON value of plain dicts and lists, free to be changed."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a dialect: names and indices, with `*` for every one."""

    texts: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The objects that hold a call's name and its arguments."""

    arguments: tuple[str, ...] = ()
    """How the arguments are called there."""


_CHAT: Final = Places(
    ("choices/0/message/content", "choices/0/message/content/*/text"),
    ("choices/0/message/tool_calls/*/function", "choices/0/message/function_call"),
    ("arguments",),
)
_MESSAGE: Final = Places(("content/*/text",), ("content/*",), ("input",))
_TURN: Final = Places(("output/message/content/*/text",), ("output/message/content/*/toolUse",), ("input",))

PLACES: Final[Mapping[str, Places]] = {
    "openai_chat": _CHAT,
    "openai_responses": Places(("output/*/content/*/text",), ("output/*",), ("arguments", "input")),
    "openai_completions": Places(("choices/0/text",)),
    "anthropic": _MESSAGE,
    "gemini": Places(("candidates/0/content/parts/*/text",), ("candidates/0/content/parts/*/functionCall",), ("args",)),
    "gemini_code": Places(
        ("response/candidates/0/content/parts/*/text",),
        ("response/candidates/0/content/parts/*/functionCall",),
        ("args",),
    ),
    "bedrock_converse": _TURN,
    "bedrock_invoke": Places((*_MESSAGE.texts, *_TURN.texts), (*_MESSAGE.calls, *_TURN.calls), ("input",)),
    "ollama": Places(("message/content", "response"), ("message/tool_calls/*/function",), ("arguments",)),
    "cohere_v1": Places(("text",), ("tool_calls/*",), ("parameters",)),
    "cohere_v2": Places(("message/content/*/text",), ("message/tool_calls/*/function",), ("arguments",)),
}


@dataclass(frozen=True, slots=True)
class Spot:
    """One value in an answer, and what holds it."""

    holder: Any
    name: str | int

    @property
    def value(self) -> Thawed:
        """What stands there."""
        return self.holder[self.name]

    def put(self, value: Thawed) -> None:
        """Put something else there."""
        self.holder[self.name] = value


def thawed(value: Json) -> Thawed:
    """A copy of a JSON value that may be changed."""
    match value:
        case Mapping():
            return {name: thawed(one) for name, one in value.items()}
        case list() | tuple():
            return [thawed(one) for one in value]
        case _:
            return value


def texts(dialect: str, answer: Thawed) -> list[Spot]:
    """The texts of an answer, in their order. What a model only thought is none."""
    places = PLACES[dialect].texts if dialect in PLACES else ()
    found = (spot for place in places for spot in _spots(answer, place))
    return [spot for spot in found if isinstance(spot.value, str) and not _thought(spot.holder)]


def empty_text(dialect: str, answer: Thawed) -> Spot | None:
    """Where the text of an answer would stand that has none: as null, in some dialects."""
    places = PLACES[dialect].texts if dialect in PLACES else ()
    return next((spot for place in places for spot in _spots(answer, place) if spot.value is None), None)


def arguments(dialect: str, answer: Thawed, tool: str | None) -> list[Spot]:
    """The arguments of the calls of a tool, or of any, that an answer asks for."""
    places = PLACES.get(dialect, Places(()))
    calls = [spot.value for place in places.calls for spot in _spots(answer, place)]
    return [
        Spot(call, name)
        for call in calls
        if isinstance(call, MutableMapping) and "name" in call and tool in (None, call["name"])
        for name in places.arguments
        if name in call
    ]


def _thought(holder: Thawed) -> bool:
    return isinstance(holder, dict) and (holder.get("thought") is True or holder.get("type") == "reasoning_text")


def _spots(value: Thawed, place: str) -> Iterator[Spot]:
    first, _, rest = place.partition("/")
    for name in _names(value, first):
        if rest:
            yield from _spots(value[name], rest)
        else:
            yield Spot(value, name)


def _names(value: Thawed, name: str) -> Iterator[str | int]:
    match value:
        case MutableSequence():
            yield from range(len(value)) if name == "*" else [int(name)] if name.isdecimal() and value else []
        case MutableMapping() if name in value:
            yield name
