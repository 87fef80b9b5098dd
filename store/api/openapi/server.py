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


class SessionSchema(TypedDict):
    """What the token of a request allows."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    token: Annotated[str | None, Field(examples=["dashboards"])]
    """The name of the token; null where none is needed."""

    scopes: Annotated[list[str], Field(examples=[["runs:read"]])]
    project: Annotated[str, Field(examples=["default"])]
    """The project that the request asks about."""

    all_projects: bool
    """Whether it may ask about every project."""

    needs_token: bool
    """Whether this store server requires tokens."""

    has_cookie: bool
    """Whether the request has a session cookie of the web page."""

    version: Annotated[str, Field(examples=["0.1.0"])]
    mode: Annotated[str, Field(examples=["record"])]
    """The mode of the workers."""

    proxy: Annotated[str | None, Field(examples=["http://127.0.0.1:8080"])]
    """The proxy of this `playhead up`, where clients need no token for it."""

    fork_agent: Annotated[str | None, Field(examples=["http://127.0.0.1:9000/start"])]
    """The configured URL that starts an agent for a fork."""


class LoginCodeSchema(TypedDict):
    """A code that opens one session of the web page."""

    __pydantic_config__ = DESCRIBED  # type: ignore[misc] # pydantic's place for it
    code: Annotated[str, Field(examples=["Zr0x3dFQ7m2J"])]
    expires_in: Count
    """Seconds."""


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
