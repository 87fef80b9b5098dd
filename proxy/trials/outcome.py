"""Decide what came of a trial: the same as recorded, diverged (where, and how), or it cannot be told."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from calls.keys.divergence import shorten_pointer
from proxy.trials.trial import TrialResult
from replay.report import report_with_escapes

type Verdict = Literal["same", "diverged", "cannot tell"]

SKIP: Final = 125
"""With this exit code a command says that it cannot be judged, as for `git bisect run`."""

CAUSES: Final = {
    "no_match": "another request",
    "consumed": "a request once more",
    "unused": "a request less",
    "connection_refused": "a connection that was not recorded",
    "escaped": "a connection past the proxy",
    "incomplete": "an answer that was recorded incompletely",
    "profile_changed": "other key rules than when it was recorded",
    "redaction_changed": "other redaction rules than when it was recorded",
    "client_left": "a client that left before the answer's end",
    "exit_code": "the same requests, but the command failed",
}
"""What a divergence is, by its reason in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first divergence of a trial. Two runs diverge alike if their causes, targets and pointers are equal."""

    cause: str
    target: str | None
    """The kind of step: method, host and path, with ids left out."""

    pointer: str | None
    """The place in the request, with the places in lists left out."""

    step: int | None
    detail: str
    recorded: Any = None
    now: Any = None

    @property
    def cluster(self) -> tuple[str, str, str]:
        """What equal divergences have in common."""
        return self.cause, self.target or "", self.pointer or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one trial."""

    verdict: Verdict
    reason: str | None = None
    """Why it cannot be told."""

    divergence: Divergence | None = None


def trial_outcome(result: TrialResult, limit_s: float, *, allow_unused: bool) -> Outcome:
    """Return what came of a plain replay."""
    if (reason := _untold_reason(result, limit_s)) is not None:
        return Outcome(verdict="cannot tell", reason=reason)
    report = _whole_report(result)
    if divergence := first_divergence(report, allow_unused=allow_unused):
        return Outcome(verdict="diverged", divergence=divergence)
    if result.code:
        detail = f"every request was as recorded, but the command ended with {result.code}{last_words(result.output)}"
        return Outcome(
            verdict="diverged",
            divergence=Divergence(
                cause="exit_code", target=None, pointer=f"exit {result.code}", step=None, detail=detail
            ),
        )
    return Outcome(verdict="same")


def _untold_reason(result: TrialResult, limit_s: float) -> str | None:
    if result.failure is not None:
        return result.failure
    if result.is_timed_out:
        return f"it was stopped after {limit_s:g} s (--timeout)"
    report = result.report
    if result.code == SKIP:
        return f"the command ended with {SKIP}, which means that it cannot be judged"
    if report is None:
        return "the replay left no report"
    if _request_count(report) == 0:
        if result.code:
            return f"the command ended with {result.code} before its first call{last_words(result.output)}"
        return "no request reached the proxy; see: playhead doctor -- CMD"
    if report.get("interrupted"):
        return "its proxy ended before the command did"
    return None


def _request_count(report: Mapping[str, Any]) -> int:
    blocked = (report.get("fork") or {}).get("blocked", 0)
    return sum(report.get(name) or 0 for name in ("served", "missed", "live", "edited", "refused")) + int(blocked)


def _whole_report(result: TrialResult) -> Mapping[str, Any]:
    assert result.report is not None
    return report_with_escapes({**result.report, "connections": list(result.connections)})


def first_divergence(report: Mapping[str, Any], *, allow_unused: bool) -> Divergence | None:
    """Return the first divergence that a report has; None if there is none."""
    if report["missed"] or report["live"] or report["refused"]:
        return _missed_divergence(report["first_divergence"])
    if blocked := (report.get("fork") or {}).get("blocked_calls"):
        request = str(blocked[0]["asked"])
        return Divergence(
            cause="no_match", target=step_kind(request), pointer=None, step=None, detail=f"{request} was not recorded"
        )
    if report.get("escaped"):
        escaped = next(one for one in report["connections"] if one["outcome"] == "escaped")
        return Divergence(
            cause="escaped", target=str(escaped["destination"]), pointer=None, step=None, detail=str(escaped["reason"])
        )
    if report["unused"] and not allow_unused:
        unused = report["unused_steps"][0]
        detail = f"step {unused['step']} was not asked for: {unused['asked']}"
        return Divergence(
            cause="unused", target=step_kind(unused["asked"]), pointer=None, step=unused["step"], detail=detail
        )
    return None


def _missed_divergence(first: Mapping[str, Any] | None) -> Divergence:
    if first is None:
        # A live request has no entry.
        return Divergence(cause="no_match", target=None, pointer=None, step=None, detail="a request was not recorded")
    nearest = first.get("nearest") or {}
    differences: Sequence[Mapping[str, Any]] = nearest.get("differences") or ()
    place = differences[0] if differences and first["reason"] == "no_match" else None
    return Divergence(
        cause=str(first["reason"]),
        target=step_kind(first["asked"]) if first.get("asked") else None,
        pointer=None if place is None else general_pointer(str(place["pointer"])),
        step=nearest.get("step"),
        detail=str(first["detail"]),
        recorded=None if place is None else place.get("recorded"),
        now=None if place is None else place.get("now"),
    )


_ID_PART: Final = re.compile(r"(?=[^/]*\d)[^/]+")
_LIST_PLACE: Final = re.compile(r"/\d+(?=/|$)")


def step_kind(request: str) -> str:
    """Return method, host and path of a request, in which `*` stands for parts that look like ids."""
    method, _, url = request.partition(" ")
    parts = urlsplit(url)
    if not parts.netloc:
        return shorten_pointer(request)
    path = "/".join(_general_part(part) for part in parts.path.split("/"))
    return shorten_pointer(f"{method} {parts.hostname}{path}")


def _general_part(part: str) -> str:
    """Versions such as v1 are no ids."""
    return "*" if _ID_PART.fullmatch(part) and not re.fullmatch(r"v\d+\w*", part) else part


def general_pointer(pointer: str) -> str:
    """Return a JSON pointer in which `*` stands for places in lists."""
    return _LIST_PLACE.sub("/*", pointer)


def last_words(output: str) -> str:
    """Return the last line that the command printed, to add to a sentence."""
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    return f": {last[:300]}" if last else ""
