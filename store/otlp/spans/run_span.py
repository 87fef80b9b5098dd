"""The span of a run, which is the root of its trace."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from calls.codec.json import dumps
from calls.events import Gap
from store.effects.shapes import EffectGroup
from store.otlp.spans.attributes import Attributes
from store.otlp.spans.ids import TraceIds
from store.otlp.spans.limits import cut_text
from store.otlp.spans.span import Span, SpanEvent, SpanLink
from store.query.rest_shapes import Shape

EVENTS: Final = 500
"""Events about effects at most; receivers cut longer lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannedRun:
    """A run whose span is made."""

    shape: Shape
    started_at: int
    ended_at: int
    ids: TraceIds
    parent: TraceIds | None = None
    """The trace of the run that it was forked from, if that still exists."""

    gaps: Sequence[Gap] = ()
    effects: Sequence[EffectGroup] = ()
    """What its programs got from elsewhere than the network, between its calls."""

    shows_content: bool = False
    asked: str | None = None
    """The last message of its first request to a model; None unless content is exported."""

    answered: str | None = None
    """The text of its last answer of a model; None unless content is exported."""


def run_span(run: SpannedRun, names: Mapping[str, str]) -> Span:
    """Make the span of a run."""
    return Span(
        trace=run.ids.trace,
        id=run.ids.root,
        parent=None,
        name=f"invoke_agent {run.shape['name'] or run.shape['id']}",
        kind="internal",
        started_at=run.started_at,
        ended_at=max(run.started_at, run.ended_at),
        attributes=_attributes(run, names),
        events=(*map(_gap_event, run.gaps), *islice(_effect_events(run), EVENTS)),
        links=_links(run),
    )


def _attributes(run: SpannedRun, names: Mapping[str, str]) -> Attributes:
    attributes, shape = Attributes(), run.shape
    put = attributes.put
    put(names["operation"], "invoke_agent")
    put(names["conversation"], shape["id"])
    put(names["agent_name"], shape["name"])
    put("openinference.span.kind", "AGENT")
    put("session.id", shape["id"])
    put("tag.tags", [f"{name}={value}" for name, value in sorted(shape["labels"].items())])
    put(
        "metadata",
        dumps(
            {"labels": shape["labels"], "attribution": shape["attribution"], "isolation": shape["isolation"]}
        ).decode(),
    )
    for text, name in (run.asked, "input"), (run.answered, "output"):
        if text:
            put(f"{name}.value", cut_text(text))
            put(f"{name}.mime_type", "text/plain")
    put("playhead.run", shape["id"])
    for name in ("parent", "forked_at", "calls", "gaps", "complete"):
        put(f"playhead.{name}", shape[name])
    put("playhead.known_cost_usd", shape["known_cost_usd"])
    return attributes


def _gap_event(gap: Gap) -> SpanEvent:
    attributes = Attributes()
    attributes.put("playhead.reason", gap.reason)
    attributes.put("playhead.count", gap.count)
    attributes.put("playhead.exchange", gap.exchange)
    return SpanEvent(gap.happened_at, "playhead.gap", attributes)


def _effect_events(run: SpannedRun) -> Iterator[SpanEvent]:
    """Yield an event for the effects of each kind between two calls."""
    for group in run.effects:
        for kind, count in group.kinds.items():
            first = group.first[kind]
            attributes = Attributes({"playhead.effect.kind": kind})
            attributes.put("playhead.effect.count", count)
            attributes.put("playhead.effect.at", first.at)
            attributes.put("playhead.effect.before_step", group.step)
            if run.shows_content:
                attributes.put("playhead.effect.names", list(group.names[kind]) or None)
                attributes.put("playhead.effect.result", cut_text(first.text))
            yield SpanEvent(first.happened_at, "playhead.effect", attributes)


def _links(run: SpannedRun) -> tuple[SpanLink, ...]:
    if run.parent is None:
        return ()
    attributes = Attributes({"playhead.link": "fork"})
    attributes.put("playhead.forked_at", run.shape["forked_at"])
    return (SpanLink(run.parent.trace, run.parent.root, attributes),)
