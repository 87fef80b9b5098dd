"""Make a whole answer of what it says, where no recording has one."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import msgspec

from calls.codec.json import dumps
from calls.model import Headers, Json, ToolCall


class AnswerParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says, whatever the API."""

    operation: str
    """The operation that the request asks for."""
    model: str
    id: str
    """Letters and digits that no other answer has; ids in the answer are made of them."""
    created: int
    """Seconds since the Unix epoch."""
    created_at: str
    """The same time as RFC 3339 has it."""
    text: str | None = None
    """None: the answer only has tool calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Each with an id."""
    finish_reason: str | None = None
    """In the API's own words; None: what the API says of a complete answer."""
    input_tokens: int = 0
    output_tokens: int = 0
    results: tuple[Json, ...] = ()
    """What an answer has that is no turn of a model: vectors, ranks, categories, images, the result of a tool."""
    request: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """The request, where an answer repeats some of it."""
    headers: Headers = ()
    """The headers of the request."""
    host: str = ""
    path: str = ""
    """Where the request goes, as it counts in a key."""

    def finish_word(self, complete: str, with_calls: str) -> str:
        """The finish reason: the given one, or the API's own for an answer with or without tool calls."""
        return self.finish_reason or (with_calls if self.tool_calls else complete)

    @property
    def vectors(self) -> list[list[Json]] | None:
        """The results as vectors; None if one of them is none."""
        found = [list(one) for one in self.results if isinstance(one, list | tuple) and all(map(_is_number, one))]
        return found if found and len(found) == len(self.results) else None

    @property
    def ranks(self) -> list[tuple[Json, Json]] | None:
        """The results as indices of documents with their scores; None if one of them is none."""
        found = [
            (one["index"], one["score"])
            for one in self.results
            if isinstance(one, Mapping) and isinstance(one.get("index"), int) and _is_number(one.get("score"))
        ]
        return found if found and len(found) == len(self.results) else None

    @property
    def words(self) -> list[list[str]] | None:
        """The results as lists of words; None if one of them is none."""
        lists = [one for one in self.results if isinstance(one, list | tuple)]
        found = [[word for word in one if isinstance(word, str)] for one in lists]
        return found if found and list(map(len, found)) == list(map(len, lists)) == _lengths(self.results) else None

    @property
    def pictures(self) -> list[str] | None:
        """The results as images, each by its address or in base64; None if one of them is none."""
        found = [one for one in self.results if isinstance(one, str) and one]
        return found if found and len(found) == len(self.results) else None

    @property
    def openai_usage(self) -> Json:
        """The token counts by the names of OpenAI's completions, which others have too."""
        return {
            "prompt_tokens": self.input_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.input_tokens + self.output_tokens,
        }


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _lengths(values: Sequence[Json]) -> list[int]:
    return [len(one) if isinstance(one, list | tuple) else -1 for one in values]


type AnswerComposer = Callable[[AnswerParts], Json | None]
"""Make an answer; None where an answer to this operation cannot say this."""


def arguments_text(call: ToolCall) -> str:
    """The arguments of a tool call as JSON text."""
    return call.arguments if isinstance(call.arguments, str) else dumps(call.arguments).decode()
