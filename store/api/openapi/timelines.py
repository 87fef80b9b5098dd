"""Describe the timeline, the conversation and the effects of a run."""

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

from store.api.openapi.runs import RunSchema
from store.api.openapi.values import (
    DESCRIBED,
    Count,
    CursorText,
    Host,
    IsSettled,
    JsonValue,
    Kind,
    Method,
    Milliseconds,
    Model,
    Outcome,
    Path,
    Provider,
    RunName,
    Status,
    Step,
    Time,
    TokenCountsSchema,
    Usd,
    Uuid,
)

Next = Annotated[int | None, Field(description="`after` of the next page; null on the last page", examples=[None])]
Actor = Annotated[str, Field(examples=["planner"])]


class LaneSchema(TypedDict):
    """A row of the waterfall, whose steps follow one another."""

    actor: Actor | None
    branches: list[Step]


class TimelineAttemptSchema(TypedDict):
    """One exchange of a step."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    exchange: Uuid
    poll: bool
    """Whether it asks for the state of work that an earlier exchange of the step began."""

    status: Status | None
    outcome: Outcome
    start_ms: Milliseconds
    first_byte_ms: Milliseconds | None
    end_ms: Milliseconds | None


class TimelineStepSchema(TypedDict):
    """A step: when, where, what it cost and how it ended. Times are since the run began."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    step: Step
    call: Uuid
    kind: Kind
    provider: Provider
    operation: Annotated[str, Field(examples=["chat"])]
    host: Host
    method: Method
    path: Path | None
    label: Annotated[str, Field(examples=["gpt-4o-mini"])]
    """The model, the tool, or the method and path."""

    model: Model | None
    actor: Actor | None
    branch: Step | None
    complete: bool
    streamed: bool
    finish_reason: Annotated[str | None, Field(examples=["stop"])]
    answer_state: Literal["error", "partial", "unkept"] | None
    """As that of the call."""

    origin: Literal["recorded", "edited", "live", "refused"] | None
    """In a fork: where the answer is from."""

    lane: Count
    """The place of its lane in `lanes`."""

    follows: list[Step]
    """The steps that it continues, the newest first."""

    status: Status | None
    outcome: Outcome
    failed: bool
    error: Annotated[str | None, Field(examples=["Rate limit reached"])]
    """Why it failed."""

    tries: Step
    attempts: list[TimelineAttemptSchema]
    attempts_left_out: Count
    """Attempts between those that are listed."""

    start_ms: Milliseconds
    first_byte_ms: Milliseconds | None
    """Of the last attempt, as `end_ms`."""

    end_ms: Milliseconds | None
    thinking_ms: Milliseconds
    """The time before it in which no request of the run was in flight."""

    tools: Annotated[list[str], Field(examples=[["search_tickets"]])]
    """The tools that the answer calls."""

    usage: TokenCountsSchema
    cost_usd: Usd | None
    unpriced: bool
    """Whether it may have cost something, and its price is unknown."""

    cost_so_far_usd: Usd
    tokens_so_far: Count
    excerpt: Annotated[str | None, Field(examples=["There is 1 open ticket."])]
    """The beginning of the answer's text."""


class FirstFailureSchema(TypedDict):
    """The first step that failed."""

    step: Step
    call: Uuid
    label: Annotated[str, Field(examples=["gpt-4o-mini"])]
    status: Status | None
    error: Annotated[str | None, Field(examples=["Rate limit reached"])]


class FailuresSchema(TypedDict):
    """The steps that failed."""

    count: Count
    first: FirstFailureSchema | None


class TimelineGapSchema(TypedDict):
    """Something that passed and was not recorded."""

    at_ms: Milliseconds
    reason: Annotated[str, Field(examples=["disk_full"])]
    count: Count
    exchange: Uuid | None


class TimelineSchema(TypedDict):
    """When a run did what."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: RunSchema
    duration_ms: Milliseconds
    """From its beginning to the end of its last step or gap here."""

    thinking_ms: Milliseconds
    """The sum of that of the steps."""

    lanes: list[LaneSchema]
    steps: list[TimelineStepSchema]
    failed: FailuresSchema
    gaps: list[TimelineGapSchema]
    gaps_left_out: Count
    steps_before: Count
    """Steps of the run before these."""

    steps_left_out: Count
    """Steps of the run after these."""

    next: Next
    settled: NotRequired[IsSettled]


class ShownTextSchema(TypedDict):
    """A text, cut at 4,000 characters."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    text: Annotated[str | None, Field(examples=["There is 1 open ticket."])]
    """Null for a token that may not read bodies."""

    size: Count
    """Characters of all of it."""

    cut: bool


class MessagePartSchema(ShownTextSchema):
    """A part of a message."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    kind: Literal["text", "reasoning", "tool_call", "tool_call_response", "media"]
    id: Annotated[str | None, Field(examples=["call_1"])]
    """Of the tool call."""

    name: Annotated[str | None, Field(examples=["search_tickets"])]
    """Of the tool; the modality of a medium."""

    asked_by: NotRequired[Step | None]
    """Of a result: the step whose answer requested it."""

    executed_by: NotRequired[Step | None]
    """Of a result: the step that executed the tool call."""


class PromptMessageSchema(TypedDict):
    """A message of a prompt."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    index: Count
    """Its place in the prompt, from 0."""

    role: Annotated[str, Field(examples=["user"])]
    echo: Step | None
    """The step whose answer it is, sent back."""

    parts: list[MessagePartSchema]
    parts_left_out: Count


class ComparedPromptSchema(TypedDict):
    """The earlier call with which a prompt was compared."""

    step: Step
    call: Uuid


class NewPromptSchema(TypedDict):
    """What is new in a prompt."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    after: ComparedPromptSchema | None
    repeated: Count
    """Messages that both prompts begin with."""

    dropped: Count
    """Later messages of the earlier prompt, which are not sent again."""

    new: Count
    left_out: Count
    """New messages between those that are listed."""

    messages: list[PromptMessageSchema]
    tools: Annotated[list[str], Field(examples=[["search_tickets"]])]
    """The tools that it offers."""

    tools_changed: bool


class LinkedToolCallSchema(TypedDict):
    """A tool call, and the steps that its result led through."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    id: Annotated[str | None, Field(examples=["call_1"])]
    name: Annotated[str, Field(examples=["search_tickets"])]
    arguments: ShownTextSchema
    executed_by: Step | None
    answered_by: Step | None
    """The step that first brought its result to a model."""


class SpokenAnswerSchema(TypedDict):
    """An answer."""

    reasoning: ShownTextSchema | None
    """What the model thought before it, or the provider's summary, as far as the API returns it."""

    text: ShownTextSchema | None
    tool_calls: list[LinkedToolCallSchema]
    tool_calls_left_out: Count
    error: ShownTextSchema | None


class ExecutedToolCallSchema(TypedDict):
    """The tool call that a call executes."""

    step: Step | None
    call: Uuid
    tool_call: Annotated[str, Field(examples=["call_1"])]


class SpokenCallSchema(TypedDict):
    """What was said in a call: a prompt and an answer, or a request and a response."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    step: Step
    call: Uuid
    kind: Kind
    too_large: bool
    """Whether it is too large to be read here: `GET /v1/calls/{call}` has it."""

    prompt: NewPromptSchema | None
    answer: SpokenAnswerSchema | None
    request: ShownTextSchema | None
    response: ShownTextSchema | None
    executes: ExecutedToolCallSchema | None


class ConversationSchema(TypedDict):
    """What was said in a run."""

    run: RunName
    items: list[SpokenCallSchema]
    next: Next
    settled: NotRequired[IsSettled]


EffectKind = Annotated[str, Field(examples=["datetime.now"])]
EffectPlace = Annotated[str, Field(description="the file and line that asked", examples=["agent.py:12"])]
BeforeStep = Annotated[Step | None, Field(description="the call that it came before; null after the last one")]


class EffectSchema(TypedDict):
    """Something that a program got from elsewhere than the network; equal ones in a row are one item."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    kind: EffectKind
    process: Annotated[str, Field(examples=["0"])]
    task: Annotated[str, Field(examples=["main/answer#2"])]
    """The task or thread, named by who started it and what it runs."""

    at: EffectPlace
    happened_at: Time
    before_step: BeforeStep
    count: Count
    by: Annotated[str | None, Field(examples=["library"])]
    """Null where the program itself asked."""

    redacted: bool
    """Whether something secret was replaced."""

    args: dict[str, JsonValue] | None
    results: list[JsonValue] | None
    """At most 20; of a clock the first and the last, in nanoseconds; of a file the digest, size and beginning of its content."""

    error: dict[str, JsonValue] | None
    """What was raised in place of a result."""

    text: Annotated[str | None, Field(examples=["2028-02-29T12:00:00.000000Z"])]
    """The results, shortened."""


class EffectPageSchema(TypedDict):
    """A page of effects."""

    items: list[EffectSchema]
    next: CursorText
    settled: NotRequired[IsSettled]


class EffectSumSchema(TypedDict):
    """The effects of one kind between two calls."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    kind: EffectKind
    count: Count
    at: EffectPlace
    names: Annotated[list[str] | None, Field(examples=[["policy.txt"]])]
    """Some of what was asked for: paths, variables, commands."""

    text: str | None
    """The result of the first, shortened."""


class EffectGroupSchema(TypedDict):
    """The effects between two calls."""

    before_step: BeforeStep
    count: Count
    kinds: list[EffectSumSchema]


class EffectSumsSchema(TypedDict):
    """The effects of a run between its calls."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    items: list[EffectGroupSchema]
    whole: bool
    """Whether all effects were counted."""

    settled: NotRequired[IsSettled]
