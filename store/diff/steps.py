"""Read a run as the steps that a diff compares: a gist of each exchange, without its bodies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from sys import intern
from typing import Final

from msgspec.structs import replace

from calls.codec.canonical import canonical_parsed_json, digest
from calls.comparison.alignment import AlignedCall
from calls.comparison.answer_fingerprint import answer_digest, call_target, new_input, without_empty_text
from calls.derive import clean_unlabelled_answer, derive_keyed_call
from calls.keys.key import KeyResult, make_key, raw_digest
from calls.keys.profile import Profiles
from calls.keys.rules import Plan
from calls.model import Call, Exchange, Json, Usage, header
from calls.redaction.call import Clean, clean_call
from calls.retry_grouping import Attempt, attempt_of, group_retries
from store.pricing.prices import call_cost
from store.query.rest_shapes import Shape, dollars, milliseconds, path_of

DOMAIN: Final = "diff/1"

_TOTALS: Final = ("input_tokens", "output_tokens", "cost_usd", "duration_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReader:
    """Derives keys and calls from exchanges."""

    profiles: Profiles
    clean: Clean
    """Redacts secrets in a text."""

    def key(self, exchange: Exchange) -> KeyResult:
        """Compute the key of its request."""
        return make_key(exchange.request, self.profiles)

    def ignore_plan(self, call: Call) -> Plan | None:
        """Return the parts of its answer to ignore."""
        return self.profiles.ignored_answer_fields(call.profile)

    def derive_call(self, exchange: Exchange, key: KeyResult) -> Call:
        """Derive the call of an exchange, redacted for display."""
        call = clean_call(derive_keyed_call(clean_unlabelled_answer(exchange, self.clean), key), self.clean)
        return without_empty_text(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gist:
    """What a diff needs of an exchange before it examines calls closely."""

    attempt: Attempt
    marks: tuple[str, ...]
    host: str
    answer_digest: str
    """The digest of the answer's meaning."""

    full_answer_digest: str
    """The digest of the answer's meaning with the parts that its profile ignores."""

    request_digest: str
    """The digest of the whole request."""

    actor: str | None
    method: str
    path: str | None
    call: Call
    """The call without its request and answer."""

    usage: Usage
    usd: Decimal | None
    first_byte_at: int | None
    is_edited: bool
    """Whether an override edited the answer, in a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a run: the request of its first exchange and the answer of its last."""

    number: int
    """The place of its first exchange among the run's, from 1."""

    ids: tuple[str, ...]
    attempts: int
    request: Gist
    answer: Gist
    is_concurrent: bool
    """Whether another call of the run was under way at the same time, so that their order means nothing."""

    @property
    def item(self) -> AlignedCall:
        """The item by which it is aligned."""
        return AlignedCall(marks=self.request.marks, lane=self.request.actor)

    @property
    def has_failed(self) -> bool:
        """Whether the answer is missing, an error, or incomplete."""
        last = self.answer.attempt
        return last.status is None or last.status >= 400 or not last.complete

    @property
    def duration_ms(self) -> float | None:
        """The time from the first request to the end of the last answer."""
        end = self.answer.attempt.ended_at
        return None if end is None else milliseconds(end - self.request.attempt.started_at)


def make_gist(exchange: Exchange, reader: StepReader) -> Gist:
    """Make the gist of an exchange."""
    key = reader.key(exchange)
    call = reader.derive_call(exchange, key)
    price = call_cost(exchange, call)
    ignored = reader.ignore_plan(call)
    meaning = answer_digest(exchange, call, ignored, has_all_thoughts=True)
    return Gist(
        attempt=attempt_of(exchange, call),
        marks=_marks(key, call),
        host=key.route.host,
        answer_digest=meaning,
        full_answer_digest=meaning if ignored is None else answer_digest(exchange, call, has_all_thoughts=True),
        request_digest=raw_digest(exchange.request),
        actor=exchange.actor,
        method=exchange.request.method,
        path=path_of(exchange.request.url),
        call=_without_content(call),
        usage=call.usage,
        usd=price.usd if price else None,
        first_byte_at=exchange.first_byte_at,
        is_edited=_is_edited(exchange),
    )


def _is_edited(exchange: Exchange) -> bool:
    mark = header(exchange.response.headers, "playhead") if exchange.response else None
    return mark is not None and mark.partition(";")[0] == "edited"


def _marks(key: KeyResult, call: Call) -> tuple[str, ...]:
    """Return marks to align by, from the strictest to the loosest: the key, the new part, the operation, the service."""
    route = key.route
    where: list[Json] = [route.method, route.upstream, route.key_path, call_target(call)]
    marks = ([*where, new_input(key.selected_fields)], where, [route.upstream, route.kind])
    # Calls of a run have few destinations, and each text is held once.
    return key.key, *(intern(digest(DOMAIN, canonical_parsed_json(mark))) for mark in marks)


def _without_content(call: Call) -> Call:
    return replace(call, request=None, answer=None, text=None, tool_calls=(), tool_results=(), params={}, warnings=())


def build_steps(gists: Iterable[Gist]) -> list[Step]:
    """Group gists, given in step order, into the calls of a run."""
    listed = list(gists)
    numbers = {gist.attempt.id: number for number, gist in enumerate(listed, 1)}
    by_id = {gist.attempt.id: gist for gist in listed}
    groups = group_retries(gist.attempt for gist in listed)
    spans = [(call.parts[0].started_at, call.parts[-1].ended_at or call.parts[-1].started_at) for call in groups]
    return [
        Step(
            number=numbers[call.ids[0]],
            ids=call.ids,
            attempts=call.attempts,
            request=by_id[call.ids[0]],
            answer=by_id[call.ids[-1]],
            is_concurrent=alongside,
        )
        for call, alongside in zip(groups, _concurrency(spans), strict=True)
    ]


def _concurrency(spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each span whether it overlaps another one. The spans are given in the order of their beginnings."""
    found = [False] * len(spans)
    longest = -1
    for number, (start, end) in enumerate(spans):
        if longest >= 0 and start < spans[longest][1]:
            found[number] = found[longest] = True
        if longest < 0 or end > spans[longest][1]:
            longest = number
    return found


def step_shape(step: Step) -> Shape:
    """Return one side of a pair as the API shows it."""
    request, answer = step.request, step.answer
    return {
        "step": step.number,
        "call": step.ids[0],
        "exchanges": list(step.ids),
        "attempts": step.attempts,
        "actor": request.actor,
        "kind": request.call.kind,
        "provider": request.call.provider,
        "operation": request.call.operation,
        "method": request.method,
        "host": request.host,
        "path": request.path,
        "model_requested": request.call.model_requested,
        "model_returned": answer.call.model_returned,
        "system_fingerprint": answer.call.system_fingerprint,
        "status": answer.attempt.status,
        "outcome": answer.attempt.outcome,
        "complete": answer.attempt.complete,
        "edited": answer.is_edited,
        "key": request.call.key,
        "usage": asdict(answer.usage),
        "cost_usd": dollars(answer.usd),
        "duration_ms": step.duration_ms,
    }


def side_shape(run: str, calls: Sequence[Step]) -> Shape:
    """Return the totals of a run. A total of which a part is unknown is null."""
    retries = sum(step.attempts - 1 for step in calls)
    return {"run": run, "calls": len(calls), "retries": retries, **_totals(calls), "wall_ms": _wall_time(calls)}


def totals_delta(one: Mapping[str, Json], other: Mapping[str, Json]) -> Shape:
    """Return the difference of each total: the other's minus the one's, or null where a side has none."""
    return {name: _numeric_difference(one.get(name), other.get(name)) for name in _TOTALS}


def step_totals_delta(one: Step, other: Step) -> Shape:
    """Return how many more tokens, dollars and milliseconds the other call took."""
    return totals_delta(_totals([one]), _totals([other]))


def _numeric_difference(one: Json, other: Json) -> Json:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return round(other - one, 9) if numbers else None  # type: ignore[operator] # checked in the line above


def _totals(calls: Sequence[Step]) -> Shape:
    """Sum the tokens, cost and duration. Only calls of models that succeeded have tokens and cost."""
    models = [step.answer for step in calls if step.request.call.kind == "model" and not step.has_failed]
    usd = _sum([answer.usd for answer in models])
    return {
        "input_tokens": _sum([answer.usage.input_tokens for answer in models]),
        "output_tokens": _sum([answer.usage.output_tokens for answer in models]),
        "cost_usd": dollars(usd) if isinstance(usd, Decimal) else usd,
        "duration_ms": _sum([step.duration_ms for step in calls]),
    }


def _sum[N: (int, float, Decimal)](values: Sequence[N | None]) -> N | int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _wall_time(calls: Sequence[Step]) -> float | None:
    """Return the time from the first request to the last answer."""
    ends = [step.answer.attempt.ended_at for step in calls]
    if not ends or None in ends:
        return None
    return milliseconds(max(end for end in ends if end is not None) - calls[0].request.attempt.started_at)
