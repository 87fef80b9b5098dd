"""Make a whole answer of what it says, where no recording has one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from calls.codec.json import dumps
from calls.model import Json, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParts:
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
    request: Mapping[str, Json] = field(default_factory=dict)
    """The request, where an answer repeats some of it."""

    def finish_word(self, complete: str, with_calls: str) -> str:
        """The finish reason: the given one, or the API's own for an answer with or without tool calls."""
        return self.finish_reason or (with_calls if self.tool_calls else complete)

    @property
    def openai_usage(self) -> Json:
        """The token counts by the names of OpenAI's completions, which others have too."""
        return {
            "prompt_tokens": self.input_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.input_tokens + self.output_tokens,
        }


type AnswerComposer = Callable[[AnswerParts], Json | None]
"""Make an answer; None where an answer to this operation cannot say this."""


def arguments_text(call: ToolCall) -> str:
    """The arguments of a tool call as JSON text."""
    return call.arguments if isinstance(call.arguments, str) else dumps(call.arguments).decode()
