"""Show a person why a replay was not right: each miss beside the nearest recorded call, and what would help."""

from collections.abc import Iterable, Iterator, Mapping
from shlex import quote
from typing import Any, Final

from replay.misses.miss import TITLES

type Report = Mapping[str, Any]

_TOLD: Final = 10
"""Misses that are told one by one where nobody asks for one of them."""


def why(report: Report, number: int | None = None) -> Iterator[str]:
    """The lines that tell it: of the whole replay, or of one of its requests."""
    misses = [one for one in report["misses"] if number in (None, one["number"])]
    if number is not None:
        yield from _one(misses, report, number)
        return
    yield f"replay {report['id']} of {report['run']}: {_headline(report)}"
    for one in misses[:_TOLD]:
        yield ""
        yield from missed(one)
    unasked = report["missed"] + report["live"] - min(len(misses), _TOLD)
    if unasked > 0:
        yield ""
        yield f"and {unasked} more, which mostly follow from these; one of them: playhead why NUMBER"
    yield from _left_over(report)
    yield from _drift(report)


def _one(misses: list[Report], report: Report, number: int) -> Iterator[str]:
    if misses:
        yield from missed(misses[0])
    elif report["missed"] + report["live"] > len(report["misses"]):
        yield f"request {number} of replay {report['id']} was answered, or was missed after the {len(report['misses'])} that are told"
    else:
        yield f"request {number} of replay {report['id']} was answered from the recording, if it came at all"


def _headline(report: Report) -> str:
    if report.get("interrupted"):
        return "its proxy ended before it did, so nothing can be said about what came after"
    match report["verdict"]:
        case "right":
            return f"right: {report['served'] + report['edited']} answered from the recording, none missed"
        case "diverged":
            return f"diverged, {report['missed']} missed, {report['live']} live, {report['unused']} left over"
        case _ if report["live"]:
            return f"there was no recording: {report['live']} calls went out, to be recorded"
        case _:
            return "nothing was asked, so nothing can be said: see whether requests reach the proxy with playhead doctor -- CMD"


def missed(one: Report, *, stored: bool = True) -> Iterator[str]:
    """One miss. Of a recording that is not `stored` nobody can look at a call by its id."""
    yield f"request {one['number']}, {one['reason']}: {one['asked'] or TITLES[one['reason']]}"
    nearest = one["nearest"] or {}
    differences = nearest.get("differences") or ()
    if differences:
        show = f" (playhead show {nearest['call']})" if stored else ""
        yield f"  nearest is step {nearest['step']}{show}; recorded -, now +"
        yield from _sides(differences)
        if more := nearest.get("more"):
            yield f"    and {more} more places"
    else:
        yield f"  {one['detail']}"
    yield from _fixes(one["fix"])


def _sides(differences: Iterable[Report]) -> Iterator[str]:
    for difference in differences:
        yield f"    {difference['pointer'] or '(all of it)'}"
        for sign, side in (("-", "recorded"), ("+", "now")):
            absent = difference.get("only") not in (None, side)
            yield f"      {sign} {'(absent)' if absent else repr(difference[side])}"


def _fixes(fix: str) -> Iterator[str]:
    for word, way in zip(["to mend it", *["or"] * fix.count("; or ")], fix.split("; or "), strict=True):
        yield f"  {word}: {way}"


def _left_over(report: Report) -> Iterator[str]:
    if not report["unused"]:
        return
    yield ""
    yield f"left over: {report['unused']} of the recorded calls not asked for"
    for entry in report["left_over"][:_TOLD]:
        yield f"  step {entry['step']}, {entry['asked']}"
    if not report["allow_unused"]:
        called = quote(str(report.get("called") or report["run"]))
        yield f"  if it may ask less than it did then: playhead replay {called} --allow-unused -- CMD"


def _drift(report: Report) -> Iterator[str]:
    if not report["drifted"]:
        return
    yield ""
    yield f"drift: {report['drifted']} answered requests differ from the recorded ones outside their key, which is no miss"
    for one in report["drift"][:_TOLD]:
        yield f"  call {one['call']}: {', '.join(one['pointers'])}"
