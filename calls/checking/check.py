"""Check a run against a spec, and say what is broken."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from calls.checking.checked_run import CheckedRun
from calls.checking.rules import RuleFinding
from calls.checking.spec import SpecRule

type CheckVerdict = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What one rule found in a run."""

    rule: SpecRule
    findings: tuple[RuleFinding, ...]

    @property
    def verdict(self) -> CheckVerdict:
        """`fail` if something is wrong, `unknown` if only something is undecided."""
        if any(not finding.is_undecided for finding in self.findings):
            return "fail"
        return "unknown" if self.findings else "pass"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What all rules found in a run."""

    run: str
    steps: int
    rules: tuple[RuleResult, ...]

    @property
    def verdict(self) -> CheckVerdict:
        """`fail` if a rule failed, else `unknown` if one is, else `pass`."""
        return worst_verdict(result.verdict for result in self.rules)


def check_run(run: CheckedRun, spec: Iterable[SpecRule]) -> CheckResult:
    """Check a run against every rule."""
    return CheckResult(
        run.name, len(run.steps), tuple(RuleResult(rule, tuple(rule.rule.findings(run))) for rule in spec)
    )


def worst_verdict(verdicts: Iterable[CheckVerdict]) -> CheckVerdict:
    """Return the worst of several verdicts: `fail`, then `unknown`, then `pass`."""
    found = set(verdicts)
    return next((verdict for verdict in ("fail", "unknown") if verdict in found), "pass")
