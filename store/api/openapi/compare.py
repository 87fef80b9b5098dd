"""Describe comparisons of runs, changes of the models behind their names, and canaries."""

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

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

Cause = Annotated[
    Literal[
        "same",
        "volatile",
        "order",
        "model",
        "tool_answer",
        "answer",
        "failure",
        "prompt",
        "follows",
        "missing",
        "extra",
    ]
    | None,
    Field(description="null where the pair was not examined", examples=["answer"]),
]


class TotalsSchema(TypedDict):
    """Sums; null where a part is unknown."""

    input_tokens: int | None
    output_tokens: int | None
    cost_usd: Usd | None
    duration_ms: Milliseconds | None


class DiffSideSchema(TotalsSchema):
    """One of the two runs."""

    run: RunName
    calls: Count
    retries: Annotated[Count, Field(description="how many further attempts its calls took", examples=[1])]
    wall_ms: Milliseconds | None


class StepNumbersSchema(TypedDict):
    """A step in both runs."""

    a_step: Step | None
    b_step: Step | None


class DiffVerdictSchema(StepNumbersSchema):
    """A difference in words."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    cause: Cause
    leads_to: Count
    """How many later differences follow from it."""

    words: str


class DiffStepSchema(TypedDict):
    """One call of a pair."""

    step: Step
    call: Uuid
    exchanges: list[Uuid]
    attempts: Count
    actor: str | None
    kind: Kind
    provider: Provider
    operation: str
    method: Method
    host: Host
    path: Path | None
    model_requested: Model | None
    model_returned: Model | None
    system_fingerprint: str | None
    status: Status | None
    outcome: Outcome
    complete: bool
    edited: bool
    """Whether an override edited the answer."""
    key: Digest
    usage: TokenCountsSchema
    cost_usd: Usd | None
    duration_ms: Milliseconds | None


class DifferenceSchema(TypedDict):
    """A place at which two requests or answers differ."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    pointer: Pointer
    a: JsonValue
    b: JsonValue
    only: NotRequired[Literal["a", "b"]]
    """The only run that has this place."""

    words: NotRequired[list[list[str]]]
    """Of texts: what was kept, removed and added."""


class DiffPairSchema(TypedDict):
    """A call of one run and its counterpart."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    cause: Cause
    words: str
    follows: StepNumbersSchema | None
    """The pair from which this difference follows."""

    moved: bool
    a: DiffStepSchema | None
    b: DiffStepSchema | None
    delta: TotalsSchema | None
    request: list[DifferenceSchema]
    volatile: list[DifferenceSchema]
    answer: list[DifferenceSchema]
    more: Count
    """Differences that are not listed."""


class EffectSideSchema(TypedDict):
    """What one run got."""

    at: Annotated[str, Field(examples=["agent.py:12"])]
    happened_at: Time
    text: str


class DiffEffectSchema(TypedDict):
    """The first effect that two runs got differently, such as the time or a file; only one of them may have asked."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    kind: Annotated[str, Field(examples=["datetime.now"])]
    args: dict[str, JsonValue]
    task: str
    process: str
    a: EffectSideSchema | None
    b: EffectSideSchema | None
    explains: bool
    """Whether what each got is in the first requests that differ."""

    words: str


class DiffSchema(TypedDict):
    """Two runs, aligned, from the first call that differs."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    a: DiffSideSchema
    b: DiffSideSchema
    delta: TotalsSchema
    same: bool
    first: DiffVerdictSchema | None
    """The first difference that follows from no other."""

    cause: DiffVerdictSchema | None
    """The first difference from which others follow."""

    roots: Count
    counts: Annotated[dict[str, int], Field(examples=[{"same": 3, "answer": 1}])]
    equal_prefix: Count
    effect: DiffEffectSchema | None
    """Null where a run has no effects, or none differs before the first requests that do."""

    pairs: list[DiffPairSchema]
    settled: NotRequired[IsSettled]


class ModelVersionSchema(TypedDict):
    """A model as its answers name it."""

    model_returned: Model
    system_fingerprint: str | None


class RepeatsSchema(TypedDict):
    """How often a request was repeated."""

    asked_again: Count
    answered_otherwise: Count
    example: list[Uuid] | None


class DriftExamplesSchema(TypedDict):
    """Calls before and after a change."""

    before: list[Uuid]
    after: list[Uuid]


ModelChangeSchema = TypedDict(
    "ModelChangeSchema",
    {
        "provider": Provider,
        "model_requested": Model | None,
        "kind": Literal["model", "fingerprint"],
        "from": ModelVersionSchema,
        "to": ModelVersionSchema,
        "first_at": Time,
        "last_before_at": Time,
        "replaced": bool,
        "rolled_out": bool,
        "calls_before": Count,
        "calls_after": Count,
        "examples": DriftExamplesSchema,
        "same_requests": RepeatsSchema,
    },
)


class ModelVariantSchema(ModelVersionSchema):
    """A model that answered to a name."""

    provider: Provider
    model_requested: Model | None
    calls: Count
    first_at: Time
    last_at: Time
    examples: list[Uuid]


class RepeatedAnswersSchema(RepeatsSchema):
    """How often a model answered the same request differently."""

    provider: Provider
    model_requested: Model | None
    model_returned: Model
    system_fingerprint: str | None
    first_at: Time | None


class LatencySideSchema(TypedDict):
    """The calls before a change of latency, or since."""

    calls: Count
    median_ms: Annotated[float, Field(examples=[412.0])]
    input_tokens: Annotated[float | None, Field(examples=[1250.5])]
    output_tokens: Annotated[float | None, Field(examples=[180.0])]
    """Both of a call on average."""


class LatencyVerdictSchema(TypedDict):
    """Whether a latency changed for good."""

    verdict: Literal["slower", "faster", "same", "unknown"]
    why: Annotated[str | None, Field(examples=["there are fewer than 30 calls before or after each day"])]
    """Why it is unknown."""

    since: Time | None
    ratio: Annotated[float | None, Field(examples=[2.1])]
    """How many times as long the median is."""

    before: LatencySideSchema | None
    after: LatencySideSchema | None


class ModelLatencySchema(TypedDict):
    """Whether a model became slower or faster."""

    provider: Provider
    model_requested: Model
    first_byte: LatencyVerdictSchema
    duration: LatencyVerdictSchema


class DriftSchema(TypedDict):
    """Changes of the models behind their names, newest first."""

    items: list[ModelChangeSchema]
    next: CursorText
    variants: list[ModelVariantSchema]
    answers: list[RepeatedAnswersSchema]
    latencies: list[ModelLatencySchema]
    settled: NotRequired[IsSettled]


class CanaryRulesSchema(TypedDict):
    """How a canary decides."""

    references: Annotated[int, Field(examples=[3])]
    baseline: Annotated[int, Field(examples=[200])]
    effect: Annotated[float, Field(examples=[0.1])]
    false_alarm: Annotated[float, Field(examples=[0.05])]
    embeddings: Annotated[str | None, Field(examples=[None])]
    """The model whose embeddings give distances."""

    judge: Annotated[str | None, Field(examples=["gpt-5-mini"])]
    """The model that judges whether answers mean the same."""


class CanaryExamplesSchema(TypedDict):
    """Exchanges to look at."""

    reference: Uuid | None
    differs: Uuid | None


class CanarySchema(TypedDict):
    """Whether a model still answers as before (docs/canary.md)."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    name: Annotated[str, Field(examples=["refunds"])]
    verdict: Literal["unchanged", "changed", "cannot tell"]
    reason: Annotated[str, Field(examples=["12.0% of the answers say something else, where 0.0% did"])]
    level: Annotated[
        Literal["exact", "structure", "embedding", "judged", "fingerprint"] | None, Field(examples=["exact"])
    ]
    """The level that the numbers are of."""

    rate_before: Annotated[float | None, Field(examples=[0.0])]
    """The share of answers that differed from the reference answers, before the moment that is looked at; of distances, their mean."""

    rate_since: Annotated[float | None, Field(examples=[0.12])]
    effect: Annotated[float | None, Field(examples=[0.12])]
    answers_before: Count
    answers_since: Count
    evidence: Annotated[float, Field(examples=[412.0])]
    """How many times as likely what was seen is if something changed."""

    calls_needed: Annotated[int | None, Field(examples=[44])]
    """How many more calls may decide if nothing changed; null where none are needed, or no number is enough."""

    calls_to_find: Annotated[int | None, Field(examples=[60])]
    """How many calls after a change by the smallest effect that matters are expected to show it."""

    changed_at: Time | None
    stage: Annotated[Literal["model", "traffic", "answers"] | None, Field(examples=["answers"])]
    """What shows the change: the model that an answer names, one in ordinary traffic, or the answers."""

    examples: CanaryExamplesSchema
    models: list[Annotated[str, Field(examples=["gpt-5-2026-08-07"])]]
    reference_answers: dict[str, int]
    """By pinned call, how many reference answers it has."""

    reference_exchanges: dict[str, list[str]]
    """By pinned call, the exchanges of the reference answers."""

    hints: list[Annotated[str, Field(examples=["in ordinary traffic, the fingerprint fp_2 has replaced fp_1"])]]
    """What ordinary traffic showed before the last shot that is no change by itself."""

    rules: CanaryRulesSchema
    calls: Count
    failed: Count
    shots: Count
    began_at: Time
    last_at: Time | None
    last_run: RunName | None
    problem: Annotated[str | None, Field(examples=[None])]
    """What was wrong in the last shot."""


class CanaryShotSchema(CanarySchema):
    """A canary after a shot."""

    is_news: bool
    """Whether it is said to have changed just now."""


class CanaryPageSchema(TypedDict):
    """All canaries of a project, by name."""

    items: list[CanarySchema]
    next: None
