"""A run as the steps that a diff compares: what is needed of every exchange at once, without its bytes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Final

from calls.codec.canonical import canonical_parsed, digest
from calls.comparison.alignment import Item
from calls.comparison.answer_fingerprint import meaning_digest, news, place
from calls.derive import derived
from calls.keys.key import KeyResult, keyed, raw_digest
from calls.keys.profile import Profiles
from calls.keys.rules import Plan
from calls.model import Call, Exchange, Json, Usage
from calls.redaction.call import Clean, clean_call
from calls.retry_grouping import Part, fold
from store.prices import cost
from store.query.rest_shapes import Shape, dollars, milliseconds, path_of

DOMAIN: Final = "diff/1"

_TOTALS: Final = ("input_tokens", "output_tokens", "cost_usd", "duration_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReader:
    """From an exchange to what it meant."""

    profiles: Profiles
    clean: Clean
    """Takes secrets out of a text."""

    def key(self, exchange: Exchange) -> KeyResult:
        """How its request is keyed."""
        return keyed(exchange.request, self.profiles)

    def ignored(self, call: Call) -> Plan | None:
        """What does not count in its answer."""
        return self.profiles.ignored(call.profile)

    def call(self, exchange: Exchange, key: KeyResult) -> Call:
        """Its call, as it may be shown."""
        return clean_call(derived(exchange, key), self.clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gist:
    """One exchange of a run, as far as a diff needs it before it looks at two calls closely."""

    part: Part
    marks: tuple[str, ...]
    host: str
    said: str
    """Digest of what the answer says."""

    said_whole: str
    """The same with what its profile says to ignore."""

    sent: str
    """Digest of the request as it stands."""

    actor: str | None
    method: str
    path: str | None
    call: Call
    """Without its request and answer."""

    usage: Usage
    usd: Decimal | None
    first_byte_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a run: asked as its first exchange was, answered as its last was."""

    number: int
    """The place of its first exchange among the run's, from 1."""

    ids: tuple[str, ...]
    attempts: int
    asked: Gist
    told: Gist
    alongside: bool
    """Another call of the run was under way at the same time: which came first means nothing."""

    @property
    def item(self) -> Item:
        """What it is aligned by."""
        return Item(marks=self.asked.marks, lane=self.asked.actor)

    @property
    def failed(self) -> bool:
        """Whether no answer came, or a refusal, or only part of one."""
        part = self.told.part
        return part.status is None or part.status >= 400 or not part.complete

    @property
    def duration_ms(self) -> float | None:
        """From the first request to the end of the last answer."""
        end = self.told.part.ended_at
        return None if end is None else milliseconds(end - self.asked.part.started_at)


def gist(exchange: Exchange, reading: StepReader) -> Gist:
    """What a diff keeps of an exchange."""
    key = reading.key(exchange)
    call = reading.call(exchange, key)
    price = cost(exchange, call)
    ignored = reading.ignored(call)
    said = meaning_digest(exchange, call, ignored)
    return Gist(
        part=_part(exchange, call),
        marks=_marks(key, call),
        host=key.route.host,
        said=said,
        said_whole=said if ignored is None else meaning_digest(exchange, call),
        sent=raw_digest(exchange.request),
        actor=exchange.actor,
        method=exchange.request.method,
        path=path_of(exchange.request.url),
        call=_light(call),
        usage=call.usage,
        usd=price.usd if price else None,
        first_byte_at=exchange.first_byte_at,
    )


def _part(exchange: Exchange, call: Call) -> Part:
    return Part(
        id=exchange.id,
        key=call.key,
        started_at=exchange.started_at,
        ended_at=None if exchange.ended_at is None else exchange.started_at + exchange.ended_at,
        status=exchange.response.status if exchange.response else None,
        outcome=exchange.outcome,
        complete=call.complete,
        polls=call.polls,
        pending=call.pending,
    )


def _marks(key: KeyResult, call: Call) -> tuple[str, ...]:
    """From the strictest to the loosest: the key; what is new in the request; what is asked for; who is asked."""
    route = key.route
    where: list[Json] = [route.method, route.upstream, route.place, place(call)]
    marks = ([*where, news(key.selected)], where, [route.upstream, route.kind])
    return key.key, *(digest(DOMAIN, canonical_parsed(mark)) for mark in marks)


def _light(call: Call) -> Call:
    return replace(call, request=None, answer=None, text=None, tool_calls=(), tool_results=(), params={}, warnings=())


def steps(gists: Iterable[Gist]) -> list[Step]:
    """The calls of a run, in their order. The gists come in step order."""
    listed = list(gists)
    numbers = {gist.part.id: number for number, gist in enumerate(listed, 1)}
    by_id = {gist.part.id: gist for gist in listed}
    folded = fold(gist.part for gist in listed)
    spans = [(call.parts[0].started_at, call.parts[-1].ended_at or call.parts[-1].started_at) for call in folded]
    return [
        Step(
            number=numbers[call.ids[0]],
            ids=call.ids,
            attempts=call.attempts,
            asked=by_id[call.ids[0]],
            told=by_id[call.ids[-1]],
            alongside=alongside,
        )
        for call, alongside in zip(folded, _alongside(spans), strict=True)
    ]


def _alongside(spans: Sequence[tuple[int, int]]) -> list[bool]:
    """For each span whether it overlaps another one. They come in the order of their beginnings."""
    found = [False] * len(spans)
    longest = -1
    for number, (start, end) in enumerate(spans):
        if longest >= 0 and start < spans[longest][1]:
            found[number] = found[longest] = True
        if longest < 0 or end > spans[longest][1]:
            longest = number
    return found


def step_shape(step: Step) -> Shape:
    """One side of a pair, for people and programs."""
    asked, told = step.asked, step.told
    return {
        "step": step.number,
        "call": step.ids[0],
        "exchanges": list(step.ids),
        "attempts": step.attempts,
        "actor": asked.actor,
        "kind": asked.call.kind,
        "provider": asked.call.provider,
        "operation": asked.call.operation,
        "method": asked.method,
        "host": asked.host,
        "path": asked.path,
        "model_requested": asked.call.model_requested,
        "model_returned": told.call.model_returned,
        "system_fingerprint": told.call.system_fingerprint,
        "status": told.part.status,
        "outcome": told.part.outcome,
        "complete": told.part.complete,
        "key": asked.call.key,
        "usage": asdict(told.usage),
        "cost_usd": dollars(told.usd),
        "duration_ms": step.duration_ms,
    }


def side_shape(run: str, calls: Sequence[Step]) -> Shape:
    """A whole run, in sums. A sum that lacks a part is null."""
    return {"run": run, "calls": len(calls), **_sums(calls), "wall_ms": _wall(calls)}


def delta(one: Mapping[str, Json], other: Mapping[str, Json]) -> Shape:
    """By how much the other is more, in whatever both know."""
    return {name: _more(one.get(name), other.get(name)) for name in _TOTALS}


def step_delta(one: Step, other: Step) -> Shape:
    """By how much the other call took, said and cost more."""
    return delta(_sums([one]), _sums([other]))


def _more(one: Json, other: Json) -> Json:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return round(other - one, 9) if numbers else None  # type: ignore[operator] # that is what was just asked


def _sums(calls: Sequence[Step]) -> Shape:
    """Tokens and dollars of those that may have any."""
    models = [step.told for step in calls if step.asked.call.kind == "model" and not step.failed]
    usd = _sum([told.usd for told in models])
    return {
        "input_tokens": _sum([told.usage.input_tokens for told in models]),
        "output_tokens": _sum([told.usage.output_tokens for told in models]),
        "cost_usd": dollars(usd) if isinstance(usd, Decimal) else usd,
        "duration_ms": _sum([step.duration_ms for step in calls]),
    }


def _sum[N: (int, float, Decimal)](values: Sequence[N | None]) -> N | int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _wall(calls: Sequence[Step]) -> float | None:
    """From the first request to the last answer."""
    ends = [step.told.part.ended_at for step in calls]
    if not ends or None in ends:
        return None
    return milliseconds(max(end for end in ends if end is not None) - calls[0].asked.part.started_at)
