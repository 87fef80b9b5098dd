"""Describe the reports of replays and forks."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Field

from store.api.openapi.values import Count, IsSettled, Pointer, RunName


class DriftPlaceSchema(TypedDict):
    """A call that was answered although its request differs outside of its key."""

    call: str
    pointers: list[Pointer]


class ForkAgentSchema(TypedDict):
    """What the configured agent answered when it was asked to run a new fork."""

    status: Annotated[int | None, Field(examples=[202])]
    problem: str | None


class ReplayReportSchema(TypedDict):
    """What a replay answered so far, and whether it was as the recording."""

    # Workers of other versions write reports, too.
    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, extra="allow")  # type: ignore[misc] # pydantic's place for it
    id: RunName
    run: RunName
    """The recording that answers."""

    recorded: Count
    """Exchanges of the recording."""

    served: Count
    missed: Count
    unused: Count
    unused_leads: NotRequired[bool]
    """Whether the unused exchanges are the first steps."""

    live: Count
    edited: Count
    ambiguous: Count
    strict: Count
    semantic: Count
    again: Count
    reframed: Count
    drifted: Count
    ids_replaced: NotRequired[Count]
    """Answers in which ids that the client draws were replaced by the present ones."""

    allowed: NotRequired[Count]
    refused: NotRequired[Count]
    refusals: NotRequired[list[dict[str, Any]]]
    answered_by: NotRequired[list[Any]]
    drift: list[DriftPlaceSchema]
    misses: list[dict[str, Any]]
    unused_steps: list[dict[str, Any]]
    first_divergence: dict[str, Any] | None
    verdict: Annotated[Literal["right", "diverged", "unknown"], Field(examples=["right"])]
    allow_unused: bool
    interrupted: bool
    requested: NotRequired[dict[str, Any]]
    """The options that it was created with."""

    fork: NotRequired[dict[str, Any]]
    agent: NotRequired[ForkAgentSchema]
    generation: NotRequired[dict[str, Any] | None]
    """At the end in mode `auto`: the next generation of the run, or why there is none."""

    settled: NotRequired[IsSettled]
