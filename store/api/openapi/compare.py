"""Describe comparisons of runs, and changes of the models behind their names."""

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


class DriftSchema(TypedDict):
    """Changes of the models behind their names, newest first."""

    items: list[ModelChangeSchema]
    next: CursorText
    variants: list[ModelVariantSchema]
    answers: list[RepeatedAnswersSchema]
    settled: NotRequired[IsSettled]
