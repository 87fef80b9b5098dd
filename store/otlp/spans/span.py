"""What is known of a span before it is encoded."""

from dataclasses import dataclass
from typing import Literal

from store.otlp.spans.attributes import Attributes


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened in a span."""

    at: int
    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A link to a span of another trace."""

    trace: bytes
    span: bytes
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A finished span. Times are nanoseconds since the Unix epoch."""

    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    kind: Literal["client", "internal"]
    started_at: int
    ended_at: int
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    error: str | None = None
    """Why it failed; None if it did not."""
