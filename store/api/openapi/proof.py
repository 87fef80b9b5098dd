"""Describe verifications and checkpoints."""

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

from store.api.openapi.values import DESCRIBED, Count, RunName, Step, Time

type Note = Annotated[str, Field(description="a signed note with a checkpoint (C2SP tlog-checkpoint)")]


class FindingSchema(TypedDict):
    """An element that does not fit its proof."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    change: Literal["altered", "removed", "inserted", "reordered", "truncated", "unsigned", "unreachable"]
    element: Annotated[str, Field(examples=["exchange 01a20078-edd5-778b-9029-9b14161f0986 (step 3)"])]
    detail: Annotated[str, Field(examples=["the body of its response differs from what was recorded"])]


class ErasureSchema(TypedDict):
    """Something that was erased, with a record of its erasure."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    id: str | None
    part: Literal["whole", "run", "bodies"]
    at: Time | None
    rule: str | None
    """The rule of retention by which it was erased."""


class AnchorSchema(TypedDict):
    """What a witness or a timestamp authority says about a checkpoint."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    kind: Literal["witness", "timestamp"]
    by: Annotated[str | None, Field(description="the name of the witness, or the URL of the authority")]
    at: Time | None
    """When it says to have signed."""

    checked: bool
    """Whether its signature was checked by a key or root certificate of the settings."""

    problem: str | None


class AskedSchema(TypedDict):
    """Who is asked to vouch for checkpoints."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    kind: Literal["witness", "timestamp"]
    by: str
    problem: str | None
    """Why it has not vouched for the newest one."""


class SealSchema(TypedDict):
    """A chain of the run, and the checkpoint that covers it."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    chain: Annotated[str, Field(description="`INCARNATION/SERVER`: the run's incarnation and the store server")]
    origin: str
    size: Count
    """How many leaves the tree of the checkpoint has."""

    signed_at: Time | None
    """When the store server says to have signed: nothing proves it."""

    unsealed: Count
    """Records of the chain that no checkpoint covers yet."""

    checkpoint: Note
    anchors: list[AnchorSchema]


class VerificationSchema(TypedDict):
    """What checking a run has shown."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: RunName | None
    """Null for the whole project."""

    verdict: Literal["verified", "failed", "unproven"]
    proven: Count
    """Exchanges and gaps that are as they were recorded."""

    unproven: Count
    """Exchanges and gaps without a record."""

    findings: list[FindingSchema]
    erased: list[ErasureSchema]
    signed: None
    """Only of a bundle, which `playhead verify` checks."""

    seals: list[SealSchema]
    asked: list[AskedSchema]


class VerificationsSchema(TypedDict):
    """What checking several runs has shown."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    items: list[VerificationSchema]


class CapturedValueSchema(TypedDict):
    """A value that was seen."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    value: str
    count: Count
    steps: list[Step]
    """The first twenty steps that have it."""


class CapturedSchema(TypedDict):
    """What was captured of one thing, and what was not."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    values: list[CapturedValueSchema]
    missing: list[str]
    """A sentence for whatever was not captured."""

    left_out: NotRequired[Count]
    """How often further values occurred that are not listed."""


class CapturedToolsSchema(CapturedSchema):
    """Tools that were called on the network, and requests that returned results of tools to a model."""

    results_in_requests: list[CapturedValueSchema]


class CapturedTimesSchema(TypedDict):
    """When the first exchange began and the last one ended, by the recorder's clock."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    first: Time | None
    last: Time | None
    missing: list[str]


class MissingSchema(TypedDict):
    """What was not captured."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    missing: list[str]


class CapturedCodeSchema(MissingSchema):
    """The labels that name the version of the agent's code."""

    labels: dict[str, str]


class EnvelopeSchema(TypedDict):
    """What moves between one run and the next, and what of it was captured."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    run: RunName
    steps: Count
    model: CapturedSchema
    fingerprint: CapturedSchema
    sampling: CapturedSchema
    prompt: CapturedSchema
    retrieval: CapturedSchema
    tools: CapturedToolsSchema
    times: CapturedTimesSchema
    conversation: MissingSchema
    code: CapturedCodeSchema
    environment: CapturedSchema


class CheckpointSchema(TypedDict):
    """The newest checkpoint of a project."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    origin: str
    keys: list[str]
    """The verifier keys of the store server, the newest first."""

    size: Count
    signed_at: Time
    note: Note
    consistency: NotRequired[list[str]]
    """The consistency proof from `since` (RFC 6962 2.1.2), hexadecimal hashes."""
