"""Show the result of `playhead drift`: each change with its time, how often, and its effect on equal requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.terminal.table import Sheet, display_text
from proxy.terminal.text import count_text, print_table

type Shape = Mapping[str, Any]


def show_drift(drift: Shape, sheet: Sheet, narrowed: Sequence[str] = ()) -> None:
    """Print an answer of `GET /v1/drift`. `narrowed` are the options that limit it."""
    if not drift["variants"] and narrowed:
        sheet.print_sentence(
            f"no model has answered for {display_text(' '.join(narrowed))}; leave these options out to see which have: playhead drift"
        )
        return
    if not drift["variants"]:
        sheet.print_sentence("no model has answered yet; record a run with: playhead record -- COMMAND")
        return
    for change in drift["items"]:
        _show_change(change, sheet)
    if not drift["items"]:
        sheet.print_sentence("no provider changed what stands behind a name", "good")
    for answers in drift["answers"]:
        if answers["answered_otherwise"]:
            _show_answers(answers, sheet)
    for latency in drift["latencies"]:
        for measure, name in (("first_byte", "the first byte"), ("duration", "the answer ends")):
            _show_latency(latency, latency[measure], name, sheet)
    sheet.print_line()
    print_table(
        ("PROVIDER", "ASKED FOR", "ANSWERED", "FINGERPRINT", "CALLS", "FIRST", "LAST"),
        [_variant_row(variant) for variant in drift["variants"]],
    )


def _show_change(change: Shape, sheet: Sheet) -> None:
    before, after = (_model_name(change[side]) for side in ("from", "to"))
    last = _time_text(change["last_before_at"])
    turned = "answers instead of" if change["replaced"] else "answers by turns with"
    if change["rolled_out"]:
        turned = f"answers beside, and since {last} instead of"
    name = display_text(f"{change['provider']} {change['model_requested'] or '(no name)'}")
    sheet.print_sentence(
        f"{name}: since {_time_text(change['first_at'])} {display_text(after)} {turned} {display_text(before)}", "warn"
    )
    calls, calls_after = count_text(change["calls_before"], "call"), f"{change['calls_after']:,}"
    if change["replaced"]:
        sheet.print_sentence(f"    {calls} before, {calls_after} after")
    else:
        sheet.print_sentence(
            f"    {calls} by {display_text(before)}, the last at {last}; {calls_after} by {display_text(after)}"
        )
    if (again := change["same_requests"])["asked_again"]:
        sheet.print_sentence(f"    {_repeat_clause(again)}")
    examples = change["examples"]
    sheet.print_sentence(f"    look: playhead show {examples['before'][0]}    playhead show {examples['after'][0]}")


def _show_answers(answers: Shape, sheet: Sheet) -> None:
    sheet.print_sentence(
        display_text(f"{answers['provider']} {answers['model_requested'] or '(no name)'}: {_repeat_clause(answers)},")
    )
    sheet.print_sentence(f"    all by {display_text(_model_name(answers))}, first at {_time_text(answers['first_at'])}")
    sheet.print_sentence(f"    look: {_example_commands(answers['example'])}")


def _show_latency(latency: Shape, judged: Shape, name: str, sheet: Sheet) -> None:
    """Say that a model became slower or faster; where it cannot be said although the latency changed, why."""
    if judged["since"] is None:
        return
    before, after = judged["before"], judged["after"]
    model = display_text(f"{latency['provider']} {latency['model_requested']}")
    verdict = {"slower": "takes longer", "faster": "takes less time"}.get(
        judged["verdict"], "may have changed its time"
    )
    sheet.print_sentence(
        f"{model}: since {judged['since'][:10]} it {verdict} until {name}: {after['median_ms']:,.0f} ms instead of"
        f" {before['median_ms']:,.0f} ms ({judged['ratio']:.1f} times)",
        "warn" if judged["verdict"] == "slower" else None,
    )
    calls = f"medians of {after['calls']:,} calls, and of {before['calls']:,} before"
    sheet.print_sentence(f"    {calls}{'; ' + judged['why'] if judged['why'] else ''}")


def _repeat_clause(again: Shape) -> str:
    number = again["answered_otherwise"]
    verb = "was" if number == 1 else "were"
    return f"{number:,} of {count_text(again['asked_again'], 'repeated request')} {verb} answered differently"


def _example_commands(calls: Sequence[str]) -> str:
    return "    ".join(f"playhead show {call}" for call in calls)


def _model_name(variant: Shape) -> str:
    fingerprint = variant["system_fingerprint"]
    return f"{variant['model_returned']} ({fingerprint})" if fingerprint else str(variant["model_returned"])


def _variant_row(variant: Shape) -> tuple[str, ...]:
    return (
        variant["provider"],
        variant["model_requested"] or "",
        variant["model_returned"],
        variant["system_fingerprint"] or "",
        f"{variant['calls']:,}",
        _time_text(variant["first_at"]),
        _time_text(variant["last_at"]),
    )


def _time_text(time: str) -> str:
    return time[:19].replace("T", " ")
