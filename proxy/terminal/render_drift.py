"""Show the result of `playhead drift`: each change with its time, how often, and its effect on equal requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.terminal.table import Sheet, shown
from proxy.terminal.text import counted, print_table

type Shape = Mapping[str, Any]


def show_drift(told: Shape, sheet: Sheet, narrowed: Sequence[str] = ()) -> None:
    """Print an answer of `GET /v1/drift`; `narrowed`: the options by which it tells of less than all."""
    if not told["variants"] and narrowed:
        sheet.say(
            f"no model has answered for {shown(' '.join(narrowed))}; leave that out to see which have: playhead drift"
        )
        return
    if not told["variants"]:
        sheet.say("no model has answered yet; record a run with: playhead record -- COMMAND")
        return
    for change in told["items"]:
        _change(change, sheet)
    if not told["items"]:
        sheet.say("no provider changed what stands behind a name", "good")
    for answers in told["answers"]:
        if answers["answered_otherwise"]:
            _answers(answers, sheet)
    sheet.put()
    print_table(
        ("PROVIDER", "ASKED FOR", "ANSWERED", "FINGERPRINT", "CALLS", "FIRST", "LAST"),
        [_row(variant) for variant in told["variants"]],
    )


def _change(change: Shape, sheet: Sheet) -> None:
    before, after = (_named(change[side]) for side in ("from", "to"))
    turned = "answers instead of" if change["replaced"] else "answers by turns with"
    name = shown(f"{change['provider']} {change['model_requested'] or '(no name)'}")
    sheet.say(f"{name}: since {_time(change['first_at'])} {shown(after)} {turned} {shown(before)}", "warn")
    sheet.say(f"    {counted(change['calls_before'], 'call')} before, {change['calls_after']:,} after")
    if (again := change["same_requests"])["asked_again"]:
        sheet.say(f"    {_again(again)}")
    examples = change["examples"]
    sheet.say(f"    look: playhead show {examples['before'][0]}    playhead show {examples['after'][0]}")


def _answers(answers: Shape, sheet: Sheet) -> None:
    sheet.say(shown(f"{answers['provider']} {answers['model_requested'] or '(no name)'}: {_again(answers)},"))
    sheet.say(f"    all by {shown(_named(answers))}, first at {_time(answers['first_at'])}")
    sheet.say(f"    look: {_examples(answers['example'])}")


def _again(again: Shape) -> str:
    return (
        f"of {counted(again['asked_again'], 'request')} asked again {_answered(again['answered_otherwise'])} otherwise"
    )


def _answered(number: int) -> str:
    """`1 was answered`, `2 were answered`."""
    return f"{number:,} {'was' if number == 1 else 'were'} answered"


def _examples(calls: Sequence[str]) -> str:
    return "    ".join(f"playhead show {call}" for call in calls)


def _named(variant: Shape) -> str:
    fingerprint = variant["system_fingerprint"]
    return f"{variant['model_returned']} ({fingerprint})" if fingerprint else str(variant["model_returned"])


def _row(variant: Shape) -> tuple[str, ...]:
    return (
        variant["provider"],
        variant["model_requested"] or "",
        variant["model_returned"],
        variant["system_fingerprint"] or "",
        f"{variant['calls']:,}",
        _time(variant["first_at"]),
        _time(variant["last_at"]),
    )


def _time(told: str) -> str:
    return told[:19].replace("T", " ")
