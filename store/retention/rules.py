"""What the rules of retention say of a run. Pure.

The first rule that matches a run decides. Before the rules of the user stands one that ships with Playhead: a run that ended badly is
kept. No rule removes a run that is pinned, flagged, live, or that another run was forked from.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

type Protection = Literal["pinned", "flagged", "forked from", "live", "not summed yet"]
"""Why no rule applies to a run."""

FOREVER: Final = "forever"

FLAG: Final = "flagged"
"""The label that protects a run like a pin."""

_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_DURATION: Final = re.compile(r"(\d{1,6})([mhdwy])")
_SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([kKMGTP]?)(i?)B?")
_STATUS: Final = re.compile(r"[1-5](\d\d|xx)")
_EXPONENTS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

VERDICTS: Final = ("right", "diverged", "unknown")


class BadRule(ValueError):
    """A rule is invalid; the message says why and what to write."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What rules look at. Times are nanoseconds since the Unix epoch."""

    project: str
    run: str
    newest_at: int
    """When its newest exchange began."""

    labels: Mapping[str, str] = {}
    models: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    cost_usd: float | None = None
    """The sum of the costs that are known; None if none is."""

    has_error: bool = False
    has_gap: bool = False
    ended_badly: bool = False
    verdicts: frozenset[str] = frozenset()
    """The verdicts of its replays."""

    is_pinned: bool = False
    is_forked_from: bool = False
    is_live: bool = False
    is_summed: bool = True
    """Whether the sums that rules look at are made."""

    bodies_erased_at: int | None = None
    """Its newest exchange when its bodies were erased."""

    @property
    def protection(self) -> Protection | None:
        """Why no rule applies to it."""
        if self.is_live:
            return "live"
        if self.is_pinned:
            return "pinned"
        if self.labels.get(FLAG, "false") != "false":
            return "flagged"
        if self.is_forked_from:
            return "forked from"
        return None if self.is_summed else "not summed yet"


class RunMatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which runs a rule is about: those that have all that is given. Of several values, one must fit."""

    project: tuple[str, ...] = ()
    """Names; `*` stands for any letters, here and in models and values of labels."""

    label: Mapping[str, str] = {}
    model: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    """`429`, or `5xx`."""

    min_cost: float | None = None
    max_cost: float | None = None
    has_error: bool | None = None
    has_gap: bool | None = None
    failed: bool | None = None
    verdict: tuple[str, ...] = ()
    pinned: bool | None = None

    def fits(self, facts: RunFacts) -> bool:
        """Whether a run has all that is given."""
        cost = facts.cost_usd or 0.0
        return (
            (not self.project or _is_like_any([facts.project], self.project))
            and all(
                _is_like_any([facts.labels[name]] if name in facts.labels else [], [value])
                for name, value in self.label.items()
            )
            and (not self.model or _is_like_any(facts.models, self.model))
            and (not self.status or any(_has_status(facts.statuses, status) for status in self.status))
            and (self.min_cost is None or cost >= self.min_cost)
            and (self.max_cost is None or cost <= self.max_cost)
            and self.has_error in (None, facts.has_error)
            and self.has_gap in (None, facts.has_gap)
            and self.failed in (None, facts.ended_badly)
            and (not self.verdict or not facts.verdicts.isdisjoint(self.verdict))
            and self.pinned in (None, facts.is_pinned)
        )


class RetentionRule(msgspec.Struct, frozen=True, kw_only=True):
    """How long the runs that match are kept, and how long their bodies. Durations are in seconds; None: for ever."""

    name: str
    match: RunMatch = RunMatch()
    keep: int | None = None
    bodies: int | None = None
    """None: as long as the run."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """All rules in their order, and the size budget of the store in bytes."""

    rules: tuple[RetentionRule, ...] = ()
    budget: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether anything may ever go."""
        return self.budget is not None or any(rule.keep is not None or rule.bodies is not None for rule in self.rules)


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a run."""

    part: Literal["run", "bodies"] | None
    """What goes; None: nothing."""

    reason: str
    rule: str | None = None
    """The name of the rule that decided."""

    may_go_for_budget: bool = False
    """Whether it may go before its time if the store is too large."""


def judge_run(facts: RunFacts, rules: Sequence[RetentionRule], now: int) -> Verdict:
    """Decide what becomes of a run at a time."""
    if (protection := facts.protection) is not None:
        return Verdict(None, protection)
    rule = next((rule for rule in rules if rule.match.fits(facts)), None)
    if rule is None:
        return Verdict(None, "no rule matches", None, True)
    age = (now - facts.newest_at) // 1_000_000_000
    if rule.keep is not None and age >= rule.keep:
        return Verdict("run", f"{rule.name}: older than {duration_text(rule.keep)}", rule.name, True)
    # Bodies that came after the last erasure are as new as the newest exchange.
    are_erased = facts.bodies_erased_at is not None and facts.bodies_erased_at >= facts.newest_at
    if rule.bodies is not None and age >= rule.bodies and not are_erased:
        reason = f"{rule.name}: bodies older than {duration_text(rule.bodies)}"
        return Verdict("bodies", reason, rule.name, rule.keep is not None)
    return Verdict(None, rule.name, rule.name, rule.keep is not None)


def shipped_rules(keep_failed: str = FOREVER) -> tuple[RetentionRule, ...]:
    """Return the rules that stand before the user's. Raises `BadRule`."""
    return (RetentionRule(name="runs that ended badly", match=RunMatch(failed=True), keep=parse_duration(keep_failed)),)


def parse_rule(table: Mapping[str, Any], number: int) -> RetentionRule:
    """Read a `[[retention]]` table, the `number`th. Raises `BadRule`."""
    _refuse_unknown(table, ("name", "match", "keep", "keep_bodies"), "a [[retention]] table")
    if "keep" not in table:
        raise BadRule('a [[retention]] table needs keep, such as keep = "7d" or keep = "forever"')
    keep = parse_duration(table["keep"])
    bodies = parse_duration(table["keep_bodies"]) if "keep_bodies" in table else None
    if bodies is not None and keep is not None and bodies >= keep:
        raise BadRule(
            f"keep_bodies = {table['keep_bodies']!r} is no shorter than keep = {table['keep']!r}: leave keep_bodies out"
        )
    name = table.get("name", f"rule {number}")
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise BadRule("the name of a [[retention]] table is a text of 1 to 100 characters")
    match = table.get("match", {})
    if not isinstance(match, Mapping):
        raise BadRule('match is a table, such as match = { label = { env = "ci" } }')
    return RetentionRule(name=name, match=_parse_match(match), keep=keep, bodies=bodies)


def _parse_match(match: Mapping[str, Any]) -> RunMatch:
    _refuse_unknown(match, RunMatch.__struct_fields__, "the match of a [[retention]] table")
    conditions: dict[str, Any] = {}
    for name, value in match.items():
        match name:
            case "project" | "model" | "verdict" | "status":
                conditions[name] = tuple(_parse_words(name, value))
            case "label":
                if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
                    raise BadRule('label is a table of texts, such as label = { env = "ci" }; "*" fits any value')
                conditions[name] = dict(value)
            case "min_cost" | "max_cost":
                if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                    raise BadRule(f"{name} = {value!r:.80} is not an amount in US dollars, such as {name} = 0.5")
                conditions[name] = float(value)
            case _:
                if not isinstance(value, bool):
                    raise BadRule(f"{name} = {value!r:.80} is neither true nor false")
                conditions[name] = value
    return RunMatch(**conditions)


def _parse_words(name: str, value: object) -> Iterable[str]:
    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        word = str(one) if isinstance(one, int) and not isinstance(one, bool) else one
        if not isinstance(word, str) or not word:
            raise BadRule(f"{name} = {one!r} is not a text")
        if name == "status" and not _STATUS.fullmatch(word):
            raise BadRule(f"status = {one!r} is not a status: write 429, or 5xx for all from 500 to 599")
        if name == "verdict" and word not in VERDICTS:
            raise BadRule(f"verdict = {one!r} is not a verdict of a replay: use {', '.join(VERDICTS)}")
        yield word


def _refuse_unknown(table: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    if unknown := [name for name in table if name not in names]:
        raise BadRule(f"{what} has no member {unknown[0]!r}: it may have {', '.join(names)}")


def parse_duration(text: object) -> int | None:
    """Parse `7d` to seconds; None for `forever`. Raises `BadRule`."""
    if text == FOREVER:
        return None
    if not isinstance(text, str) or not (found := _DURATION.fullmatch(text)) or not int(found[1]):
        raise BadRule(f"invalid duration {text!r:.80}: use 30m, 12h, 7d, 2w, 1y or forever")
    return int(found[1]) * _UNITS[found[2]]


def parse_size(text: object) -> int:
    """Parse `50GB` or `50GiB` to bytes. Raises `BadRule`."""
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None or not float(found[1]):
        raise BadRule(f"invalid size {text!r:.80}: use 500MB, 50GB, 50GiB or 1.5TB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _EXPONENTS[found[2]])


def duration_text(seconds: int) -> str:
    """Write seconds as `parse_duration` reads them."""
    unit = next(unit for unit in reversed(_UNITS) if unit != "y" and (seconds % _UNITS[unit] == 0 or unit == "m"))
    return f"{seconds // _UNITS[unit]}{unit}"


def _is_like_any(values: Iterable[str], patterns: Iterable[str]) -> bool:
    pattern_list = tuple(patterns)
    return any(fnmatchcase(value, pattern) for value in values for pattern in pattern_list)


def _has_status(statuses: Iterable[int], pattern: str) -> bool:
    return any(str(status) == pattern or f"{status // 100}xx" == pattern for status in statuses)
