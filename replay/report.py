"""Build the report of a replay, as JSON and as a few lines of text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from calls.keys.divergence import shorten_pointer
from calls.model import Json
from replay.answer import MatchTier

if TYPE_CHECKING:
    from replay.script import ScriptMatch

type Verdict = Literal["right", "diverged", "unknown"]

REPORT_LISTED = 50
"""Maximum number of misses, unused exchanges and refused destinations that a report lists. Counts are always complete."""

REQUESTS_LISTED = 10
"""Maximum number of misses that are listed with their requests and similar calls: the others mostly follow from them."""

DRIFTS_LISTED = 1000


class Tally(msgspec.Struct):
    """The counts of a replay."""

    served: int = 0
    missed: int = 0
    live: int = 0
    edited: int = 0
    last_edited_step: int | None = None
    """The last step that got an edited answer."""

    allowed: int = 0
    """Requests to hosts whose mode is `passthrough`. They are not part of the replay."""

    ambiguous: int = 0
    strict: int = 0
    """Requests among those served that equal the recorded ones in everything they say."""

    repeated: int = 0
    """Answers given again because the policy allows it."""

    reframed: int = 0
    ids_replaced: int = 0
    """Answers in which ids that the client had drawn were replaced by those that it draws now."""

    drifted: int = 0
    drift: list[Json] = msgspec.field(default_factory=list)
    """`{call, pointers}` of the first `DRIFTS_LISTED` requests that drifted."""

    answered_by: list[Json] = msgspec.field(default_factory=list)
    """Ids of the exchanges that answered, if the report lists them."""

    misses: list[Json] = msgspec.field(default_factory=list)
    """The first `REPORT_LISTED` requests that were missed or went live."""

    refused: int = 0
    """Connections that were neither TLS nor HTTP, or could not be answered for another reason."""

    refusals: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """Number of refused connections by destination and reason, for the first `REPORT_LISTED` of these."""

    def add_refused_connection(self, destination: str, reason: str) -> None:
        """Count a refused connection of the command. Without it, the command may have behaved differently."""
        self.refused += 1
        about = destination, reason
        if about in self.refusals or len(self.refusals) < REPORT_LISTED:
            self.refusals[about] = self.refusals.get(about, 0) + 1

    def add_hit(self, match: "ScriptMatch", tier: MatchTier, *, reframed: bool) -> None:
        """Count a request answered from the recording."""
        self.served += 1
        self.strict += tier == "strict"
        self.ambiguous += match.is_ambiguous
        self.repeated += match.is_repeat
        self.reframed += reframed

    def remove_hit(self, tier: MatchTier) -> None:
        """Take back a hit that was not served to its end."""
        self.served -= 1
        self.strict -= tier == "strict"

    def add_drift(self, call: str, pointers: Sequence[str]) -> None:
        """Count an answered request that differs from the recorded one outside its key, at these places."""
        self.drifted += 1
        if len(self.drift) < DRIFTS_LISTED:
            self.drift.append({"call": call, "pointers": list(map(shorten_pointer, pointers))})

    def add_miss(self, entry: Json, *, live: bool = False) -> None:
        """Count a request that was not answered from the recording."""
        self.live += live
        self.missed += not live
        if len(self.misses) < REPORT_LISTED:
            self.misses.append(entry if len(self.misses) < REQUESTS_LISTED else _short_entry(entry))


def _short_entry(entry: Json) -> Json:
    """Return a miss without its request and the calls that are similar."""
    return {**entry, "request": None, "candidates": []} if isinstance(entry, Mapping) else entry


def verdict(tally: Tally, unused: int, *, allow_unused: bool) -> Verdict:
    """`right` if everything was answered from the recording, nothing is unused and no connection was refused; `unknown` if
    there was no request."""
    if tally.missed or tally.live or tally.refused or (unused and not allow_unused):
        return "diverged"
    return "right" if tally.served or tally.edited else "unknown"


def build_report(
    tally: Tally,
    *,
    replay: str,
    run: str,
    recorded: int,
    unused_steps: list[Json],
    unused: int,
    allow_unused: bool,
    is_unused_prefix: bool = False,
    is_first: bool = False,
) -> dict[str, Json]:
    """Build the JSON report.

    `is_unused_prefix`: the unused exchanges are the first steps of the recording. `is_first`: the run is being recorded
    for the first time, so it cannot diverge from anything.
    """
    refusals = _refusals(tally)
    is_first = is_first and not (recorded or tally.missed or tally.refused)
    first: Json = _short_entry(tally.misses[0]) if tally.misses and not is_first else _first_refusal(refusals)
    if first is None and unused_steps and not allow_unused:
        first = {"reason": "unused", **unused_steps[0]} if isinstance(unused_steps[0], Mapping) else None
    return {
        "id": replay,
        "run": run,
        "served": tally.served,
        "missed": tally.missed,
        "unused": unused,
        "unused_leads": is_unused_prefix and unused > 0,
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
        "again": tally.repeated,
        "reframed": tally.reframed,
        "drifted": tally.drifted,
        "misses": list(tally.misses),
        "refused": tally.refused,
        "refusals": [*refusals],
        "unused_steps": unused_steps,
        "allow_unused": allow_unused,
        "interrupted": False,
        **({"ids_replaced": tally.ids_replaced} if tally.ids_replaced else {}),
        **({"answered_by": list(tally.answered_by)} if tally.answered_by else {}),
    }


def _refusals(tally: Tally) -> list[dict[str, Json]]:
    return [
        {"destination": destination, "reason": reason, "count": count}
        for (destination, reason), count in tally.refusals.items()
    ]


def _first_refusal(refusals: Sequence[Mapping[str, Json]]) -> dict[str, Json] | None:
    """The first refused connection, in the form of a miss."""
    if not refusals:
        return None
    destination = str(refusals[0]["destination"])
    return {
        "reason": "connection_refused",
        "number": None,
        "asked": destination,
        "detail": f"the connection to {destination} was refused: {refusals[0]['reason']}",
        "nearest": None,
        "fix": f"if the command may connect there in a replay: --allow-local {destination}",
    }


def interrupted_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a replay whose worker ended early, so that the arrived answers and the further requests are unknown."""
    verdict = "diverged" if report["missed"] or report["live"] or report.get("refused") else "unknown"
    return {**report, "verdict": verdict, "interrupted": True}


def report_with_effects(report: Mapping[str, Any], effects: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a report how the replay of effects went: of the time, random numbers, variables, files."""
    whole = {**report, "effects": dict(effects)}
    if effects["missed"] or effects["output_differs"]:
        return {**whole, "verdict": "diverged"}
    # A program that makes no request is replayed, too: by its effects or, if it has only steps or questions, with nothing to answer.
    is_replayed = effects["served"] or not (report["recorded"] or effects["recorded"])
    if report["verdict"] == "unknown" and is_replayed and not report["live"]:
        return {**whole, "verdict": "right"}
    return whole


def report_with_exit(report: Mapping[str, Any], code: int) -> dict[str, Any]:
    """Add to a report how the command ended. A replay that ends otherwise than the recording has diverged."""
    recorded = (report.get("effects") or {}).get("exit_code")
    if recorded is None or recorded == code:
        return {**report}
    return {**report, "effects": {**report["effects"], "ended_with": code}, "verdict": "diverged"}


def report_with_escapes(report: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a report the connections that bypassed the proxy, or tried to. Any of them makes the replay diverge."""
    past = [one for one in report.get("connections", ()) if one["outcome"] == "escaped" or one.get("past_proxy")]
    count = sum(one["count"] for one in past if one["outcome"] == "escaped")
    refused = [one for one in past if one["outcome"] == "refused"]
    whole = {**report, "escaped": count, **({"verdict": "diverged"} if past else {})}
    if refused:
        refusals = [{name: one[name] for name in ("destination", "reason", "count")} for one in refused]
        whole["refused"] = report["refused"] + sum(one["count"] for one in refused)
        whole["refusals"] = [*report["refusals"], *refusals]
        whole["first_divergence"] = report["first_divergence"] or _first_refusal(refusals)
    return whole


def report_lines(report: Mapping[str, Any], recording_name: str | None = None) -> Iterator[str]:
    """The lines of the report as text, with what to do next. `recording_name` is the recording's name in commands.

    The lines contain unescaped text from the wire: escape it before it goes to a terminal.
    """
    recording_name = recording_name or str(report["run"])
    yield f"playhead: {_headline(report)}"
    yield f"          {_counts_line(report)}"
    yield from _note_lines(report)
    yield from _first_divergence_lines(report)
    yield from _refusal_lines(report)
    yield from _unused_lines(report)
    yield from _effect_lines(report.get("effects"))
    for word, fix in zip(
        chain(["next"], repeat("  or")), _next_steps(report, recording_name).split("; or "), strict=False
    ):
        if fix:
            yield f"          {word}: {fix}"


def _headline(report: Mapping[str, Any]) -> str:
    run = report["run"]
    match report["verdict"]:
        case "right":
            if report.get("isolation") == "watched":
                return f"replay of {run} was right, not isolated: no connection that bypassed the proxy was seen"
            if report.get("isolation", "captive") != "captive":
                return f"replay of {run} was right, not isolated: what reached the proxy was answered, the rest is not known"
            if report.get("effects") and not (report["recorded"] or report["edited"]):
                return f"replay of {run} was right: the recording has no call, and the command made none"
            return f"replay of {run} was right: every call was answered from the recording"
        case "diverged" if _only_escaped(report):
            return f"replay of {run} DIVERGED: connections bypassed the proxy and reached the real network"
        case "diverged":
            return f"replay of {run} DIVERGED from the recording"
        case _ if report.get("interrupted"):
            return f"replay of {run} was interrupted: its proxy ended before the command did, so there is no verdict"
        case _ if report["live"]:
            return f"{run} had no recording: its calls went live and were recorded"
        case _:
            return f"replay of {run}: no request reached the proxy, so there is no verdict"


def _only_escaped(report: Mapping[str, Any]) -> bool:
    has_unused = report["unused"] and not report["allow_unused"]
    return bool(
        report.get("escaped") and not (report.get("refused") or report["missed"] or report["live"] or has_unused)
    )


def _counts_line(report: Mapping[str, Any]) -> str:
    names = ["served", "missed", "live", "edited", "unused", "refused", "ambiguous", "allowed", "escaped"]
    always = {"served", "missed", "live", "unused"}
    counts = ", ".join(f"{report[name]} {name}" for name in names if name in always or report.get(name))
    return f"{counts}; the recording has {report['recorded']}"


def _note_lines(report: Mapping[str, Any]) -> Iterator[str]:
    if report.get("interrupted") and report["verdict"] == "diverged":
        yield "          interrupted: its proxy ended before the command did, which alone may explain some of this"
    if report["ambiguous"]:
        yield "          ambiguous: equal requests overlapped in the recording or were of other sessions, so their answers may be swapped"
    if report["reframed"]:
        yield f"          reframed: {report['reframed']} answers were requested as a stream but recorded whole, or the reverse"
    if replaced := report.get("ids_replaced"):
        yield f"          ids: {replaced} answers repeat ids that the client draws: they have the present ones in place of the recorded"
    yield from idle_override_lines(report)
    if report["drifted"]:
        counts = Counter(pointer for drift in report["drift"] for pointer in drift["pointers"])
        places = ", ".join(f"{pointer or 'the body'} ({count})" for pointer, count in counts.most_common(5))
        yield f"          drift: {report['drifted']} answered requests differ from the recorded ones outside their key: {places}"


def idle_override_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The lines about overrides that were never used."""
    for one in report.get("overrides", ()):
        if not one["answered"]:
            yield f"          override {one['override']} ({one['what']} at {one['where']}) was not used: {_idle_reason(one)}"


def _idle_reason(override: Mapping[str, Any]) -> str:
    if override["where"].startswith("effect "):
        return "the program did not ask for it"
    return "no request matched it"


def _first_divergence_lines(report: Mapping[str, Any]) -> Iterator[str]:
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
    if page := first.get("page"):
        yield f"          look at it: {page}"


def _refusal_lines(report: Mapping[str, Any]) -> Iterator[str]:
    refusals = report.get("refusals") or ()
    for one in refusals[:5]:
        times = f" ({one['count']} times)" if one["count"] > 1 else ""
        yield f"          refused: {one['destination']}{times}: {one['reason']}"
    if len(refusals) > 5:
        yield f"          refused: and {len(refusals) - 5} more destinations"


EFFECTS_SHOWN = 5


def _effect_lines(effects: Mapping[str, Any] | None) -> Iterator[str]:
    """The lines about effects."""
    if not effects:
        return
    if any(effects[name] for name in ("recorded", "missed", "library")):
        yield _effect_counts(effects)
    for miss in effects["misses"][:EFFECTS_SHOWN]:
        yield f"          not recorded: {miss['kind']} at {miss['at']}, in {miss['task']}: {miss['nearest']}"
    for process in effects["output_differs"]:
        yield f"          process {process} wrote something else to its standard output than the recorded one"
    if "ended_with" in effects:
        yield f"          the command ended with {effects['ended_with']}, the recorded one with {effects['exit_code']}"


def _effect_counts(effects: Mapping[str, Any]) -> str:
    counts = [f"{effects['served']:,} of {effects['recorded']:,} served"]
    counts += [f"{effects[name]:,} {name}" for name in ("missed", "unused") if effects[name]]
    counts += [f"{effects['overridden']:,} overridden"] if effects.get("overridden") else []
    counts += [f"{effects['library']:,} of packages not recorded"] if effects["library"] else []
    return f"          effects: {', '.join(counts)}"


def _side(difference: Mapping[str, Any], side: str) -> str:
    return "(absent)" if difference.get("only") not in (None, side) else repr(difference[side])


def _unused_lines(report: Mapping[str, Any]) -> Iterator[str]:
    if report["allow_unused"] or report.get("interrupted"):
        return
    for entry in report["unused_steps"][:5]:
        yield f"          unused: step {entry['step']}, {entry['asked']}"
    if report["unused"] > 5:
        yield f"          unused: and {report['unused'] - 5} more"


def _next_steps(report: Mapping[str, Any], recording_name: str) -> str:
    first = report["first_divergence"]
    if report.get("interrupted") and (not first or first["reason"] == "unused"):
        return "run it again"
    if report["verdict"] == "unknown" and report["live"]:
        return ""
    if not report["recorded"] and report.get("effects"):
        return ""
    if not report["served"] and (not first or first["reason"] == "unused"):
        return "check whether its requests reach the proxy: playhead doctor -- CMD"
    if not first:
        return ""
    if first["reason"] != "unused":
        return str(first["fix"])
    again = f"playhead replay {quote(recording_name)} --allow-unused -- CMD"
    return f"if it may send fewer requests than recorded: {again}; or record the run again: playhead record -- CMD"
