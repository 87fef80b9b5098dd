"""Describe exchanges and the pieces of their bodies."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from store.api.openapi.values import (
    DESCRIBED,
    Count,
    CursorText,
    Digest,
    IsSettled,
    Method,
    Outcome,
    RunName,
    Status,
    Step,
    Time,
    Uuid,
)

Headers = Annotated[
    list[Annotated[list[str], Field(min_length=2, max_length=2)]],
    Field(examples=[[["content-type", "application/json"]]]),
]


class ExchangeSchema(TypedDict):
    """One request and its response on the wire, without the bodies."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    id: Uuid
    run: RunName
    step: Step
    client_step: int | str | None
    """The step that the client named."""

    actor: str | None
    format: Annotated[int, Field(examples=[1])]
    http_version: Annotated[str | None, Field(examples=["HTTP/1.1"])]
    method: Method
    url: Annotated[str, Field(examples=["https://api.openai.com/v1/chat/completions"])]
    request_headers: Headers
    request_trailers: Headers
    status: Status | None
    reason: Annotated[str | None, Field(examples=["OK"])]
    response_headers: Headers | None
    response_trailers: Headers | None
    request_size: Count
    response_size: Count | None
    request_digest: Digest
    """Of the stored bytes."""

    response_digest: Digest | None
    chunks: Count
    """Pieces of the response."""

    outcome: Outcome
    error: str | None
    truncated: bool
    """Whether bytes were not recorded."""

    reencoded: bool
    """Whether the stored bytes are another encoding of those that passed."""

    redactions: Count | list[Any] | dict[str, Any]
    """What was redacted before it was stored."""

    run_evidence: Annotated[list[list[str]], Field(examples=[[["credentials", "20261121-223011-4b1e"]]])]
    """By what it was assigned to its run."""

    started_at: Time
    first_byte_at: Time | None
    ended_at: Time | None


class ChunkSchema(TypedDict):
    """A piece of a body, as it arrived."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    side: Literal["request", "response"]
    at_ns: Count
    """Nanoseconds since the exchange began."""

    offset: Count
    size: Count
    kind: Annotated[str, Field(examples=["data"])]


class ChunkPageSchema(TypedDict):
    """All pieces of both bodies, those of the request first."""

    items: list[ChunkSchema]
    next: CursorText
    settled: NotRequired[IsSettled]
