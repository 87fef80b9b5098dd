"""Complete diverged runs live: the calls after the divergence go out, under the policy of forks, until a budget is used up."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Final

from calls.model import Call, Exchange, header
from calls.route import route_request
from proxy.errors import Failure
from proxy.terminal.text import count_text, money, shorten
from proxy.trials.new_run import write_new_run
from proxy.trials.outcome import SKIP, last_words
from proxy.trials.recordings import NamedRecording, load_recording
from proxy.trials.regress import Completion, Regression, RunResult
from proxy.trials.trial import TrialPlan, TrialResult, run_trial
from store.diff.steps import StepReader
from store.pricing.prices import call_cost

MAX_BLOCKED: Final = 20


@dataclass(slots=True, kw_only=True)
class Budget:
    """What the live calls of all completions may cost."""

    usd: Decimal
    allows_unpriced: bool
    """Whether calls whose price is not known are free, because they go to the user's own server."""

    spent: Decimal = Decimal(0)
    unpriced: int = 0

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.usd

    def as_json(self) -> dict[str, float | int]:
        """Return the budget and what was used of it."""
        return {"usd": float(self.usd), "spent_usd": float(self.spent), "unpriced_calls": self.unpriced}


def budget_text(budget: Budget) -> str:
    """Return what was used of a budget as a sentence."""
    unpriced = f", and {count_text(budget.unpriced, 'call')} whose price is not known" if budget.unpriced else ""
    return f"live calls cost {money(float(budget.spent))} of {money(float(budget.usd))}{unpriced}"


@dataclass(slots=True, kw_only=True)
class LiveCosts:
    """Adds up what the live model calls of one run cost, as they end."""

    reading: StepReader
    usd: Decimal = Decimal(0)
    calls: int = 0
    unpriced: list[str] = field(default_factory=list)
    """The models of calls whose price is not known."""

    _counted_calls: set[str] = field(default_factory=set)

    def add(self, exchanges: Mapping[str, Exchange]) -> None:
        """Add the exchanges that were not added before."""
        for name in exchanges.keys() - self._counted_calls:
            self._counted_calls.add(name)
            exchange = exchanges[name]
            if exchange.response is None or header(exchange.response.headers, "playhead") is not None:
                continue  # it was answered by Playhead
            call = self.reading.derive_call(exchange, self.reading.key(exchange))
            self.calls += 1
            if call.kind == "model" and exchange.response.status < 300:
                self._add_cost(exchange, call)

    def _add_cost(self, exchange: Exchange, call: Call) -> None:
        cost = call_cost(exchange, call)
        if cost is None:
            self.unpriced.append(call.model_returned or call.model_requested or call.operation)
        else:
            self.usd += cost.usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """Completes runs one after the other, so that the budget holds."""

    regression: Regression
    budget: Budget
    effects: Sequence[str]
    model_origin: str | None
    """The server that answers requests to models in their place."""

    directory: Path
    """Gets a bundle of every new run."""

    async def complete_all(self, recordings: Sequence[NamedRecording], results: Sequence[RunResult]) -> list[RunResult]:
        """Complete the runs that diverged. What is done is kept; what the budget does not reach is marked as not run."""
        completed = list(results)
        diverged = [place for place, result in enumerate(results) if result.status == "diverged"]
        for count, place in enumerate(diverged, 1):
            if self.budget.is_used_up:
                completed[place] = replace(results[place], was_not_run=True)
                continue
            completed[place] = await self._complete(place + 1, recordings[place], results[place])
            completion = completed[place].completion
            cost = money(float(completion.usd)) if completion else ""
            # A judge may still find something.
            status = "completed" if completed[place].status == "passed" else completed[place].status
            self.regression.show_progress(
                f"live, {count} of {len(diverged)}: {recordings[place].name}: {status} ({cost})"
            )
        return completed

    async def _complete(self, number: int, recording: NamedRecording, result: RunResult) -> RunResult:
        costs = LiveCosts(reading=self.regression.reading)
        reasons: list[str] = []

        def should_stop(exchanges: Mapping[str, Exchange]) -> bool:
            costs.add(exchanges)
            if costs.unpriced and not self.budget.allows_unpriced:
                reasons.append(
                    f"the price of {costs.unpriced[0]} is not known, so the budget cannot be kept: use --model-url if it is your own server"
                )
            elif costs.usd and self.budget.spent + costs.usd >= self.budget.usd:
                reasons.append(f"the budget of {money(float(self.budget.usd))} was used up in the middle of it")
            return bool(reasons)

        bundle = await load_recording(recording, self.regression.redactor, self.regression.reading.profiles)
        runner = await self.regression.runner_for(recording)
        trial = await run_trial(
            runner,
            TrialPlan(
                name=f"regress-live-{number}",
                recording=recording.file,
                called=recording.name,
                fork={"at": len(bundle.entries), "effects": list(self.effects)},
                upstreams=model_upstreams(bundle.exchanges, self.model_origin),
                should_stop=should_stop,
            ),
        )
        costs.add({exchange.id: exchange for exchange in trial.exchanges})
        self.budget.spent += costs.usd
        self.budget.unpriced += len(costs.unpriced)
        reason = next(iter(reasons), None) if trial.was_stopped else None
        reason = reason or _unfinished_reason(trial, runner.limit_s)
        written = await asyncio.to_thread(
            write_new_run, self.directory, recording.name, trial.exchanges, self.regression.reading
        )
        completion = Completion(
            finished=reason is None,
            usd=costs.usd,
            live_calls=costs.calls,
            unpriced_calls=len(costs.unpriced),
            blocked=blocked_requests(trial),
            code=trial.code,
            file=None if written is None else str(written),
            reason=reason,
        )
        return replace(
            result,
            completion=completion,
            code=trial.code,
            output=trial.output,
            seconds=result.seconds + trial.seconds,
            check=await self.regression.check(recording.name, trial),
            is_decided_live=result.is_decided_live or bool(self.regression.spec),
        )


def blocked_requests(trial: TrialResult) -> tuple[str, ...]:
    """Return the requests that the policy for side effects did not let out."""
    fork = (trial.report or {}).get("fork") or {}
    return tuple(str(one["asked"]) for one in fork.get("blocked_calls", ()))[:MAX_BLOCKED]


def _unfinished_reason(trial: TrialResult, limit_s: float) -> str | None:
    if trial.failure is not None:
        return trial.failure
    if trial.is_timed_out:
        return f"completed live, it was stopped after {limit_s:g} s (--timeout)"
    if trial.code == SKIP:
        return f"completed live, the command ended with {SKIP}, which means that it cannot be judged"
    if trial.report is None or trial.code is None:
        return "the fork left no report"
    if trial.report["missed"]:
        detail = (trial.report["first_divergence"] or {}).get("detail") or "a request was missed"
        return shorten(str(detail), 500)
    blocked = blocked_requests(trial)
    if trial.code and blocked:
        return f"the command ended with {trial.code} after {blocked[0]} was blocked; see --side-effects{last_words(trial.output)}"
    return None


def model_upstreams(exchanges: Sequence[Exchange], origin: str | None) -> dict[str, str]:
    """Return the origin for each host of which a model was asked; nothing without one."""
    if origin is None:
        return {}
    routes = (route_request(exchange.request) for exchange in exchanges)
    return {route.host: origin for route in routes if route.kind == "model"}


def parse_model_url(text: str) -> str:
    """Return the origin of a base URL of an OpenAI-compatible server. Raises Failure."""
    origin, _, path = text.partition("://")[2].partition("/")
    scheme = text.partition("://")[0]
    if scheme not in ("http", "https") or not origin or path.strip("/") not in ("", "v1"):
        raise Failure(
            f"--model-url {text!r} is not the address of a server: write http://HOST:PORT or http://HOST:PORT/v1"
            " (requests keep the path that the command asks for)"
        )
    return f"{scheme}://{origin}"
