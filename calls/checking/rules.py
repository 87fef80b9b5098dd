"""Rules on tools, hosts, arguments, targets and budgets."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import msgspec

from calls.checking.checked_run import CheckedRun, CheckedStep, RequestedTool
from calls.checking.conditions import Condition, PathMatch, broken_condition, condition_error, show_value
from calls.checking.selection import fits_any, select_steps, select_tools
from calls.keys.jsonpath import parse_own_path, parse_path
from calls.keys.places import BadPath
from calls.model import Json

_MOST_SHOWN: Final = 12
"""Names that a message lists."""

_NANOSECONDS: Final = 1_000_000_000


class RuleFinding(NamedTuple):
    """What is wrong with a run according to one rule."""

    message: str
    step: int | None = None
    """Where; None if it is about the whole run."""

    is_undecided: bool = False
    """Whether the run does not tell: nothing is known to be wrong."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """One rule of a spec. `kind` selects its class."""

    name: str | None = None
    """What the rule is for, in the user's words."""

    def mistake(self) -> str | None:
        """Return what is wrong with the rule itself; None if it is valid."""
        return None

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        """Yield what is wrong with a run; nothing if the rule holds."""
        raise NotImplementedError


class ToolsRule(Rule, tag="tools", kw_only=True, frozen=True):
    """Which tools are requested, and in which order."""

    tools: tuple[str, ...]
    order: Literal["exact", "relative", "any"] = "exact"
    """`exact`: these and no others, in this order. `relative`: in this order, with any others between them. `any`: these and no
    others, each at least once, in any order."""

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        names = [tool.name for tool in run.tools]
        match self.order:
            case "exact":
                return _exact_order_findings(run.tools, self.tools)
            case "relative":
                return _relative_order_findings(names, self.tools)
            case "any":
                return _any_order_findings(run.tools, self.tools)


def _exact_order_findings(requests: Sequence[RequestedTool], demanded: Sequence[str]) -> Iterator[RuleFinding]:
    for place, (tool, pattern) in enumerate(zip(requests, demanded, strict=False), 1):
        if not fits_any(tool.name, [pattern]):
            yield RuleFinding(f"tool call {place} is {tool.name}, expected {pattern}", tool.step)
            return
    if len(requests) > len(demanded):
        extra = requests[len(demanded)]
        yield RuleFinding(f"{extra.name} is requested after the {len(demanded)} expected tool calls", extra.step)
    elif len(requests) < len(demanded):
        yield RuleFinding(
            f"{demanded[len(requests)]} is not requested: only {_list_names([tool.name for tool in requests])}"
        )


def _relative_order_findings(names: Sequence[str], demanded: Sequence[str]) -> Iterator[RuleFinding]:
    at = 0
    for place, pattern in enumerate(demanded):
        following = next((index for index in range(at, len(names)) if fits_any(names[index], [pattern])), None)
        if following is None:
            after = f" after {demanded[place - 1]}" if place else ""
            yield RuleFinding(f"{pattern} is not requested{after}: requested are {_list_names(names)}")
            return
        at = following + 1


def _any_order_findings(requests: Sequence[RequestedTool], demanded: Sequence[str]) -> Iterator[RuleFinding]:
    for tool in requests:
        if not fits_any(tool.name, demanded):
            yield RuleFinding(f"{tool.name} is requested, which is not one of {_list_names(demanded)}", tool.step)
    for pattern in demanded:
        if not any(fits_any(tool.name, [pattern]) for tool in requests):
            yield RuleFinding(f"{pattern} is not requested")


def _list_names(names: Sequence[str]) -> str:
    text = ", ".join(names[:_MOST_SHOWN]) or "none"
    return text if len(names) <= _MOST_SHOWN else f"{text} and {len(names) - _MOST_SHOWN} more"


class _Selection(Rule, kw_only=True, frozen=True):
    """What several rules select: tool calls by the names of tools, or calls by where they went."""

    tools: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def mistake(self) -> str | None:
        has_calls = bool(self.hosts or self.methods or self.paths or self.models)
        if bool(self.tools) == has_calls:
            return "give either `tools`, or one or more of `hosts`, `methods`, `paths` and `models`"
        return None

    def selected_items(self, run: CheckedRun) -> list[tuple[int, str]]:
        """Return what is selected: steps and names."""
        if self.tools:
            return [(tool.step, tool.name) for tool in select_tools(run, self.tools)]
        return [(step.number, step_name(step)) for step in self.selected_steps(run)]

    def selected_steps(self, run: CheckedRun) -> list[CheckedStep]:
        """Return the calls that are selected."""
        return select_steps(run, hosts=self.hosts, methods=self.methods, paths=self.paths, models=self.models)

    def words(self) -> str:
        """Describe the selection for a message."""
        parts = [*self.tools, *self.methods, *self.models, *self.hosts, *self.paths]
        return " ".join(parts) if not self.tools else " or ".join(parts)


def step_name(step: CheckedStep) -> str:
    """Return a readable name of a call: its target, and the model if it has one."""
    return f"{step.target} ({step.model})" if step.model else step.target


class ForbidRule(_Selection, tag="forbid", kw_only=True, frozen=True):
    """Tools that must not be requested, or calls that must not be made."""

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        for step, name in self.selected_items(run):
            yield RuleFinding(f"{name} is forbidden by {self.words()}", step)


class OnlyRule(Rule, tag="only", kw_only=True, frozen=True):
    """The only tools, hosts and models that may be used."""

    tools: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None

    def mistake(self) -> str | None:
        if self.tools is None and self.hosts is None and self.models is None:
            return "give one or more of `tools`, `hosts` and `models`"
        return None

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        for tool in run.tools if self.tools is not None else ():
            if not fits_any(tool.name, self.tools or ()):
                yield RuleFinding(f"{tool.name} is requested; allowed are {_list_names(self.tools or ())}", tool.step)
        for step in run.steps:
            if self.hosts is not None and not fits_any(step.host.lower(), [host.lower() for host in self.hosts]):
                yield RuleFinding(f"{step.target} is called; allowed hosts are {_list_names(self.hosts)}", step.number)
            if self.models is not None and step.model is not None and not fits_any(step.model, self.models):
                yield RuleFinding(
                    f"the model {step.model} is called; allowed are {_list_names(self.models)}", step.number
                )


class RequireRule(_Selection, tag="require", kw_only=True, frozen=True):
    """How often tools must be requested, or calls be made. By default at least once."""

    min: int | None = None
    max: int | None = None

    def mistake(self) -> str | None:
        lowest = self.lowest()
        if lowest < 0 or (self.max is not None and self.max < lowest):
            return f"no number is between {lowest} and {self.max}: `min` must be 0 or more, and not above `max`"
        return super().mistake()

    def lowest(self) -> int:
        """Return the lowest number that is allowed."""
        return self.min if self.min is not None else (0 if self.max is not None else 1)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        found = self.selected_items(run)
        if len(found) < self.lowest():
            yield RuleFinding(f"{self.words()} occurs {len(found)} times, at least {self.lowest()} expected")
        elif self.max is not None and len(found) > self.max:
            step, _ = found[self.max]
            yield RuleFinding(f"{self.words()} occurs {len(found)} times, at most {self.max} expected", step)


class ArgumentRule(Rule, tag="argument", kw_only=True, frozen=True):
    """What the arguments of a tool must be, in every call of it."""

    tool: str
    at: str
    """An RFC 9535 path into the arguments. Every value that it finds must satisfy the condition."""

    condition: Condition = msgspec.field(name="is", default_factory=Condition)
    """What the values must be; without it, a value must exist."""

    is_optional: bool = msgspec.field(name="optional", default=False)
    """Whether calls without a value at the path are in order."""

    def mistake(self) -> str | None:
        if self.condition.is_empty and self.is_optional:
            return 'it demands nothing: give `is`, such as { type = "string" }, or leave `optional` out'
        return path_error(self.at) or condition_error(self.condition)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        for tool in select_tools(run, [self.tool]):
            found = values_at(self.at, tool.arguments)
            if not found and not self.is_optional:
                yield RuleFinding(
                    f"{tool.name} has no {self.at}: its arguments are {show_value(tool.arguments)}", tool.step
                )
            for pointer, value in found:
                if why := broken_condition(self.condition, value):
                    yield RuleFinding(f"{tool.name}{pointer} is {show_value(value)}, which {why}", tool.step)


class TargetRule(_Selection, tag="target", kw_only=True, frozen=True):
    """What destructive calls may be aimed at. Without a selection, it is about every call that may change something."""

    allow: tuple[str, ...]
    """Patterns of values at `at`; without it, of `METHOD host/path`."""

    at: str | None = None
    """An RFC 9535 path into the arguments of the tool, or into the JSON body of the request."""

    def mistake(self) -> str | None:
        if self.tools and self.at is None:
            return 'a target of `tools` needs `at`, a path into their arguments, such as "$.id"'
        if self.tools and (self.hosts or self.methods or self.paths or self.models):
            return super().mistake()
        return None if self.at is None else path_error(self.at)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        if self.tools:
            for tool in select_tools(run, self.tools):
                yield from self._value_findings(tool.name, tool.arguments, tool.step)
            return
        has_selection = bool(self.hosts or self.methods or self.paths or self.models)
        for step in self.selected_steps(run):
            if not has_selection and not step.is_unsafe:
                continue
            if self.at is not None:
                yield from self._value_findings(step.target, step.call.request, step.number)
            elif not fits_any(step.target, self.allow):
                yield RuleFinding(f"{step.target} is not an allowed target: {_list_names(self.allow)}", step.number)

    def _value_findings(self, name: str, document: Json, step: int) -> Iterator[RuleFinding]:
        found = values_at(self.at or "$", document)
        if not found:
            yield RuleFinding(f"{name} names no target at {self.at}", step)
        for pointer, value in found:
            text = value if isinstance(value, str) else show_value(value)
            if not fits_any(text, self.allow):
                yield RuleFinding(
                    f"{name}{pointer} is {show_value(value)}; allowed are {_list_names(self.allow)}", step
                )


class BudgetRule(Rule, tag="budget", kw_only=True, frozen=True):
    """The most that a run may cost, use, take and do."""

    max_cost_usd: float | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_seconds: float | None = None
    """From the first request to the end of the last answer."""

    max_steps: int | None = None
    max_attempts: int | None = None
    """Tries, with those that were repeated."""

    def mistake(self) -> str | None:
        limits = [getattr(self, name) for name in BudgetRule.__struct_fields__ if name.startswith("max_")]
        if all(limit is None for limit in limits):
            return "give one or more of `max_cost_usd`, `max_input_tokens`, `max_output_tokens`, `max_seconds`, `max_steps`, `max_attempts`"
        return None if all(limit is None or limit >= 0 for limit in limits) else "a budget cannot be negative"

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        models = [step for step in run.steps if step.call.kind == "model" and (step.status or 500) < 400]
        yield from _sum_findings(
            "cost", "USD", self.max_cost_usd, [(step.number, step.usd) for step in run.steps if step.can_cost]
        )
        for kind, limit in (("input", self.max_input_tokens), ("output", self.max_output_tokens)):
            amounts = [(step.number, getattr(step.call.usage, f"{kind}_tokens")) for step in models]
            yield from _sum_findings(f"{kind} tokens", "tokens", limit, amounts)
        yield from self._time_findings(run)
        if self.max_steps is not None and len(run.steps) > self.max_steps:
            yield RuleFinding(
                f"the run has {len(run.steps)} steps, at most {self.max_steps} allowed",
                run.steps[self.max_steps].number,
            )
        attempts = sum(step.attempts for step in run.steps)
        if self.max_attempts is not None and attempts > self.max_attempts:
            yield RuleFinding(f"the run made {attempts} attempts, at most {self.max_attempts} allowed")

    def _time_findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        if self.max_seconds is None or not run.steps:
            return
        ends = [step.ended_at for step in run.steps if step.ended_at is not None]
        took = (max(ends) - run.steps[0].started_at) / _NANOSECONDS if ends else 0.0
        if took > self.max_seconds:
            yield RuleFinding(f"the run took {took:.3g} s, at most {self.max_seconds:g} s allowed")
        elif len(ends) < len(run.steps):
            yield RuleFinding("the end of a call is not known, so the run's time is not", is_undecided=True)


def _sum_findings(
    what: str, unit: str, limit: float | None, amounts: Iterable[tuple[int, Decimal | int | None]]
) -> Iterator[RuleFinding]:
    """Yield where a sum exceeds its limit, or that it is not known because a part is not."""
    if limit is None:
        return
    total, unknown = Decimal(0), list[int]()
    for step, amount in amounts:
        if amount is None:
            unknown.append(step)
            continue
        total += amount
        if total > Decimal(str(limit)):
            yield RuleFinding(f"the {what} up to here is {total:f} {unit}, at most {limit:g} allowed", step)
            return
    if unknown:
        steps = _list_names(list(map(str, unknown)))
        yield RuleFinding(f"the {what} of step {steps} is not known, so the sum is not", unknown[0], is_undecided=True)


def path_error(path: str) -> str | None:
    """Return why an RFC 9535 path is invalid; None if it is valid."""
    try:
        parse_own_path(path)
    except BadPath as error:
        return f"invalid path {path!r}: {error}; write an RFC 9535 path such as $.id or $.items[*].id"
    return None


def values_at(path: str, document: Json) -> list[PathMatch]:
    """Return the values that a valid path finds, with their JSON pointers."""
    return [PathMatch(str(match.pointer()), match.obj) for match in parse_path(path).finditer(document)]  # type: ignore[arg-type]
