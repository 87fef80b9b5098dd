"""Describe where the money of a run went."""

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

from store.api.openapi.values import (
    DESCRIBED,
    Count,
    Host,
    IsSettled,
    Kind,
    Model,
    Provider,
    RunName,
    Status,
    Step,
    Time,
    TokenCountsSchema,
    Usd,
    Uuid,
)


class AmountsSchema(TypedDict):
    """Tokens and costs."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    usage: TokenCountsSchema
    cost_usd: Usd | None
    """Null where the price of some call is unknown, and where no model was called."""

    known_cost_usd: Usd | None
    """The cost of the calls whose price is known."""

    calls_without_price: Count


class RunTotalSchema(AmountsSchema):
    """The sums of the whole run."""

    calls: Count


class DividedPromptSchema(AmountsSchema):
    """Amounts, and the division of the prompt; an estimate."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    new_tokens: Count | None
    """Tokens of the prompt that no earlier step of the branch sent; null where that is unknown."""

    repeated_tokens: Count | None
    """Tokens of the prompt that an earlier step of the branch sent."""


class CostStepSchema(DividedPromptSchema):
    """A step and its share of the cost."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    step: Step
    call: Uuid
    started_at: Time
    kind: Kind
    provider: Provider
    name: Annotated[str, Field(examples=["gpt-4o-mini chat"])]
    """The model and the operation, or the tool."""

    model: Model | None
    """The model that answered, else the requested one."""

    operation: Annotated[str, Field(examples=["chat"])]
    host: Host
    actor: Annotated[str | None, Field(examples=["planner"])]
    branch: Step | None
    """The branch of the run, from 1; null where the call belongs to none."""

    follows: Step | None
    """The newest step that it continues."""

    status: Status | None
    attempts: Step
    prices: Annotated[str | None, Field(examples=["genai-prices/0.2.3"])]
    """The source of the cost."""

    cost_so_far_usd: Usd
    """The known cost of this step and all before it."""


class CostNodeSchema(DividedPromptSchema):
    """The sums of a run, an actor, a branch, a model or a tool."""

    kind: Literal["run", "actor", "branch", "model", "tool", "retrieval", "other"]
    name: Annotated[str, Field(examples=["branch 1"])]
    first_step: Step | None
    calls: Count
    children: Annotated[list["CostNodeSchema"], Field(examples=[[]])]


class RunCostSchema(TypedDict):
    """Where the money of a run went."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: RunName
    total: RunTotalSchema
    steps: list[CostStepSchema]
    steps_left_out: Count
    """Later steps, which neither `steps` nor `tree` has."""

    tree: CostNodeSchema
    """The steps by actor, branch and model, the most expensive first."""

    estimate: str
    """How `new_tokens` and `repeated_tokens` are made."""

    settled: NotRequired[IsSettled]
