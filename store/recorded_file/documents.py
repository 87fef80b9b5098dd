"""Answer the addresses of the REST API that the page of a run asks, from a bundle.

The shapes are those of the REST API, made by the same functions. What only a store server has is absent: other runs, searches,
verification.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from msgspec.structs import asdict

from calls.derive import deriver
from calls.effects.questions import read_questions
from calls.keys.explain import explain_key
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.model import Body, Exchange
from calls.redaction.call import Clean
from store.bundle.bundle import Bundle
from store.bundle.trace import digest
from store.effects.observed import EffectReader, ObservedEffect
from store.effects.shapes import EffectFilter, EffectGroup, effect_shape, group_shape, sort_groups, step_after
from store.pricing.prices import call_cost
from store.query.rest_shapes import Shape, chunk_shapes, exchange_shape, ns_of, rfc3339
from store.recorded_file.call_shapes import FileExchange, list_summaries, make_call_shapes
from store.recorded_file.run_shape import make_run_shape
from store.snippets.snippet import FORMS, CopiedCall, NotCopyable, SnippetForm, make_snippet
from store.timeline.conversation import make_conversation
from store.timeline.from_exchanges import TimelineFacts, read_facts
from store.timeline.short_call import short_call
from store.timeline.timeline import MOST_STEPS, make_timeline, sum_earlier

type Parameters = Mapping[str, str]

CONVERSATION_PAGE: Final = 50

EFFECTS_PAGE: Final = 100
"""Effects of a page, as many as the page of a run asks for."""


class StoredBody(NamedTuple):
    """A body, as it is in the file."""

    data: bytes


class FileProblem(Exception):
    """There is no such document; `members` are those of the problem (RFC 9457)."""

    def __init__(self, status: int, name: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.members = {"type": f"urn:playhead:problem:{name}", "title": name, "status": status, "detail": detail}


class FileDocuments:
    """The documents of one bundle. What takes long is made when it is first asked for."""

    def __init__(self, bundle: Bundle, profiles: Profiles, clean: Clean) -> None:
        self._bundle = bundle
        self._profiles = profiles
        self._clean = clean
        self.run: str = str(bundle.run["id"])

    @cached_property
    def _exchanges(self) -> dict[str, FileExchange]:
        derive = deriver(self._profiles, self._clean)
        found: dict[str, FileExchange] = {}
        for exchange in self._bundle.exchanges:
            call = derive(exchange)
            found[exchange.id] = FileExchange(exchange=exchange, call=call, cost=call_cost(exchange, call))
        return found

    @cached_property
    def _facts(self) -> TimelineFacts:
        costs = {name: one.cost.usd if one.cost else None for name, one in self._exchanges.items()}
        pairs = [(one.exchange, one.call) for one in self._exchanges.values()]
        return read_facts(
            pairs, lambda exchange, _: costs[exchange.id], is_fork=self._bundle.run.get("parent") is not None
        )

    @cached_property
    def _calls(self) -> dict[str, Shape]:
        return {shape["id"]: shape for shape in make_call_shapes(self._exchanges, self._facts)}

    @cached_property
    def _run_shape(self) -> Shape:
        return make_run_shape(self._bundle, list(self._exchanges.values()), self._facts.steps)

    @cached_property
    def _effects(self) -> list[tuple[ObservedEffect, int | None]]:
        """The effects, each with the exchange that it came before."""
        times = sorted(exchange.started_at for exchange in self._bundle.exchanges)
        readers: defaultdict[str, EffectReader] = defaultdict(EffectReader)
        batches = sorted(self._bundle.effects, key=lambda batch: (batch.process, batch.number, batch.id))
        return [
            (effect, step_after(times, effect.happened_at))
            for batch in batches
            for effect in readers[batch.process].read(batch)
        ]

    @cached_property
    def _effect_groups(self) -> list[EffectGroup]:
        groups: dict[int | None, EffectGroup] = {}
        for effect, step in self._effects:
            groups.setdefault(step, EffectGroup(step=step)).add(effect)
        return sort_groups(groups.values())

    def answer(self, path: str, parameters: Parameters) -> Any:
        """Return the document at a path, or a `StoredBody`. Raises FileProblem."""
        for pattern, method in _ROUTES:
            if found := pattern.fullmatch(path):
                return method(self, parameters, **found.groupdict())
        raise FileProblem(404, "not_in_file", f"a file has nothing at {path[:200]}: it holds one run")

    def addresses(self) -> Iterator[tuple[str, Parameters]]:
        """Yield the addresses that the page of the run asks, those of the run first."""
        run = f"/v1/runs/{quote(self.run, safe='')}"
        yield from ((path, {}) for path in ("/v1/runs", run, f"{run}/timeline", f"{run}/conversation", f"{run}/gaps"))
        yield f"{run}/effects/sums", {}
        for group in self._effect_groups:
            step = len(self._bundle.exchanges) + 1 if group.step is None else group.step
            yield f"{run}/effects", {"step": str(step), "limit": str(EFFECTS_PAGE)}
        for call, shape in self._calls.items():
            yield f"/v1/calls/{call}", {"content": "short"}
            yield f"/v1/calls/{call}", {}
            yield f"/v1/calls/{call}/explain", {}
            yield "/v1/calls", {"key": shape["key"], "limit": "20"}
            yield from ((f"/v1/calls/{call}/snippet", {"as": form}) for form in ("curl", "python"))
            for exchange in shape["exchanges"]:
                yield f"/v1/exchanges/{exchange}", {}
                yield f"/v1/exchanges/{exchange}/chunks", {}
                yield f"/v1/exchanges/{exchange}/response", {}
                yield f"/v1/exchanges/{exchange}/request", {}

    def list_runs(self, _: Parameters) -> Any:
        """`/v1/runs`."""
        return {"items": [self._run_shape], "next": None}

    def get_run(self, _: Parameters, run: str) -> Any:
        """`/v1/runs/{run}`."""
        self._require_run(run)
        waiting = sum(question.answer is None for question in read_questions(self._bundle.effects))
        return self._run_shape | {"waiting": waiting}

    def get_timeline(self, parameters: Parameters, run: str) -> Any:
        """`/v1/runs/{run}/timeline`."""
        self._require_run(run)
        after, limit = _number(parameters, "after", 0), _number(parameters, "limit", MOST_STEPS)
        steps = self._facts.steps
        earlier = [step for step in steps if step.number <= after]
        page = steps[len(earlier) : len(earlier) + max(1, limit)]
        began = ns_of(self._run_shape["started_at"]) or 0
        return make_timeline(
            self._run_shape,
            began,
            page,
            self._bundle.gaps,
            earlier=sum_earlier(earlier),
            steps_left_out=len(steps) - len(earlier) - len(page),
        )

    def get_conversation(self, parameters: Parameters, run: str) -> Any:
        """`/v1/runs/{run}/conversation`."""
        self._require_run(run)
        after, limit = _number(parameters, "after", 0), _number(parameters, "limit", CONVERSATION_PAGE)
        spoken = self._facts.spoken
        page = [call for call in spoken if call.number > after][: max(1, limit)]
        earlier = [call for call in spoken if call.number <= after]
        shapes = make_conversation(page, self._facts.links, earlier=earlier)
        is_last = not shapes or shapes[-1]["step"] >= max((call.number for call in spoken), default=0)
        return {"run": self.run, "items": shapes, "next": None if is_last else shapes[-1]["step"]}

    def list_effects(self, parameters: Parameters, run: str) -> Any:
        """`/v1/runs/{run}/effects`. A cursor is the number of effects before."""
        self._require_run(run)
        step = _number(parameters, "step", 0)
        effect_filter, steps = EffectFilter(step=step or None), len(self._bundle.exchanges)
        found = [one for one in self._effects if effect_filter.matches(*one, steps)]
        begin, limit = _number(parameters, "cursor", 0), max(1, _number(parameters, "limit", EFFECTS_PAGE))
        items = [effect_shape(*one, shows_values=True) for one in found[begin : begin + limit]]
        return {"items": items, "next": str(begin + limit) if begin + limit < len(found) else None}

    def sum_effects(self, _: Parameters, run: str) -> Any:
        """`/v1/runs/{run}/effects/sums`."""
        self._require_run(run)
        return {"items": [group_shape(group, shows_values=True) for group in self._effect_groups], "whole": True}

    def list_gaps(self, _: Parameters, run: str) -> Any:
        """`/v1/runs/{run}/gaps`."""
        self._require_run(run)
        items = [
            {"exchange": gap.exchange, "at": rfc3339(gap.happened_at), "reason": gap.reason}
            for gap in self._bundle.gaps
        ]
        return {"items": items, "next": None}

    def list_calls(self, parameters: Parameters, run: str | None = None) -> Any:
        """`/v1/calls` and `/v1/runs/{run}/calls`."""
        if run is not None:
            self._require_run(run)
        key = parameters.get("key")
        found = [call for call in self._calls.values() if key in (None, call["key"])]
        page = found[: _number(parameters, "limit", len(found))]
        return {"items": list_summaries(page), "next": None}

    def get_call(self, parameters: Parameters, call: str) -> Any:
        """`/v1/calls/{call}`."""
        found = self._call(call)
        return short_call(found) if parameters.get("content") == "short" else found

    def explain_call(self, _: Parameters, call: str) -> Any:
        """`/v1/calls/{call}/explain`."""
        shape = self._call(call)
        key = make_key(self._exchange(shape["id"]).request, self._profiles)
        return {
            "call": shape["id"],
            "stored_key": shape["key"],
            **explain_key(key).as_json(),
            "selected": key.selected_fields,
            "left_out": [asdict(one) for one in key.left_out_fields],
            "renamed": [asdict(one) for one in key.renamed_ids],
            "folded": [asdict(one) for one in key.normalized_fields],
        }

    def copy_call(self, parameters: Parameters, call: str) -> Any:
        """`/v1/calls/{call}/snippet`."""
        shape, form = self._call(call), _form(parameters.get("as"))
        copied = CopiedCall(
            exchange=self._exchange(shape["exchanges"][-1]),
            run=self.run,
            step=shape["step"],
            provider=shape["provider"],
            streamed=shape["streamed"],
            profiles=self._profiles.digest,
        )
        try:
            return make_snippet(copied, form).as_json()
        except NotCopyable as error:
            raise FileProblem(422, "not_copyable", f"the call cannot be copied as {form}: {error}") from error

    def get_exchange(self, _: Parameters, exchange: str) -> Any:
        """`/v1/exchanges/{exchange}`."""
        found = self._exchange(exchange)
        answered = found.response.body.data if found.response else None
        digests = [None if data is None else digest(data) for data in (found.request.body.data, answered)]
        return exchange_shape(found, self._facts.links.numbers[exchange], *digests)

    def list_chunks(self, _: Parameters, exchange: str) -> Any:
        """`/v1/exchanges/{exchange}/chunks`."""
        return {"items": chunk_shapes(self._exchange(exchange)), "next": None}

    def get_body(self, _: Parameters, exchange: str, side: str) -> Any:
        """`/v1/exchanges/{exchange}/request` and `/response`."""
        found = self._exchange(exchange)
        message = found.request if side == "request" else found.response
        if message is None:
            raise FileProblem(404, "no_response", f"exchange {exchange} has no response")
        body: Body = message.body
        return StoredBody(body.data)

    def _require_run(self, run: str) -> None:
        if run != self.run:
            raise FileProblem(404, "unknown_run", f"this file holds the run {self.run}, and no other")

    def _call(self, call: str) -> Shape:
        if (found := self._calls.get(call)) is None:
            raise FileProblem(404, "unknown_call", f"this file has no call {call[:100]}")
        return found

    def _exchange(self, name: str) -> Exchange:
        if (found := self._exchanges.get(name)) is None:
            raise FileProblem(404, "unknown_exchange", f"this file has no exchange {name[:100]}")
        return found.exchange


def _number(parameters: Parameters, name: str, default: int) -> int:
    text = parameters.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default


def _form(name: str | None) -> SnippetForm:
    for form in FORMS:
        if form == name:
            return form
    raise FileProblem(422, "invalid_request", f"as={name} is not a form: use {', '.join(FORMS)}")


_METHODS: Final[tuple[tuple[str, Callable[..., Any]], ...]] = (
    ("/v1/runs", FileDocuments.list_runs),
    ("/v1/runs/{run}", FileDocuments.get_run),
    ("/v1/runs/{run}/timeline", FileDocuments.get_timeline),
    ("/v1/runs/{run}/conversation", FileDocuments.get_conversation),
    ("/v1/runs/{run}/effects", FileDocuments.list_effects),
    ("/v1/runs/{run}/effects/sums", FileDocuments.sum_effects),
    ("/v1/runs/{run}/gaps", FileDocuments.list_gaps),
    ("/v1/runs/{run}/calls", FileDocuments.list_calls),
    ("/v1/calls", FileDocuments.list_calls),
    ("/v1/calls/{call}", FileDocuments.get_call),
    ("/v1/calls/{call}/explain", FileDocuments.explain_call),
    ("/v1/calls/{call}/snippet", FileDocuments.copy_call),
    ("/v1/exchanges/{exchange}", FileDocuments.get_exchange),
    ("/v1/exchanges/{exchange}/chunks", FileDocuments.list_chunks),
    ("/v1/exchanges/{exchange}/{side}", FileDocuments.get_body),
)

_ROUTES: Final = tuple(
    (
        re.compile(
            re.sub(
                r"\{(\w+)\}",
                lambda match: f"(?P<{match[1]}>{'request|response' if match[1] == 'side' else '[^/]+'})",
                path,
            )
        ),
        method,
    )
    for path, method in _METHODS
)
