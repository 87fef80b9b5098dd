"""The report of a replay: as JSON, and in a few lines for a person."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from calls.keys.divergence import readable
from calls.model import Json
from replay.answer import Tier

if TYPE_CHECKING:
    from replay.script import ScriptMatch

type Verdict = Literal["right", "diverged", "unknown"]

LISTED = 50
"""Misses, left-over recordings and text lines that are listed. The counts are always whole."""

DRIFTS = 1000


@dataclass(slots=True)
class Tally:
    """What happened in a replay so far."""

    served: int = 0
    missed: int = 0
    live: int = 0
    edited: int = 0
    edited_at: int | None = None
    """The step that was last answered otherwise than it was recorded."""

    allowed: int = 0
    """Requests to hosts that may be asked for real. They are no part of the replay."""

    ambiguous: int = 0
    strict: int = 0
    """Of those served: the request was the recorded one in all that it said."""

    again: int = 0
    """Answers that were given a second time, because the policy lets them."""

    reframed: int = 0
    drifted: int = 0
    drift: list[Json] = field(default_factory=list)
    """[{call, pointers}] of the first `DRIFTS` answers that drifted."""

    answered_by: list[Json] = field(default_factory=list)
    """Ids of the exchanges that answered, where a report is to name them."""

    misses: list[Json] = field(default_factory=list)
    """The first `LISTED` requests that were missed or went live."""

    refused: int = 0
    """Connections that were neither TLS nor HTTP, or could not be answered for another reason."""

    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many, by destination and reason; the first `LISTED` of them."""

    def refuse_connection(self, destination: str, reason: str) -> None:
        """A connection of the command was refused: without it the replay may have gone another way."""
        self.refused += 1
        about = destination, reason
        if about in self.refusals or len(self.refusals) < LISTED:
            self.refusals[about] = self.refusals.get(about, 0) + 1

    def hit(self, taken: "ScriptMatch", tier: Tier, *, reframed: bool) -> None:
        """A request was answered from the recording."""
        self.served += 1
        self.strict += tier == "strict"
        self.ambiguous += taken.ambiguous
        self.again += taken.again
        self.reframed += reframed

    def not_hit(self, tier: Tier) -> None:
        """What was counted as served was not served to its end."""
        self.served -= 1
        self.strict -= tier == "strict"

    def differed(self, call: str, pointers: Sequence[str]) -> None:
        """It differed from the recorded one outside its key, at these places."""
        self.drifted += 1
        if len(self.drift) < DRIFTS:
            self.drift.append({"call": call, "pointers": list(map(readable, pointers))})

    def miss(self, noted: Json, *, live: bool = False) -> None:
        """A request was not answered from the recording."""
        self.live += live
        self.missed += not live
        if len(self.misses) < LISTED:
            self.misses.append(noted)


def verdict(tally: Tally, unused: int, *, allow_unused: bool) -> Verdict:
    """Right: everything was served from the recording, nothing is left over and no connection was refused. Unknown: nothing
    was asked at all."""
    if tally.missed or tally.live or tally.refused or (unused and not allow_unused):
        return "diverged"
    return "right" if tally.served or tally.edited else "unknown"


def report(
    tally: Tally,
    *,
    replay: str,
    run: str,
    recorded: int,
    left_over: list[Json],
    unused: int,
    allow_unused: bool,
    unused_leads: bool = False,
    is_first: bool = False,
) -> dict[str, Json]:
    """The report of the contract, and what else a person wants to know. `unused_leads`: what is unused are its first steps.
    `is_first`: the run is being recorded for the first time, so there is nothing that it could diverge from."""
    refusals = _refusals(tally)
    is_first = is_first and not (recorded or tally.missed or tally.refused)
    first: Json = tally.misses[0] if tally.misses and not is_first else _first_refusal(refusals)
    if first is None and left_over and not allow_unused:
        first = {"reason": "unused", **left_over[0]} if isinstance(left_over[0], Mapping) else None
    return {
        "id": replay,
        "run": run,
        "served": tally.served,
        "missed": tally.missed,
        "unused": unused,
        "unused_leads": unused_leads and unused > 0,
        "live": tally.live,
        "edited": tally.edited,
        "ambiguous": tally.ambiguous,
        "drift": list(tally.drift),
        "first_divergence": first,
        "verdict": "unknown" if is_first else verdict(tally, unused, allow_unused=allow_unused),
        "recorded": recorded,
        "allowed": tally.allowed,
        "strict": tally.strict,
        "semantic": tally.served - tally.strict,
        "again": tally.again,
        "reframed": tally.reframed,
        "drifted": tally.drifted,
        "misses": list(tally.misses),
        "refused": tally.refused,
        "refusals": [*refusals],
        "left_over": left_over,
        "allow_unused": allow_unused,
        "interrupted": False,
        **({"answered_by": list(tally.answered_by)} if tally.answered_by else {}),
    }


def _refusals(tally: Tally) -> list[dict[str, Json]]:
    return [
        {"destination": destination, "reason": reason, "count": count}
        for (destination, reason), count in tally.refusals.items()
    ]


def _first_refusal(refusals: Sequence[Mapping[str, Json]]) -> dict[str, Json] | None:
    """The first connection that was refused, in the form of a miss."""
    if not refusals:
        return None
    destination = str(refusals[0]["destination"])
    return {
        "reason": "connection_refused",
        "number": None,
        "asked": destination,
        "detail": f"the connection to {destination} was refused: {refusals[0]['reason']}",
        "nearest": None,
        "fix": f"if it may reach the real one in a replay: --allow-local {destination}",
    }


def interrupted(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a replay whose worker ended in the middle: which of its answers arrived, and what else would have been asked
    for, nobody knows."""
    verdict = "diverged" if report["missed"] or report["live"] or report.get("refused") else "unknown"
    return {**report, "verdict": verdict, "interrupted": True}


def escaped(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a replay whose command may have opened connections past the proxy: then what it did there was done for real."""
    count = sum(one["count"] for one in report.get("connections", ()) if one["outcome"] == "escaped")
    return {**report, "escaped": count, **({"verdict": "diverged"} if count else {})}


def lines(report: Mapping[str, Any], called: str | None = None) -> Iterator[str]:
    """The report for a person, with what to do next. `called`: what they call the recording. What came over the wire is in
    it as it came: a terminal must not get to see it so."""
    called = called or str(report["run"])
    yield f"playhead: {_headline(report)}"
    yield f"          {_counts(report)}"
    yield from _notes(report)
    yield from _first(report)
    yield from _refused(report)
    yield from _left_over(report)
    for word, fix in zip(chain(["next"], repeat("  or")), _next(report, called).split("; or "), strict=False):
        if fix:
            yield f"          {word}: {fix}"


def _headline(report: Mapping[str, Any]) -> str:
    run = report["run"]
    match report["verdict"]:
        case "right":
            if report.get("isolation") == "watched":
                return f"replay of {run} was right, not isolated: no connection was seen to go past the proxy"
            if report.get("isolation", "captive") != "captive":
                return f"replay of {run} was right, not isolated: what reached the proxy was answered, the rest is not known"
            return f"replay of {run} was right: every call was answered from the recording"
        case "diverged" if _only_escaped(report):
            return f"replay of {run} DIVERGED: it went past the proxy, so what it did there was done for real"
        case "diverged":
            return f"replay of {run} DIVERGED from the recording"
        case _ if report.get("interrupted"):
            return f"replay of {run} was interrupted: its proxy ended before it did, so nothing can be said"
        case _ if report["live"]:
            return f"{run} had no recording: its calls went out, to be recorded"
        case _:
            return f"replay of {run}: nothing was asked, so nothing can be said"


def _only_escaped(report: Mapping[str, Any]) -> bool:
    left_over = report["unused"] and not report["allow_unused"]
    return bool(
        report.get("escaped") and not (report.get("refused") or report["missed"] or report["live"] or left_over)
    )


def _counts(report: Mapping[str, Any]) -> str:
    shown = ["served", "missed", "live", "edited", "unused", "refused", "ambiguous", "allowed", "escaped"]
    always = {"served", "missed", "live", "unused"}
    counts = ", ".join(f"{report[name]} {name}" for name in shown if name in always or report.get(name))
    return f"{counts}; the recording has {report['recorded']}"


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    if report.get("interrupted") and report["verdict"] == "diverged":
        yield "          interrupted: its proxy ended before it did, so some of this may be for that alone"
    if report["ambiguous"]:
        yield "          ambiguous: equal requests were under way at once when recorded; which answer was whose is a guess"
    if report["reframed"]:
        yield f"          reframed: {report['reframed']} answers were asked as a stream but recorded whole, or the reverse"
    yield from idle(report)
    if report["drifted"]:
        counts = Counter(pointer for drift in report["drift"] for pointer in drift["pointers"])
        places = ", ".join(f"{pointer or 'the body'} ({count})" for pointer, count in counts.most_common(5))
        yield f"          drift: {report['drifted']} answered requests differ from the recorded ones outside their key: {places}"


def idle(report: Mapping[str, Any]) -> Iterator[str]:
    """The overrides by which nothing was answered."""
    for one in report.get("overrides", ()):
        if not one["answered"]:
            yield f"          override {one['override']} ({one['what']} at {one['where']}) was not met: nothing asked for it"


def _first(report: Mapping[str, Any]) -> Iterator[str]:
    first = report["first_divergence"]
    if not first or first["reason"] in ("unused", "connection_refused"):
        return
    nearest = first["nearest"] or {}
    differences = nearest.get("differences") or ()
    what = f"{first['asked']}, nearest is step {nearest['step']}:" if differences else first["detail"]
    yield f"          first: request {first['number']}, {first['reason']}: {what}"
    for difference in differences:
        yield f"            {difference['pointer']}"
        yield f"              - {_side(difference, 'recorded')}"
        yield f"              + {_side(difference, 'now')}"


def _refused(report: Mapping[str, Any]) -> Iterator[str]:
    refusals = report.get("refusals") or ()
    for one in refusals[:5]:
        times = f" ({one['count']} times)" if one["count"] > 1 else ""
        yield f"          refused: {one['destination']}{times}: {one['reason']}"
    if len(refusals) > 5:
        yield f"          refused: and {len(refusals) - 5} more destinations"


def _side(difference: Mapping[str, Any], side: str) -> str:
    return "(absent)" if difference.get("only") not in (None, side) else repr(difference[side])


def _left_over(report: Mapping[str, Any]) -> Iterator[str]:
    if report["allow_unused"] or report.get("interrupted"):
        return
    for entry in report["left_over"][:5]:
        yield f"          left over: step {entry['step']}, {entry['asked']}"
    if report["unused"] > 5:
        yield f"          left over: and {report['unused'] - 5} more"


def _next(report: Mapping[str, Any], called: str) -> str:
    first = report["first_divergence"]
    if report.get("interrupted") and (not first or first["reason"] == "unused"):
        return "run it again"
    if report["verdict"] == "unknown" and report["live"]:
        return ""
    if not report["served"] and (not first or first["reason"] == "unused"):
        return "see whether its requests reach the proxy: playhead doctor -- CMD"
    if not first:
        return ""
    if first["reason"] != "unused":
        return str(first["fix"])
    again = f"playhead replay {quote(called)} --allow-unused -- CMD"
    return f"if it may ask less than it did then: {again}; or record the run again: playhead record -- CMD"
