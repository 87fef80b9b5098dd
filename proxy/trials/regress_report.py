"""Show what came of `playhead regress`: for people, as JSON, and as JUnit XML."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from xml.etree import ElementTree

import click

from proxy.judgement.report import judgements_json
from proxy.terminal.render_check import check_json, xml_text
from proxy.terminal.table import Sheet, display_text
from proxy.terminal.text import count_text, money, print_table, printable, shorten
from proxy.trials.outcome import CAUSES, Divergence
from proxy.trials.regress import Cluster, Completion, RunResult, divergence_clusters, exit_code

MAX_RUNS_SHOWN: Final = 5
MAX_VALUE: Final = 120
STYLES: Final = {
    "same": "good",
    "passed": "good",
    "diverged": "bad",
    "broken": "bad",
    "cannot tell": "warn",
    "not run": "warn",
}
VERDICTS: Final = {0: "same", 1: "diverged", 125: "cannot tell"}


def show_regression(results: Sequence[RunResult], sheet: Sheet) -> None:
    """Print a table with a line for each run, the groups of divergences, and a summary."""
    print_table(
        ("RUN", "RESULT", "STEP", "WHY"),
        [(result.name, result.status, _step_text(result), reason_text(result)) for result in results],
    )
    clusters = divergence_clusters(results)
    if clusters:
        click.echo()
    for cluster in clusters:
        _show_cluster(cluster, sheet)
    click.echo()
    counts: Counter[str] = Counter(result.status for result in results)
    text = ", ".join(f"{counts[status]} {status}" for status in STYLES if counts[status])
    worst = {0: "good", 1: "bad", 125: "warn"}[exit_code(results)]
    sheet.print_sentence(f"{count_text(len(results), 'recording')}: {text}", worst)


def _step_text(result: RunResult) -> str:
    step = result.divergence.step if result.divergence else None
    return "" if step is None else str(step)


def _show_cluster(cluster: Cluster, sheet: Sheet) -> None:
    found = cluster.divergence
    names = ", ".join(cluster.runs[:MAX_RUNS_SHOWN])
    more = f" and {len(cluster.runs) - MAX_RUNS_SHOWN} more" if len(cluster.runs) > MAX_RUNS_SHOWN else ""
    sheet.print_sentence(f"{count_text(len(cluster.runs), 'run')} diverged by {_cause_text(found)}", "bold")
    sheet.print_sentence(f"  {printable(names)}{more}")
    if found.pointer is not None and found.recorded is not None:
        sheet.print_sentence(f"  - {shorten(display_text(found.recorded), MAX_VALUE)}", "gone")
    if found.pointer is not None and found.now is not None:
        sheet.print_sentence(f"  + {shorten(display_text(found.now), MAX_VALUE)}", "come")


def _cause_text(divergence: Divergence) -> str:
    cause = CAUSES.get(divergence.cause, divergence.cause)
    parts = [part for part in (divergence.target, divergence.pointer) if part]
    return printable(f"{cause}: {' at '.join(parts)}" if parts else cause)


def reason_text(result: RunResult) -> str:
    """Return in one line why a run has its status."""
    if result.outcome.reason is not None:
        return result.outcome.reason
    if result.status == "broken":
        return _broken_text(result)
    if result.was_not_run:
        return "the budget was used up before it"
    if result.completion is not None:
        return _completion_text(result, result.completion)
    if result.check is not None and result.check.verdict == "unknown":
        return next((line for line in _finding_lines(result) if line), "a rule cannot be decided")
    return "" if result.divergence is None else result.divergence.detail


def _broken_text(result: RunResult) -> str:
    if lines := _finding_lines(result):
        return lines[0]
    failed = next((one for one in result.judgements if one.verdict == "fail"), None)
    if failed is not None:
        return f"{failed.criterion}: {failed.reason}"
    return f"completed live, the command ended with {result.completion.code if result.completion else None}"


def _finding_lines(result: RunResult) -> list[str]:
    """Return the findings of broken rules, or of undecided ones if none is broken."""
    if result.check is None:
        return []
    worst = "fail" if result.check.verdict == "fail" else "unknown"
    return [
        f"{rule.rule.title}: {'' if one.step is None else f'step {one.step}: '}{one.message}"
        for rule in result.check.rules
        if rule.verdict == worst
        for one in rule.findings
    ]


def _completion_text(result: RunResult, completion: Completion) -> str:
    if completion.reason is not None:
        return completion.reason
    if result.judge_trouble is not None:
        return result.judge_trouble
    undecided = next((one for one in result.judgements if one.verdict == "cannot tell"), None)
    if undecided is not None:
        return f"{undecided.criterion}: {undecided.reason}"
    cost = money(float(completion.usd))
    blocked = f", {len(completion.blocked)} blocked: {completion.blocked[0]}" if completion.blocked else ""
    return f"completed with {count_text(completion.live_calls, 'live call')} ({cost}){blocked}"


def regression_json(
    results: Sequence[RunResult], command: Sequence[str], budget: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "verdict": VERDICTS[exit_code(results)],
        "command": list(command),
        "counts": dict(Counter(result.status for result in results)),
        "runs": [_run_json(result) for result in results],
        "clusters": [
            {
                "cause": one.divergence.cause,
                "target": one.divergence.target,
                "pointer": one.divergence.pointer,
                "runs": list(one.runs),
                "steps": list(one.steps),
            }
            for one in divergence_clusters(results)
        ],
        "budget": budget,
    }


def _run_json(result: RunResult) -> dict[str, Any]:
    completion = result.completion
    judged = (
        judgements_json(result.judgements, None, "", result.judge_run)["judgements"]
        if result.judge_run is not None
        else []
    )
    return {
        "run": result.name,
        "status": result.status,
        "reason": reason_text(result) or None,
        "exit_code": result.code,
        "seconds": round(result.seconds, 3),
        "divergence": None if result.divergence is None else asdict(result.divergence),
        "check": None if result.check is None else check_json([result.check], "", result.check.verdict)["runs"][0],
        "completion": None
        if completion is None
        else asdict(completion) | {"usd": float(completion.usd), "blocked": list(completion.blocked)},
        "judge_run": result.judge_run,
        "judgements": judged,
        "output": result.output,
    }


def regression_junit(results: Sequence[RunResult]) -> bytes:
    """Return JUnit XML: a test case for each recording. What cannot be told is an error, what was not run is skipped."""
    kinds = {"diverged": "failure", "broken": "failure", "cannot tell": "error", "not run": "skipped"}
    counts = Counter(kinds.get(result.status) for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name="playhead regress",
        tests=str(len(results)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", name=xml_text(result.name), classname="playhead.regress", time=f"{result.seconds:.3f}"
        )
        if (kind := kinds.get(result.status)) is not None:
            reason = xml_text(reason_text(result))
            ElementTree.SubElement(case, kind, message=reason).text = "\n".join(
                [reason, *map(xml_text, _finding_lines(result))]
            )
        if result.output:
            ElementTree.SubElement(case, "system-out").text = xml_text(result.output)
    root = ElementTree.Element("testsuites", name="playhead regress")
    root.append(suite)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
