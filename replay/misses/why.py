"""Format why a replay diverged: each miss with its nearest recorded call and possible fixes."""

from collections.abc import Iterable, Iterator, Mapping
from shlex import quote
from typing import Any, Final

from replay.misses.miss import MISS_TITLES

type Report = Mapping[str, Any]

_LISTED: Final = 10
"""Maximum number of misses, unused calls and drifted calls that are listed."""


def explanation_lines(report: Report, number: int | None = None) -> Iterator[str]:
    """Format the whole report, or the miss of one request."""
    misses = [one for one in report["misses"] if number in (None, one["number"])]
    if number is not None:
        yield from _request_lines(misses, report, number)
        return
    yield f"replay {report['id']} of {report['run']}: {_headline(report)}"
    for one in misses[:_LISTED]:
        yield ""
        yield from miss_lines(one)
    unlisted = report["missed"] + report["live"] - min(len(misses), _LISTED)
    if unlisted > 0:
        yield ""
        yield f"and {unlisted} more, most of them probably consequences of these; to see one: playhead why NUMBER"
    yield from _unused_lines(report)
    yield from _drift_lines(report)


def _request_lines(misses: list[Report], report: Report, number: int) -> Iterator[str]:
    if misses:
        yield from miss_lines(misses[0])
    elif report["missed"] + report["live"] > len(report["misses"]):
        yield f"request {number} of replay {report['id']} was answered, or was missed after the {len(report['misses'])} misses that the report lists"
    else:
        yield f"request {number} of replay {report['id']} was not missed: it was answered from the recording, or there was no such request"


def _headline(report: Report) -> str:
    if report.get("interrupted"):
        return "interrupted: its proxy ended before the command did, so what followed is unknown"
    match report["verdict"]:
        case "right":
            return f"right: {report['served'] + report['edited']} answered from the recording, none missed"
        case "diverged":
            return f"diverged, {report['missed']} missed, {report['live']} live, {report['unused']} unused"
        case _ if report["live"]:
            return f"there was no recording: {report['live']} calls went live and were recorded"
        case _:
            return "no request reached the proxy: check whether requests reach it with playhead doctor -- CMD"


def miss_lines(one: Report, *, is_stored: bool = True) -> Iterator[str]:
    """Format one miss. If the recording `is_stored`, the command that shows the nearest call is suggested."""
    yield f"request {one['number']}, {one['reason']}: {one['asked'] or MISS_TITLES[one['reason']]}"
    nearest = one["nearest"] or {}
    differences = nearest.get("differences") or ()
    if differences:
        show = f" (playhead show {nearest['call']})" if is_stored else ""
        yield f"  nearest is step {nearest['step']}{show}; recorded -, now +"
        yield from _difference_lines(differences)
        if more := nearest.get("more"):
            yield f"    and {more} more places"
    else:
        yield f"  {one['detail']}"
    yield from _fix_lines(one["fix"])
    if page := one.get("page"):
        yield f"  look at it: {page}"


def _difference_lines(differences: Iterable[Report]) -> Iterator[str]:
    for difference in differences:
        yield f"    {difference['pointer'] or '(all of it)'}"
        for sign, side in (("-", "recorded"), ("+", "now")):
            absent = difference.get("only") not in (None, side)
            yield f"      {sign} {'(absent)' if absent else repr(difference[side])}"


def _fix_lines(fix: str) -> Iterator[str]:
    for word, way in zip(["to fix it", *["or"] * fix.count("; or ")], fix.split("; or "), strict=True):
        yield f"  {word}: {way}"


def _unused_lines(report: Report) -> Iterator[str]:
    if not report["unused"]:
        return
    yield ""
    yield f"unused: {report['unused']} recorded calls that were not requested"
    for entry in report["unused_steps"][:_LISTED]:
        yield f"  step {entry['step']}, {entry['asked']}"
    if not report["allow_unused"]:
        called = quote(str(report.get("called") or report["run"]))
        yield f"  if it may send fewer requests than recorded: playhead replay {called} --allow-unused -- CMD"


def _drift_lines(report: Report) -> Iterator[str]:
    if not report["drifted"]:
        return
    yield ""
    yield f"drift: {report['drifted']} answered requests differ from the recorded ones outside their key (not a miss)"
    for one in report["drift"][:_LISTED]:
        yield f"  call {one['call']}: {', '.join(one['pointers'])}"
