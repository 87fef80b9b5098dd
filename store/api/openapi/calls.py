"""Describe calls, how their keys were made, and their sums."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Field

from store.api.openapi.timelines import NewPromptSchema, ShownTextSchema, SpokenAnswerSchema
from store.api.openapi.values import (
    DESCRIBED,
    Count,
    CursorText,
    Digest,
    Host,
    IsSettled,
    JsonValue,
    Kind,
    Method,
    Milliseconds,
    Model,
    Outcome,
    Path,
    Pointer,
    Provider,
    RunName,
    Status,
    Step,
    Time,
    TokenCountsSchema,
    Usd,
    Uuid,
)


class ToolCallSchema(TypedDict):
    """A tool that a model asked for, or that was called."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    id: Annotated[str | None, Field(examples=["call_1"])]
    name: Annotated[str | None, Field(examples=["search_tickets"])]
    arguments: JsonValue
    """Null in a summary where they are long."""

    executed_by: Uuid | None
    """The call that executed it."""

    answered_by: Uuid | None
    """The call whose request has its result."""


class FollowsSchema(TypedDict):
    """A call that this one continues."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    call: Uuid
    step: Step
    by: list[str]
    """The ids that connect them."""


class ExecutesSchema(TypedDict):
    """The tool call that this call executed."""

    call: Uuid
    step: Step
    tool_call: Annotated[str, Field(examples=["call_1"])]


def _require_all(schema: dict[str, Any]) -> None:
    """Say that no member is missing: only lists leave members out."""
    schema["required"] = [name for name in schema["properties"] if name != "said"]


class _SelectedCall(TypedDict, total=False):
    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: RunName
    step: Step
    exchanges: list[Uuid]
    """Its exchanges: more than one where it was retried or polled."""

    actor: Annotated[str | None, Field(examples=["planner"])]
    kind: Kind
    provider: Provider
    dialect: Annotated[str, Field(examples=["openai_chat"])]
    operation: Annotated[str, Field(examples=["chat"])]
    host: Host
    method: Method
    path: Path | None
    status: Status | None
    model_requested: Model | None
    model_returned: Model | None
    system_fingerprint: Annotated[str | None, Field(examples=["fp_44709d6fcb"])]
    params: Annotated[dict[str, Any], Field(examples=[{"temperature": 0.2}])]
    text: Annotated[str | None, Field(examples=["The refund was sent on Monday."])]
    tool_calls: list[ToolCallSchema]
    finish_reason: Annotated[str | None, Field(examples=["stop"])]
    answer_state: Literal["error", "partial", "unkept"] | None
    """`error`: the answer says that the call failed, whatever its status; `partial`: a part of it did; `unkept`: bytes were not
    recorded, and nothing shows how the answer ended."""

    usage: TokenCountsSchema
    cost_usd: Usd | None
    """Null where the price is unknown."""

    prices: Annotated[str | None, Field(examples=["genai-prices/0.2.3"])]
    """Where the price is from."""

    streamed: bool
    complete: bool
    """Whether the answer ended as its API ends answers."""

    failed: bool
    """Whether it failed: no response, a status from 400 on, an answer that broke off or one that says so."""

    outcome: Outcome
    key: Digest
    """Requests with the same key ask for the same."""

    nth: Count
    """How many calls of the run had this key before."""

    profile: Annotated[str, Field(examples=["openai_chat/1"])]
    warnings: list[str]
    started_at: Time
    first_byte_ms: Milliseconds | None
    duration_ms: Milliseconds | None
    attempts: Count
    branch: Annotated[int | None, Field(examples=[1])]
    """The number of the conversation that it continues, from 1; null where nothing connects it."""

    follows: list[FollowsSchema] | None
    executes: ExecutesSchema | None


class SaidSchema(TypedDict):
    """What was said in a call, shortened."""

    prompt: NewPromptSchema | None
    answer: SpokenAnswerSchema | None
    request: ShownTextSchema | None
    response: ShownTextSchema | None


class _CallBodies(TypedDict, total=False):
    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    request: JsonValue
    answer: JsonValue
    """In the shape of the API's answer that is not streamed."""

    tool_results: list[JsonValue]
    said: NotRequired[SaidSchema]
    """With `content=short` alone."""


class CallSummarySchema(_SelectedCall, _CallBodies):
    """A call in a list: without request, answer and tool results, and with shortened texts; or what `fields` selects."""

    id: Uuid


class CallPageSchema(TypedDict):
    """A page of calls."""

    items: list[CallSummarySchema]
    next: CursorText
    settled: NotRequired[IsSettled]


class CallSchema(CallSummarySchema):
    """One call of a model or a tool, with everything that is known about it."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, json_schema_extra=_require_all)  # type: ignore[misc] # pydantic's place for it


class ExplanationRowSchema(TypedDict):
    """One place of a request and its part in the key."""

    pointer: Pointer
    fate: Literal["key", "unknown", "folded", "renamed", "left out"]
    rule: Annotated[str, Field(examples=["load-bearing"])]
    value: str | None


class ExplanationSchema(TypedDict):
    """How the key of a call was made."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    call: Uuid
    stored_key: Digest
    """Differs from `key` where the profiles have changed since."""

    key: Digest
    strict: Digest
    """The key without any rule."""

    profile: Annotated[str, Field(examples=["openai_chat/1"])]
    dialect: Annotated[str, Field(examples=["openai_chat"])]
    operation: Annotated[str, Field(examples=["chat"])]
    rows: list[ExplanationRowSchema]
    warnings: list[str]
    selected: JsonValue
    """What the key was made from."""

    left_out: list[dict[str, Any]]
    renamed: list[dict[str, Any]]
    folded: list[dict[str, Any]]


SnippetSchema = TypedDict(
    "SnippetSchema",
    {
        "as": Literal["curl", "python", "pytest", "jsonl", "har", "vcr"],
        "file": Annotated[
            str, Field(examples=["night-step-3.sh"], description="a name to save it under, valid on every file system")
        ],
        "text": Annotated[str, Field(description="the command, the code or the contents of the file")],
        "variables": Annotated[
            list[str],
            Field(examples=[["OPENAI_API_KEY"]], description="the environment variables that stand for secrets"),
        ],
        "notes": Annotated[list[str], Field(description="how it differs from what was sent, and what it needs")],
    },
)
"""A call as a command, code or a file."""


class PercentilesSchema(TypedDict):
    """Percentiles in milliseconds; null where nothing was measured."""

    p50: Milliseconds | None
    p90: Milliseconds | None
    p99: Milliseconds | None


class SumsSchema(TypedDict):
    """Counts, tokens, costs and latencies of calls."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    calls: Count
    exchanges: Count
    errors: Count
    usage: TokenCountsSchema
    cost_usd: Usd | None
    """Null where the price of some call is unknown."""

    known_cost_usd: Usd | None
    calls_without_price: Count
    first_byte_ms: PercentilesSchema
    duration_ms: PercentilesSchema


class GroupSchema(SumsSchema):
    """The sums of one group."""

    group: Annotated[dict[str, str | int | None], Field(examples=[{"model": "gpt-4o-mini"}])]


class FoundTextSchema(TypedDict):
    """A text that was found."""

    run: str
    step: Count
    call: str
    role: Literal["prompt", "answer", "arguments", "result"]
    rank: float
    snippet: str
    highlights: list[list[int]]
    """The places in the snippet of what was found, as [start, end)."""

    started_at: Time


class SearchSchema(TypedDict):
    """A page of the texts that fit, and the cursor of the next one."""

    items: list[FoundTextSchema]
    next: CursorText
    settled: NotRequired[IsSettled]


class RebuildSchema(TypedDict):
    """An index that is being made anew."""

    status: Literal["rebuilding"]
    project: Annotated[str, Field(examples=["default"])]


class StatsSchema(TypedDict):
    """Groups of calls, and their total."""

    items: list[GroupSchema]
    total: SumsSchema
    settled: NotRequired[IsSettled]
