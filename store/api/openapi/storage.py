"""Describe what retention and erasure would remove, and what they removed."""

from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from store.api.openapi.values import DESCRIBED, Count, RunName, Time, Uuid

Bytes = Annotated[int, Field(examples=[1_048_576])]
NoWarnings = Annotated[list[str], Field(examples=[[]])]


class ExpirySchema(TypedDict):
    """A run of which something goes."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    project: Annotated[str, Field(examples=["default"])]
    run: RunName
    part: Annotated[Literal["run", "bodies"], Field(examples=["run"])]
    """What goes: the whole run, or the bodies of its requests and responses."""

    rule: Annotated[str, Field(examples=["rule 1"])]
    reason: Annotated[str, Field(examples=["rule 1: older than 1w"])]
    newest_at: Time
    """When its newest exchange began."""

    bytes: Bytes
    """What it frees, estimated."""


class KeptRunsSchema(TypedDict):
    """Runs that stay for the same reason."""

    reason: Annotated[str, Field(examples=["pinned"])]
    runs: Count
    bytes: Bytes


class RetentionPlanSchema(TypedDict):
    """What retention would do now, in all projects."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    at: Time
    rules: list[dict[str, Any]]
    """The rules in force, in their order, beginning with those that ship with Playhead. Durations are in seconds."""

    budget: Annotated[int | None, Field(examples=[None])]
    """The size budget in bytes."""

    size: Bytes
    """The size of the database."""

    frees: Bytes
    """What it would free, estimated."""

    runs: Count
    """How many runs something would go of."""

    items: list[ExpirySchema]
    """The first 1,000 of them, the oldest first."""

    kept: list[KeptRunsSchema]
    warnings: NoWarnings


class ClearedDaySchema(TypedDict):
    """What was done to the data of a day."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    day: Annotated[str, Field(examples=["2026-11-01"])]
    way: Annotated[Literal["dropped", "rewritten", "deleted", "postponed"], Field(examples=["dropped"])]
    """`deleted`: its space is used again, but not returned. `postponed`: it was in use, and the next pass does it."""

    before: Bytes
    after: Bytes


class RetentionResultSchema(TypedDict):
    """What retention did."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    runs: Count
    """Runs that went."""

    bodies: Count
    """Runs whose bodies went."""

    freed: Annotated[int, Field(examples=[1_048_576])]
    """Bytes by which the database is smaller; negative if more was stored meanwhile."""

    size: Bytes
    objects: Count
    """Objects that nothing named and that were deleted from object storage."""

    days: list[ClearedDaySchema]
    warnings: NoWarnings


class ErasedFilesSchema(TypedDict):
    """What was erased from files of the data directory."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    spool_bytes: Bytes
    """Bytes of spools that were overwritten: all that is stored."""

    replays: Count
    """Recordings being replayed, their reports and auto sessions."""

    damaged: Count
    """Copies of spool bytes that could not be read."""


class ErasureReportSchema(TypedDict):
    """What was erased, or would be, and where it was."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    erased: Annotated[bool, Field(examples=[True])]
    """False with `dry_run`."""

    runs: list[RunName]
    """The runs that something was erased of."""

    exchanges: list[Uuid]
    rows: Annotated[dict[str, int], Field(examples=[{"exchanges": 1, "calls": 1, "texts": 4}])]
    """Deleted rows by table."""

    files: ErasedFilesSchema
    objects: Count
    """Objects that were deleted from object storage, because nothing else names them."""

    remains: Annotated[list[str], Field(examples=[[]])]
    """What may still have something of it, a sentence each."""

    looked_at: Count
    """With `match`: the exchanges that this request looked into."""

    next: Annotated[str | None, Field(examples=[None])]
    """With `match`: `after` of the next request; null when all is looked into and the files are rewritten."""
