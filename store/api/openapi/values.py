"""Declare the values that the schemas share, with examples."""

from typing import Annotated, Any, Literal, TypedDict

from pydantic import ConfigDict, Field

DESCRIBED = ConfigDict(use_attribute_docstrings=True)
"""The docstring of a member is its description."""

Time = Annotated[
    str,
    Field(
        json_schema_extra={"format": "date-time"},
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$",
        examples=["2026-11-21T22:30:11.000000Z"],
    ),
]
RunName = Annotated[str, Field(examples=["20261121-223011-4b1e"])]
Uuid = Annotated[
    str,
    Field(json_schema_extra={"format": "uuid"}, examples=["019aa8c1-35d8-7000-8000-000000000001"]),
]
Digest = Annotated[
    str,
    Field(
        pattern="^sha256:[0-9a-f]{64}$",
        examples=["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ),
]
Count = Annotated[int, Field(ge=0, examples=[3])]
Step = Annotated[int, Field(ge=1, examples=[2])]
Usd = Annotated[float, Field(examples=[0.0042])]
Milliseconds = Annotated[float, Field(examples=[412.345678])]
Status = Annotated[int, Field(examples=[200])]
Model = Annotated[str, Field(examples=["gpt-4o-mini"])]
Provider = Annotated[str, Field(examples=["openai"])]
Host = Annotated[str, Field(examples=["api.openai.com"])]
Path = Annotated[str, Field(examples=["/v1/chat/completions"])]
Method = Annotated[str, Field(examples=["POST"])]
Pointer = Annotated[str, Field(description="an RFC 6901 pointer, shortened", examples=["/body/messages/2/content"])]
CursorText = Annotated[
    str | None, Field(description="`cursor` of the next page; null on the last page", examples=[None])
]
IsSettled = Annotated[bool, Field(description="with `settled=true`: whether everything is stored")]
Labels = Annotated[dict[str, str], Field(examples=[{"branch": "main"}])]
JsonValue = Annotated[Any, Field(description="any JSON")]
Kind = Literal["model", "tool", "retrieval", "other"]
Outcome = Annotated[
    Literal["completed", "client_closed", "server_closed", "timed_out", "refused"], Field(examples=["completed"])
]


class TokenCountsSchema(TypedDict):
    """Counts of tokens. A count that the answer does not state is null."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    input_tokens: Count | None
    """Includes those from a cache."""

    output_tokens: Count | None
    """Includes those of reasoning."""

    cached_tokens: Count | None
    reasoning_tokens: Count | None
