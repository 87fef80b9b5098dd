"""Show canaries."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from calls.canary.canary_state import DISTANCES
from proxy.terminal.table import Sheet
from proxy.terminal.text import count_text, printable

_STYLES: Final = {"unchanged": "good", "changed": "bad", "cannot tell": "warn"}

EXIT_CODES: Final = {"unchanged": 0, "changed": 1, "cannot tell": 3}


def show_canary(canary: Mapping[str, Any], sheet: Sheet, notes: Sequence[str] = ()) -> None:
    """Print what is said of a canary, and the numbers behind it."""
    verdict = canary["verdict"]
    sheet.print_sentence(f"{printable(canary['name'])}: {verdict}: {printable(canary['reason'])}", _STYLES[verdict])
    if canary["rate_since"] is not None:
        sheet.print_sentence(_numbers_text(canary))
    if canary["calls_needed"]:
        sheet.print_sentence(f"  {count_text(canary['calls_needed'], 'more call')} may tell, if nothing changed")
    if canary["calls_to_find"]:
        effect = canary["rules"]["effect"]
        sheet.print_sentence(
            f"  a rise by {effect:.0%} would show after about {count_text(canary['calls_to_find'], 'call')}"
        )
    if canary["verdict"] == "changed" and canary["examples"]["differs"]:
        sheet.print_sentence(f"  look: playhead show {canary['examples']['differs']}")
    for note in (*notes, *canary["hints"], *filter(None, [canary["problem"]])):
        sheet.print_sentence(f"  {printable(note)}")


def _numbers_text(canary: Mapping[str, Any]) -> str:
    before, since, level = canary["answers_before"], canary["answers_since"], canary["level"]
    if level in DISTANCES:
        return (
            f"  {level}: {before:,} answers were {canary['rate_before']:.2f} from the reference answers before, {since:,} are"
            f" {canary['rate_since']:.2f} since: effect {canary['effect']:+.2f}"
        )
    return (
        f"  {level}: {canary['rate_before']:.1%} of {before:,} answers differed before,"
        f" {canary['rate_since']:.1%} of {since:,} since: effect {canary['effect']:+.1%}"
    )


def worst_exit_code(canaries: Sequence[Mapping[str, Any]]) -> int:
    """1 if any changed, else 3 if any cannot be told, else 0."""
    verdicts = {str(one["verdict"]) for one in canaries}
    return next((EXIT_CODES[verdict] for verdict in ("changed", "cannot tell") if verdict in verdicts), 0)
