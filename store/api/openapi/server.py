"""Describe the state of the store server."""

from typing import Annotated, Literal, TypedDict

from pydantic import Field

from store.api.openapi.values import DESCRIBED, Count, CursorText, Status, Time


class HealthSchema(TypedDict):
    """The process answers."""

    status: Literal["ok"]


class ReadinessSchema(TypedDict):
    """Whether recordings reach the database."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    status: Literal["ok", "in trouble"]
    troubles: Annotated[dict[str, str], Field(examples=[{}])]
    """What prevents it, by name."""

    spools: Count
    exports: Annotated[dict[str, str], Field(examples=[{}])]
    """Exports that fail, by target: they delay nothing."""


class AuditEntrySchema(TypedDict):
    """One request."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    at: Time
    project: Annotated[str, Field(examples=["default"])]
    token: Annotated[str | None, Field(examples=["dashboards"])]
    """The name of the token; null where none was needed."""

    action: Annotated[str, Field(examples=["read"])]
    """read, export, change or delete."""

    subject: Annotated[str | None, Field(examples=["night"])]
    """The run, call, exchange or replay."""

    path: Annotated[str, Field(examples=["/v1/runs/night/bundle"])]
    status: Status


class AuditPageSchema(TypedDict):
    """One page of the audit log."""

    items: list[AuditEntrySchema]
    next: CursorText
