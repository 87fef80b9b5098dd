"""What is known of a step of a run, wherever it is read from: the database or a file. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from calls.model import Json, is_answer_broken


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One exchange of a step."""

    exchange: str
    started_at: int
    """Nanoseconds of wall time."""

    first_byte: int | None
    """Nanoseconds since it began, as `duration`."""

    duration: int | None
    status: int | None
    outcome: str
    is_poll: bool = False
    """Whether it asks for the state of work that an earlier exchange of the step began."""

    @property
    def end(self) -> int:
        """Nanoseconds of wall time; of an exchange whose end was not seen, the last moment that was."""
        return self.started_at + max(self.duration or 0, self.first_byte or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """A call: its place, its times, its amounts and its end."""

    call: str
    number: int
    kind: str
    provider: str
    operation: str
    host: str
    method: str
    path: str | None
    label: str
    """The model, or the tool, or what was requested of a host."""

    model: str | None
    actor: str | None
    branch: int | None
    follows: Sequence[str] = ()
    """The calls that it continues, as far as ids show it."""

    attempts: Sequence[AttemptFacts]
    tries: int = 1
    """Attempts without polls."""

    complete: bool = True
    streamed: bool = False
    finish_reason: str | None = None
    answer_state: str | None = None
    tools: Sequence[str] = ()
    """The tools that its answer calls."""

    usage: Mapping[str, int | None] = field(default_factory=dict)
    cost: Decimal | None = None
    unpriced: int = 0
    """How many of its requests may have cost something that is not known."""

    error: str | None = None
    origin: str | None = None
    """In a fork: whether it was recorded, edited, live or refused."""

    excerpt: str | None = None
    """The beginning of the answer; None where it is not to be shown."""

    @property
    def started_at(self) -> int:
        """Nanoseconds of wall time."""
        return self.attempts[0].started_at

    @property
    def end(self) -> int:
        """Nanoseconds of wall time."""
        return max(attempt.end for attempt in self.attempts)

    @property
    def has_failed(self) -> bool:
        """Whether its last attempt failed: no response, an error, or an answer that broke off."""
        last = self.attempts[-1]
        return (
            last.status is None
            or last.status >= 400
            or is_answer_broken(
                kind=self.kind,
                streamed=self.streamed,
                status=last.status,
                outcome=last.outcome,
                complete=self.complete,
                finish_reason=self.finish_reason,
                answer_state=self.answer_state,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenCall:
    """What was said in a call."""

    call: str
    number: int
    kind: str
    actor: str | None
    follows: Sequence[str] = ()
    """The calls that it continues, as far as ids show it, the newest first."""

    request: Json = None
    answer: Json = None
    text: str | None = None
    tool_calls: Sequence[Mapping[str, Json]] = ()
    """The `id`, `name` and `arguments` of each tool call that the answer requests."""

    is_large: bool = False
    """Whether it is too large to be read for a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLinks:
    """How the tool calls of a run are connected with its other calls. Both are by call and id of the tool call."""

    executed_by: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The call that executed it."""

    answered_by: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The call that first brought its result to a model."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    """The steps of calls."""
