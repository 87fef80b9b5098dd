"""Apply all overrides when a replay is prepared, so that none can fail in its middle.

What changes a recorded answer becomes part of the recording. Faults come before it, and the answer stays for whoever asks
again. An override that says by a match what is to be answered, and not where, also answers what was never recorded.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from calls.derive import derived
from calls.dialects.table import BY_NAME
from calls.keys.key import KeyResult, keyed
from calls.keys.profile import Profiles
from calls.model import Exchange, Json, Request, Response
from calls.overrides.overrides import Fault, Override, OverrideMatch, Whole
from replay import playback
from replay.answer import Answer, mark
from replay.forks.hooks import HookAnswer
from replay.misses.explain import ReplayedRequest
from replay.overrides import apply as edits
from replay.overrides import faults
from replay.overrides.apply import Unfit
from replay.pacing import INSTANT, Pace
from replay.script import RecordedExchange
from store.bundle.bundle import Bundle, Entry

_LISTED: Final = 8


@dataclass(slots=True)
class _Plan:
    """What becomes of one step."""

    edited: list[Override] = field(default_factory=list)
    """Whose changes are in the recording now."""

    faults: list[tuple[Override, Exchange]] = field(default_factory=list)
    """What comes before the answer, as it is then."""

    slow: Override | None = None


class Editor:
    """The overrides of one replay (`hooks.Edits`), with an account of what they did."""

    def __init__(self, overrides: Sequence[Override], plans: Mapping[int, _Plan], profiles: Profiles) -> None:
        self._overrides = overrides
        self._plans = plans
        self._profiles = profiles
        # Without a place of its own an override stands for every request that fits, recorded or not.
        self._standing = [one for one in overrides if one.match and one.match.nth is None and _stands(one.change)]
        self._answered: Counter[int] = Counter()
        self._failed: Counter[tuple[int, int]] = Counter()

    def edited(
        self,
        asked: ReplayedRequest,  # noqa: ARG002 # as the protocol has it
        recorded: RecordedExchange,
        exchange: Exchange,
        pace: Pace,
        mark: tuple[str, str],
    ) -> HookAnswer | None:
        """What answers in place of a recorded answer."""
        plan = self._plans.get(recorded.step)
        if plan is None:
            return None
        for fault, failed in plan.faults:
            if self._due(fault, recorded.step):
                return HookAnswer(_failing(fault, failed, pace, mark), again=True)
        if not plan.edited and plan.slow is None:
            return None
        self._answered.update(one.number for one in (*plan.edited, plan.slow) if one)
        given = playback.answer(exchange, pace, mark)
        return HookAnswer(faults.slowed(given, _fault(plan.slow)) if plan.slow else given)

    def standing(self, asked: ReplayedRequest) -> HookAnswer | None:
        """What answers a request that is not recorded."""
        if not self._standing:
            return None
        key = keyed(asked.request, self._profiles)
        said = _Said(asked.request, key)
        for override in self._standing:
            assert override.match is not None
            if edits_fit(override, key) and _fits(override.match, said) and self._due(override, 0):
                return HookAnswer(_invented(override, asked, key))
        return None

    def reported(self, report: dict[str, Json]) -> dict[str, Json]:
        """The report with what became of the overrides. One that nothing was answered by was not what somebody wanted."""
        told: list[Json] = [self._told(override) for override in self._overrides]
        idle = [one for one in self._overrides if not self._answered[one.number]]
        verdict = "diverged" if idle and report["verdict"] == "right" else report["verdict"]
        return report | {"overrides": told, "overrides_idle": len(idle), "verdict": verdict}

    def rest(self) -> tuple[Counter[int], Counter[tuple[int, int]]]:
        """What was answered, and what has failed."""
        return self._answered, self._failed

    def go_on(self, rested: tuple[Counter[int], Counter[tuple[int, int]]]) -> None:
        """Take up from there."""
        self._answered, self._failed = rested

    def _told(self, override: Override) -> Json:
        steps: list[Json] = [step for step, plan in sorted(self._plans.items()) if override in _of(plan)]
        answered = self._answered[override.number]
        return {
            "override": override.number,
            "where": override.where,
            "what": override.what,
            "steps": steps,
            "answered": answered,
        }

    def _due(self, override: Override, step: int) -> bool:
        """Whether it is this override's turn; then it is counted."""
        if isinstance(override.change, Fault):
            if self._failed[override.number, step] >= override.change.times:
                return False
            self._failed[override.number, step] += 1
        self._answered[override.number] += 1
        return True

    def beyond(self, asked: ReplayedRequest, key: str, raw: str) -> HookAnswer | None:  # noqa: ARG002 # as the protocol has it
        """What answers a request that is not recorded, where the replay has no other rule for it (`hooks.Beyond`)."""
        return self.standing(asked)


def prepared(
    bundle: Bundle, overrides: Sequence[Override], profiles: Profiles, *, until_step: int | None = None
) -> tuple[Bundle, Editor]:
    """The recording with the edits made up to a step, and who sees to the rest. Raises BadOverride for what cannot be done."""
    entries = sorted(bundle.entries, key=lambda entry: (entry.exchange.started_at, entry.exchange.id))
    said = [_Said(entry.exchange.request, None, entry.exchange, profiles) for entry in entries[:until_step]]
    plans: dict[int, _Plan] = {}
    whole: set[str] = set()
    for override in overrides:
        for step in _steps(override, said):
            entry, key = entries[step - 1], said[step - 1].key
            plan = plans.setdefault(step, _Plan())
            try:
                entries[step - 1] = _planned(plan, override, entry, key)
            except Unfit as why:
                raise override.wrong(f"step {step} ({said[step - 1].words}) cannot be edited: {why}") from None
            if isinstance(override.change, Whole):
                whole.add(entry.exchange.id)
    gaps = tuple(gap for gap in bundle.gaps if gap.exchange not in whole)
    return replace(bundle, entries=tuple(entries), gaps=gaps), Editor(overrides, plans, profiles)


def _planned(plan: _Plan, override: Override, entry: Entry, key: KeyResult) -> Entry:
    """The entry after this override; a fault is only noted."""
    change = override.change
    if playback.is_websocket(entry.exchange):
        raise Unfit(edits.SOCKET)
    if not isinstance(change, Fault):
        if plan.faults or plan.slow:
            raise Unfit("a fault was given before this edit; put the edit first")
        plan.edited.append(override)
        return replace(entry, exchange=edits.edited(entry.exchange, key, change))
    failed = faults.failed(entry.exchange, key, change)
    if change.kind == "slow":
        plan.slow = override
    else:
        plan.faults.append((override, failed))
    return entry


def _of(plan: _Plan) -> list[Override]:
    return [*plan.edited, *(fault for fault, _ in plan.faults), *([plan.slow] if plan.slow else [])]


def _fault(override: Override) -> Fault:
    assert isinstance(override.change, Fault)
    return override.change


def _failing(override: Override, failed: Exchange, pace: Pace, mark: tuple[str, str]) -> Answer:
    fault = _fault(override)
    return faults.silent(fault) if fault.kind == "timeout" else playback.answer(failed, pace, mark)


def _invented(override: Override, asked: ReplayedRequest, key: KeyResult) -> Answer:
    """An answer to what was never recorded."""
    fault = override.change
    if isinstance(fault, Fault) and fault.kind == "timeout":
        return faults.silent(fault)
    stands = mark("edited", run=asked.run)
    empty = Exchange(
        id="",
        run=asked.run,
        request=asked.request,
        response=None,
        outcome="completed",
        started_at=0,
        first_byte_at=0,
        ended_at=0,
    )
    if isinstance(fault, Fault):
        made = faults.refusal(fault, key.dialect)
        return playback.answer(replace(empty, response=made), INSTANT, stands)
    assert isinstance(fault, Whole)
    body = fault if fault.has_body else replace(fault, body="", has_body=True)
    return playback.answer(edits.edited(replace(empty, response=Response(status=200)), key, body), INSTANT, stands)


# -- where


class _Said:
    """What a request says of itself, read when it is first asked for."""

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
            return keyed(self.request, self._profiles)
        return self._key

    @cached_property
    def model(self) -> str | None:
        return BY_NAME[self.key.dialect].asked(self.key.request).model or self.key.route.model

    @cached_property
    def tools(self) -> frozenset[str]:
        """The tools that the request calls, and those that its recorded answer asks for."""
        called = BY_NAME[self.key.dialect].asked(self.key.request).tool_calls
        if self._exchange is not None:
            called = derived(self._exchange, self.key).tool_calls
        return frozenset(tool.name for tool in called)

    @property
    def words(self) -> str:
        route = self.key.route
        return f"{route.method} {route.host}{route.path}, {self.key.operation}"


def _steps(override: Override, said: Sequence[_Said]) -> list[int]:
    """The steps that an override is for. Raises BadOverride where there are none and it needs one."""
    if override.step is not None:
        if override.step > len(said):
            raise override.wrong(f"there is no step {override.step}: {len(said)} steps are answered from the record")
        return [override.step]
    assert override.match is not None
    match = override.match
    found = [step for step, one in enumerate(said, 1) if _fits(match, one) and edits_fit(override, one.key)]
    if match.nth is not None:
        if match.nth > len(found):
            raise override.wrong(f"{len(found)} recorded calls fit {override.where}{_known(said)}")
        return [found[match.nth - 1]]
    if not found and not _stands(override.change):
        raise override.wrong(f"no recorded call fits {override.where}{_known(said)}")
    return found


def edits_fit(override: Override, key: KeyResult) -> bool:
    """Whether a change may mean such a call at all."""
    return isinstance(override.change, Fault) or edits.fits(override.change, key)


def _known(said: Sequence[_Said]) -> str:
    listed = "; ".join(f"{step}: {one.words}" for step, one in enumerate(said[:_LISTED], 1))
    more = f"; and {len(said) - _LISTED} more" if len(said) > _LISTED else ""
    return f"; recorded are {listed}{more}" if listed else "; the run holds no call"


def _stands(change: object) -> bool:
    """Whether a change can answer what was never recorded."""
    return isinstance(change, Whole) or (isinstance(change, Fault) and change.kind in ("status", "timeout"))


def _fits(match: OverrideMatch, said: _Said) -> bool:
    return all(_each(match, said))


def _each(match: OverrideMatch, said: _Said) -> Iterator[bool]:
    """The tests of a match, those that cost nothing first."""
    route = said.key.route
    if match.method is not None:
        yield route.method == match.method.upper()
    if match.host is not None:
        yield fnmatchcase(route.host, match.host.lower())
    if match.path is not None:
        yield fnmatchcase(route.path, match.path)
    if match.operation is not None:
        yield said.key.operation == match.operation
    if match.model is not None:
        yield fnmatchcase(said.model or "", match.model)
    if match.tool is not None:
        yield match.tool in said.tools
