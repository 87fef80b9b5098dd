"""Show judgements: for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from calls.judgement.agreement import Agreement
from calls.judgement.verdict import Judgement
from proxy.terminal.table import Sheet
from proxy.terminal.text import printable

_STYLES: Final = {"pass": "good", "fail": "bad", "cannot tell": "warn"}


def show_judgements(judgements: Sequence[Judgement], agreement: Agreement | None, sheet: Sheet) -> None:
    """Print a line for each verdict, with its reason and quote."""
    for one in judgements:
        count = f" ({len(one.votes)} votes)" if len(one.votes) > 1 else ""
        sheet.print_sentence(
            f"{printable(one.run)} {printable(one.criterion)}: {one.verdict}{count}", _STYLES[one.verdict]
        )
        sheet.print_sentence(f"  {printable(one.reason)}")
        if one.quote:
            sheet.print_sentence(f"  quote: {printable(one.quote)}")
    if agreement is not None:
        sheet.print_sentence(agreement_text(agreement))


def agreement_text(agreement: Agreement) -> str:
    """Return the agreement with human labels as a sentence."""
    if not agreement.count:
        return "agreement with labels: nothing that was judged has a label"
    share = f"{agreement.agreeing} of {agreement.count} verdicts agree with their labels"
    if agreement.kappa is None or agreement.low is None or agreement.high is None:
        return f"{share}; kappa is not defined, because all of them say the same"
    return f"{share}; Cohen's kappa {agreement.kappa:.2f} [{agreement.low:.2f} to {agreement.high:.2f}, 95 %]"


def judgements_json(
    judgements: Sequence[Judgement], agreement: Agreement | None, verdict: str, judge_run: str
) -> dict[str, Any]:
    """Return the judgements as JSON."""
    return {
        "verdict": verdict,
        "judge_run": judge_run,
        "judgements": [
            {
                "run": one.run,
                "criterion": one.criterion,
                "verdict": one.verdict,
                "reason": one.reason,
                "quote": one.quote,
                "votes": [asdict(vote) for vote in one.votes],
            }
            for one in judgements
        ],
        "agreement": None if agreement is None else asdict(agreement),
    }
