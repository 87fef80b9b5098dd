"""Describe the state of the store server."""

from typing import Annotated, Literal, TypedDict

from pydantic import Field

from store.api.openapi.values import DESCRIBED, Count


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
