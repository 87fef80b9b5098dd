"""Apply all overrides when a replay is prepared, so that none can fail during the replay.

An edit of a recorded answer becomes part of the recording. A fault comes before the recorded answer, which stays for the
retry. An override that selects its calls by a match without a number also answers requests that were never recorded.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

import msgspec
from msgspec.structs import replace

from calls.derive import derive_keyed_call
from calls.dialects.table import BY_NAME
from calls.keys.key import KeyResult, make_key
from calls.keys.profile import Profiles
from calls.model import Exchange, Json, Request, Response
from calls.overrides.effect_values import EffectValue
from calls.overrides.overrides import Fault, Override, OverrideMatch, WholeAnswer
from replay import playback
from replay.answer import Answer, source_header
from replay.forks.hooks import HookAnswer
from replay.incoming_request import IncomingRequest
from replay.overrides import apply as edits
from replay.overrides import faults
from replay.overrides.apply import CannotEdit
from replay.pacing import INSTANT, Pace
from replay.script import RecordedExchange
from store.bundle.bundle import Bundle, Entry

_LISTED: Final = 8


class _StepPlan(msgspec.Struct):
    """The overrides of one step."""

    edits: list[Override] = msgspec.field(default_factory=list)
    """Overrides whose changes are part of the recording."""

    faults: list[tuple[Override, Exchange]] = msgspec.field(default_factory=list)
    """Faults before the recorded answer, with the faulty exchanges."""

    slow: Override | None = None


class OverrideEditor:
    """The overrides of one replay, and how often each was used (implements `EditHook` and `MissHook`)."""

    def __init__(self, overrides: Sequence[Override], plans: Mapping[int, _StepPlan], profiles: Profiles) -> None:
        self._overrides = overrides
        self._plans = plans
        self._profiles = profiles
        # An override without a number applies to every request that it matches, recorded or not.
        self._standing_overrides = [
            one for one in overrides if one.match and one.match.nth is None and _can_answer_unrecorded(one.change)
        ]
        self._answered: Counter[int] = Counter()
        self._failed: Counter[tuple[int, int]] = Counter()

    def edit_answer(
        self,
        incoming: IncomingRequest,  # noqa: ARG002 # as the protocol has it
        recorded: RecordedExchange,
        exchange: Exchange,
        pace: Pace,
        source_header: tuple[str, str],
    ) -> HookAnswer | None:
        """Replace a recorded answer if an override says so."""
        plan = self._plans.get(recorded.step)
        if plan is None:
            return None
        for fault, failed in plan.faults:
            if self._take_turn(fault, recorded.step):
                return HookAnswer(_fault_answer(fault, failed, pace, source_header), keeps_recorded=True)
        if not plan.edits and plan.slow is None:
            return None
        self._answered.update(one.number for one in (*plan.edits, plan.slow) if one)
        answer = playback.recorded_answer(exchange, pace, source_header)
        return HookAnswer(faults.slow_down(answer, _override_fault(plan.slow)) if plan.slow else answer)

    def answer_unrecorded(self, incoming: IncomingRequest) -> HookAnswer | None:
        """Answer a request that was not recorded if an override matches it."""
        if not self._standing_overrides:
            return None
        key = make_key(incoming.request, self._profiles)
        subject = _MatchSubject(incoming.request, key)
        for override in self._standing_overrides:
            assert override.match is not None
            if can_apply(override, key) and _is_match(override.match, subject) and self._take_turn(override, 0):
                return HookAnswer(_unrecorded_answer(override, incoming, key))
        return None

    def extend_report(self, report: dict[str, Json]) -> dict[str, Json]:
        """Add the overrides to a report. An override that was never used makes the replay diverge."""
        entries: list[Json] = [self._override_entry(override) for override in self._overrides]
        unanswered = [one for one in self._overrides if not self._answered[one.number]]
        verdict = "diverged" if unanswered and report["verdict"] == "right" else report["verdict"]
        return report | {"overrides": entries, "overrides_idle": len(unanswered), "verdict": verdict}

    def saved_state(self) -> tuple[Counter[int], Counter[tuple[int, int]]]:
        """How often each override and each fault was used."""
        return self._answered, self._failed

    def restore_state(self, state: tuple[Counter[int], Counter[tuple[int, int]]]) -> None:
        """Restore a saved state."""
        self._answered, self._failed = state

    def _override_entry(self, override: Override) -> Json:
        steps: list[Json] = [step for step, plan in sorted(self._plans.items()) if override in _planned_overrides(plan)]
        answered = self._answered[override.number]
        return {
            "override": override.number,
            "where": override.place,
            "what": override.change_name,
            "steps": steps,
            "answered": answered,
        }

    def _take_turn(self, override: Override, step: int) -> bool:
        """Use an override once; False if it is a fault that was used as often as it should be."""
        if isinstance(override.change, Fault):
            if self._failed[override.number, step] >= override.change.times:
                return False
            self._failed[override.number, step] += 1
        self._answered[override.number] += 1
        return True

    def answer_miss(self, incoming: IncomingRequest, key: str, raw: str) -> HookAnswer | None:  # noqa: ARG002 # as the protocol has it
        """Answer a request that the recording does not answer, if an override matches it."""
        return self.answer_unrecorded(incoming)


def prepare_overrides(
    bundle: Bundle, overrides: Sequence[Override], profiles: Profiles, *, until_step: int | None = None
) -> tuple[Bundle, OverrideEditor]:
    """Edit the recording up to a step, and return it with the hook for everything else. Raises BadOverride.

    Overrides of effects are left to `replay.effects`.
    """
    entries = sorted(bundle.entries, key=lambda entry: (entry.exchange.started_at, entry.exchange.id))
    subjects = [_MatchSubject(entry.exchange.request, None, entry.exchange, profiles) for entry in entries[:until_step]]
    overrides = [one for one in overrides if not isinstance(one.change, EffectValue)]
    plans: dict[int, _StepPlan] = {}
    whole: set[str] = set()
    for override in overrides:
        for step in _matching_steps(override, subjects):
            entry, key = entries[step - 1], subjects[step - 1].key
            plan = plans.setdefault(step, _StepPlan())
            try:
                entries[step - 1] = _plan_override(plan, override, entry, key)
            except CannotEdit as why:
                raise override.error(
                    f"step {step} ({subjects[step - 1].description}) cannot be edited: {why}"
                ) from None
            if isinstance(override.change, WholeAnswer):
                whole.add(entry.exchange.id)
    gaps = tuple(gap for gap in bundle.gaps if gap.exchange not in whole)
    return dataclasses.replace(bundle, entries=tuple(entries), gaps=gaps), OverrideEditor(overrides, plans, profiles)


def _plan_override(plan: _StepPlan, override: Override, entry: Entry, key: KeyResult) -> Entry:
    """Apply an override to an entry, or plan its fault."""
    change = override.change
    assert not isinstance(change, EffectValue)
    if playback.is_websocket(entry.exchange):
        raise CannotEdit(edits.WEBSOCKET_UNSUPPORTED)
    if not isinstance(change, Fault):
        if plan.faults or plan.slow:
            raise CannotEdit("a fault precedes this edit; put the edit first")
        plan.edits.append(override)
        return dataclasses.replace(entry, exchange=edits.apply_edit(entry.exchange, key, change))
    failed = faults.inject_fault(entry.exchange, key, change)
    if change.kind == "slow":
        plan.slow = override
    else:
        plan.faults.append((override, failed))
    return entry


def _planned_overrides(plan: _StepPlan) -> list[Override]:
    return [*plan.edits, *(fault for fault, _ in plan.faults), *([plan.slow] if plan.slow else [])]


def _override_fault(override: Override) -> Fault:
    assert isinstance(override.change, Fault)
    return override.change


def _fault_answer(override: Override, failed: Exchange, pace: Pace, mark: tuple[str, str]) -> Answer:
    fault = _override_fault(override)
    return faults.silent_answer(fault) if fault.kind == "timeout" else playback.recorded_answer(failed, pace, mark)


def _unrecorded_answer(override: Override, incoming: IncomingRequest, key: KeyResult) -> Answer:
    """The answer of an override to a request that was never recorded."""
    change = override.change
    if isinstance(change, Fault) and change.kind == "timeout":
        return faults.silent_answer(change)
    header = source_header("edited", run=incoming.run)
    empty = Exchange(
        id="",
        run=incoming.run,
        request=incoming.request,
        response=None,
        outcome="completed",
        started_at=0,
        first_byte_at=0,
        ended_at=0,
    )
    if isinstance(change, Fault):
        refusal = faults.error_response(change, key.dialect)
        return playback.recorded_answer(replace(empty, response=refusal), INSTANT, header)
    assert isinstance(change, WholeAnswer)
    body = change if change.has_body else msgspec.structs.replace(change, body="", has_body=True)
    return playback.recorded_answer(
        edits.apply_edit(replace(empty, response=Response(status=200)), key, body), INSTANT, header
    )


# -- matching


class _MatchSubject:
    """A request that overrides are matched against. Its properties are computed on first use."""

    def __init__(
        self,
        request: Request,
        key: KeyResult | None,
        exchange: Exchange | None = None,
        profiles: Profiles | None = None,
    ) -> None:
        self.request = request
        self._key = key
        self._exchange = exchange
        self._profiles = profiles

    @cached_property
    def key(self) -> KeyResult:
        if self._key is None:
            assert self._profiles is not None
            return make_key(self.request, self._profiles)
        return self._key

    @cached_property
    def model(self) -> str | None:
        return BY_NAME[self.key.dialect].summarize_request(self.key.request_body).model or self.key.route.model

    @cached_property
    def tools(self) -> frozenset[str]:
        """The tools that the request calls, or those that its recorded answer requests."""
        called = BY_NAME[self.key.dialect].summarize_request(self.key.request_body).tool_calls
        if self._exchange is not None:
            called = derive_keyed_call(self._exchange, self.key).tool_calls
        return frozenset(tool.name for tool in called)

    @property
    def description(self) -> str:
        route = self.key.route
        return f"{route.method} {route.host}{route.path}, {self.key.operation}"


def _matching_steps(override: Override, subjects: Sequence[_MatchSubject]) -> list[int]:
    """The steps that an override applies to. Raises BadOverride if it needs one and there is none."""
    if override.step is not None:
        if override.step > len(subjects):
            raise override.error(
                f"there is no step {override.step}: {len(subjects)} steps are answered from the record"
            )
        return [override.step]
    assert override.match is not None
    match = override.match
    found = [step for step, one in enumerate(subjects, 1) if _is_match(match, one) and can_apply(override, one.key)]
    if match.nth is not None:
        if match.nth > len(found):
            raise override.error(f"{len(found)} recorded calls fit {override.place}{_recorded_calls(subjects)}")
        return [found[match.nth - 1]]
    if not found and not _can_answer_unrecorded(override.change):
        raise override.error(f"no recorded call fits {override.place}{_recorded_calls(subjects)}")
    return found


def can_apply(override: Override, key: KeyResult) -> bool:
    """Whether a change fits this kind of call."""
    change = override.change
    return isinstance(change, Fault) or (not isinstance(change, EffectValue) and edits.can_edit(change, key))


def _recorded_calls(subjects: Sequence[_MatchSubject]) -> str:
    listed = "; ".join(f"{step}: {one.description}" for step, one in enumerate(subjects[:_LISTED], 1))
    more = f"; and {len(subjects) - _LISTED} more" if len(subjects) > _LISTED else ""
    return f"; recorded are {listed}{more}" if listed else "; the run holds no call"


def _can_answer_unrecorded(change: object) -> bool:
    """Whether a change can answer a request that was never recorded."""
    return isinstance(change, WholeAnswer) or (isinstance(change, Fault) and change.kind in ("status", "timeout"))


def _is_match(match: OverrideMatch, subject: _MatchSubject) -> bool:
    return all(_match_tests(match, subject))


def _match_tests(match: OverrideMatch, subject: _MatchSubject) -> Iterator[bool]:
    """The conditions of a match, cheapest first."""
    route = subject.key.route
    if match.method is not None:
        yield route.method == match.method.upper()
    if match.host is not None:
        yield fnmatchcase(route.host, match.host.lower())
    if match.path is not None:
        yield fnmatchcase(route.path, match.path)
    if match.operation is not None:
        yield subject.key.operation == match.operation
    if match.model is not None:
        yield fnmatchcase(subject.model or "", match.model)
    if match.tool is not None:
        yield match.tool in subject.tools
