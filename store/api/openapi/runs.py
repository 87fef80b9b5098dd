"""Describe runs, their gaps and what an import answers."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Field

from store.api.openapi.values import (
    DESCRIBED,
    Count,
    CursorText,
    IsSettled,
    Labels,
    Model,
    RunName,
    Time,
    TokenCountsSchema,
    Usd,
    Uuid,
)


class RunSchema(TypedDict):
    """One execution of an agent."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    id: RunName
    name: Annotated[str | None, Field(examples=["Night run"])]
    labels: Labels
    started_at: Time
    active_at: Time
    """When something last happened in it."""

    ended_at: Time | None
    """Null while it goes on: until somebody ends it, or nothing happens for half an hour."""

    calls: Count
    exchanges: Count
    gaps: Count
    """What passed and could not be recorded."""

    complete: bool
    """Whether there is no gap, no exchange that is not recorded completely, and no answer that was cut off."""

    pinned: bool
    """Whether retention keeps it."""

    parent: RunName | None
    """The run that it is a fork or a generation of."""

    forked_at: Count | None
    """The last step that it has from its parent."""

    models: list[Model]
    tokens: TokenCountsSchema
    cost_usd: Usd | None
    """Null where the price of some call is unknown."""

    known_cost_usd: Usd | None
    """The cost of the calls whose price is known."""

    unpriced: Count
    """Calls whose price is unknown."""

    profile: Annotated[str | None, Field(examples=["sha256:9f86d081"])]
    """The digest of the profiles under which its keys were made."""

    attribution: Literal["given", "derived", "guessed"] | None
    """How sure it is that its exchanges belong to it: the least sure of them."""

    isolation: Literal["captive", "watched", "none"]
    """How far its command was isolated from the network."""

    head: str | None
    """The digest of its hash chains: of each, its server, size and head. It changes with everything that is stored about the run."""

    mode: NotRequired[Literal["record", "replay", "auto", "passthrough"] | None]
    """The mode for its requests; null for that of the workers."""

    waiting: NotRequired[Count]
    """Questions that wait for a person's answer; only where the run was asked for by itself."""

    settled: NotRequired[IsSettled]


def _require_id(schema: dict[str, Any]) -> None:
    """Say that `fields` may leave out every other member."""
    schema["required"] = ["id"]


class RunItemSchema(RunSchema):
    """A run in a list, with all members or those that `fields` selects."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, json_schema_extra=_require_id)  # type: ignore[misc] # pydantic's place for it


class RunPageSchema(TypedDict):
    """A page of runs."""

    items: list[RunItemSchema]
    next: CursorText
    settled: NotRequired[IsSettled]


class ImportSchema(RunSchema):
    """The run that was imported."""

    imported: Count
    """The number of exchanges that were not stored before."""


class GapSchema(TypedDict):
    """Something that passed and was not recorded."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    happened_at: Time
    reason: Annotated[str, Field(examples=["disk_full"])]
    exchange: Uuid | None
    """The exchange that is incomplete because of it."""


class GapPageSchema(TypedDict):
    """All gaps of a run, oldest first."""

    items: list[GapSchema]
    next: CursorText
    settled: NotRequired[IsSettled]


class AnswerSchema(TypedDict):
    """What a person answered."""

    value: Annotated[str | None, Field(examples=["yes"])]
    """Null for a token that may not read bodies."""

    by: Annotated[str, Field(examples=["ann"])]
    at: Time


class QuestionSchema(TypedDict):
    """What a program asks a person (docs/workflows.md)."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    question: Annotated[str, Field(examples=["6a1c1f0b2a7d4e55"])]
    """The same for the same question in another execution of the program."""

    run: RunName
    prompt: Annotated[str | None, Field(examples=["Refund 120 EUR?"])]
    """Null for a token that may not read bodies."""

    asked_from: Annotated[str, Field(examples=["agent.py:12"])]
    asked_at: Time
    answer: AnswerSchema | None
    """Null while it waits."""


class QuestionPageSchema(TypedDict):
    """The questions that wait, oldest first."""

    items: list[QuestionSchema]
    next: None


class AddedEffectsSchema(TypedDict):
    """How many effects were added."""

    count: Count


class AddedGapsSchema(TypedDict):
    """The gaps that were added."""

    items: list[GapSchema]


class RekeyLineSchema(TypedDict):
    """A line about a run while it is rekeyed, its result, or the last line with the sums."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: NotRequired[RunName]
    done: NotRequired[Count]
    """The exchanges of the run that are done."""

    counts: NotRequired[dict[str, Count]]
    collide: NotRequired[list[dict[str, object]] | Count]
    """Calls that had different keys and now share one, with different answers; in the last line their number."""

    part: NotRequired[list[dict[str, object]] | Count]
    """Calls that shared a key and no longer do; in the last line their number."""

    failed: NotRequired[str | Count]
    """Why the run could not be rekeyed; in the last line the number of such runs."""

    end: NotRequired[Literal[True]]
    """The last line: without it the answer is incomplete."""

    profiles: NotRequired[str]
    dry_run: NotRequired[bool]
    runs: NotRequired[Count]
    calls: NotRequired[Count]
    changed: NotRequired[Count]
    unchanged: NotRequired[Count]


class FacetValueSchema(TypedDict):
    """One value, and how many runs have it."""

    value: Annotated[str, Field(examples=["gpt-5"])]
    runs: Count


class FacetListsSchema(TypedDict):
    """The most frequent values."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    model: list[FacetValueSchema]
    provider: list[FacetValueSchema]
    status: list[FacetValueSchema]
    kind: list[FacetValueSchema]
    host: list[FacetValueSchema]
    actor: list[FacetValueSchema]
    tool: list[FacetValueSchema]
    label: list[FacetValueSchema]
    """NAME=VALUE."""


class FacetsSchema(TypedDict):
    """How many runs have each value."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    runs: Count
    """The runs that were counted."""

    is_complete: bool
    """Whether all runs that fit were counted, and not the newest 2,000 alone."""

    facets: FacetListsSchema
    settled: NotRequired[IsSettled]


class RunReplaySchema(TypedDict):
    """A replay of a run."""

    id: RunName
    verdict: Annotated[str | None, Field(examples=["right"])]


class RunVerifiedSchema(TypedDict):
    """The last verification of a run since the store server started."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    verdict: Literal["verified", "unproven", "failed"]
    at: Time
    is_current: bool
    """Whether nothing was added to the run's records since."""


class RunProofSchema(TypedDict):
    """How far a run is sealed. It is not verified for this."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    is_sealed: bool
    """Whether signed checkpoints cover all of its records, by the tables."""

    sealed_at: Time | None
    """When the checkpoint was signed that covers the newest records that are sealed."""

    verified: RunVerifiedSchema | None


class MarkSchema(TypedDict):
    """What a list shows beside a run."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: RunName
    errors: Count | None
    """Null until they are summed up."""

    duration_ms: Annotated[float | None, Field(examples=[8123.4])]
    replays: list[RunReplaySchema]
    """Newest first."""

    proof: RunProofSchema | None
    """Null for a run without records: one that an earlier version stored, or of which nothing is stored yet."""


class MarksSchema(TypedDict):
    """What a list shows beside its runs, in the order in which they were asked for."""

    items: list[MarkSchema]
