"""Show a diff of two runs: equal steps in a line, different ones side by side, with the reason."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from proxy.terminal.table import Sheet, StyledText, display_text
from proxy.terminal.text import count_text

type Shape = Mapping[str, Any]

SIGNS: Final[Mapping[str | None, tuple[str, str | None]]] = {
    "same": ("=", "dim"),
    "volatile": ("~", "warn"),
    "follows": ("›", "dim"),
    "missing": ("-", "gone"),
    "extra": ("+", "come"),
    None: ("?", "warn"),
}
_PARTED: Final[tuple[str, str | None]] = ("≠", "bad")

NAMES: Final[Mapping[str, str]] = {
    "prompt": "the request differs",
    "model": "another model answered",
    "tool_answer": "answered differently",
    "answer": "the model answered differently",
    "failure": "ended differently",
    "order": "in another order",
    "missing": "only in A",
    "extra": "only in B",
    "follows": "follows",
    "volatile": "differs outside its key",
    "same": "equal",
}


def show_diff(diff: Shape, sheet: Sheet, *, everything: bool = False) -> None:
    """Print a diff in the form of docs/compare.md."""
    _show_heads(diff, sheet)
    if diff["equal_prefix"]:
        sheet.print_line((f"= {count_text(diff['equal_prefix'], 'equal call')}", "dim"))
    shown_already: set[str] = set()
    end = _end_of_one_run(diff["pairs"])
    numbered = enumerate(diff["pairs"])
    for quiet, group in groupby(
        numbered, lambda item: not everything and (item[0] > end or _is_quiet(item[1], shown_already))
    ):
        pairs = [pair for _, pair in group]
        if quiet:
            sheet.print_line((_quiet_line(pairs), "dim"))
        else:
            for pair in pairs:
                _show_pair(pair, sheet)
    sheet.print_line()
    for sentence in _verdict_sentences(diff):
        sheet.print_sentence(sentence, "good" if diff["same"] else "bold")


def _end_of_one_run(pairs: Sequence[Shape]) -> int:
    """Return the place of the first of the calls at the end that only the longer run has; the number of pairs if there are none."""
    place = len(pairs)
    while (
        place and pairs[place - 1]["cause"] in ("missing", "extra") and pairs[place - 1]["cause"] == pairs[-1]["cause"]
    ):
        place -= 1
    return place


def _is_quiet(pair: Shape, shown_already: set[str]) -> bool:
    """Whether a pair shows nothing that an earlier pair did not show."""
    match pair["cause"]:
        case "same" | "follows":
            return True
        case "model":
            return pair["follows"] is not None
        case "volatile":
            pointers = {difference["pointer"] for difference in pair["volatile"]}
            known = pointers <= shown_already
            shown_already |= pointers
            return known
        case _:
            return False


def _show_heads(diff: Shape, sheet: Sheet) -> None:
    name_width = max(len(display_text(diff[side]["run"])) for side in ("a", "b"))
    for side in ("a", "b"):
        run = diff[side]
        facts = [count_text(run["calls"], "call"), *_retry_facts(run), *_total_facts(run, signed=False)]
        sheet.print_line(
            (f"{side.upper()} {display_text(run['run']):{name_width}}", "bold"), ("  " + "  ".join(facts), None)
        )
    if more := _total_facts(diff["delta"], signed=True):
        sheet.print_line((" " * (name_width + 4) + "  ".join(["B is", *more]), "dim"))


def _retry_facts(run: Shape) -> list[str]:
    """Return how many retries a run has, if any: a call counts once, however many attempts it took."""
    return [count_text(run["retries"], "further attempt")] if run["retries"] else []


def _total_facts(sums: Shape, *, signed: bool) -> list[str]:
    """Return tokens, dollars and time, as far as they are known."""
    sign = "+" if signed else ""
    facts = []
    tokens = [sums[name] for name in ("input_tokens", "output_tokens")]
    if None not in tokens and (sum(tokens) or not signed):
        facts.append(f"{sum(tokens):{sign},} tokens")
    if sums["cost_usd"] is not None and (sums["cost_usd"] or not signed):
        facts.append(f"{sums['cost_usd']:{sign}.6f} USD")
    if sums["duration_ms"] is not None and (round(sums["duration_ms"]) or not signed):
        facts.append(f"{sums['duration_ms']:{sign},.0f} ms")
    return facts


def _quiet_line(pairs: Sequence[Shape]) -> str:
    """Summarise equal calls, calls that repeat what was shown, or the last calls of the longer run, in one line."""
    if (cause := pairs[0]["cause"]) in ("missing", "extra"):
        return f"{SIGNS[cause][0]} {count_text(len(pairs), 'more call')} {NAMES[cause]}"
    equal, outside = (sum(pair["cause"] == cause for pair in pairs) for cause in ("same", "volatile"))
    roots = sorted({number for pair in pairs if (number := _step_number(pair["follows"])) is not None})
    facts = [count_text(equal, "equal call")] if equal else []
    if outside:
        facts.append(
            f"{count_text(outside, 'call')} with the like outside of {'its key' if outside == 1 else 'their keys'}"
        )
    if following := len(pairs) - equal - outside:
        verb = "follows" if following == 1 else "follow"
        facts.append(f"{count_text(following, 'call')} that {verb} from step {', '.join(map(str, roots))}")
    return f"{'›' if following else '='} {' and '.join(facts)}"


def _step_number(steps: Shape | None) -> int | None:
    """Return the step of a pair in A, or in B if A does not have it."""
    return None if steps is None else steps["a_step"] or steps["b_step"]


def _show_pair(pair: Shape, sheet: Sheet) -> None:
    cause = pair["cause"]
    sign, style = SIGNS.get(cause, _PARTED)
    step = pair["a"] or pair["b"]
    line: list[StyledText] = [
        (f"{sign} {_step_label(pair):>4}  ", style),
        (_call_label(step), "bold" if style == "bad" else None),
    ]
    line.append((f"  {_cause_name(pair)}", style))
    root = _step_number(pair["follows"])
    if root is not None:
        line.append((f" from step {root}" if cause == "follows" else f", follows from step {root}", "dim"))
    if pair["delta"] and (more := _total_facts(pair["delta"], signed=True)):
        line.append(("  " + " ".join(more), "dim"))
    sheet.print_line(*line)
    if cause in ("model", "failure"):
        _show_beside(sheet, "", *(_end_text(pair[side], cause) for side in ("a", "b")))
    for name in ("request", "volatile", "answer") if cause != "follows" else ():
        for difference in pair[name]:
            _show_difference(name, difference, sheet)
    if pair["more"]:
        sheet.print_line((f"       and at {count_text(pair['more'], 'more place')}", "dim"))


def _cause_name(pair: Shape) -> str:
    edited = [side.upper() for side in ("a", "b") if pair[side] and pair[side].get("edited")]
    if edited and pair["cause"] in ("model", "failure", "answer", "tool_answer"):
        return f"edited in {' and '.join(edited)}"
    return NAMES.get(pair["cause"], "not examined")


def _step_label(pair: Shape) -> str:
    numbers = [str(side["step"]) for side in (pair["a"], pair["b"]) if side]
    return numbers[0] if len(set(numbers)) == 1 else "/".join(numbers)


def _call_label(step: Shape) -> str:
    actor = f"[{step['actor']}] " if step["actor"] else ""
    request = f"{step['operation']} {step['model_requested']} at " if step["model_requested"] else f"{step['method']} "
    return display_text(f"{actor}{request}{step['host']}{step['path'] or ''}")


def _end_text(step: Shape, cause: str) -> str:
    if cause == "failure":
        return f"{step['status'] or 'no status'}{'' if step['complete'] else ', not whole: ' + step['outcome']}"
    fingerprint = f" ({step['system_fingerprint']})" if step["system_fingerprint"] else ""
    return f"{step['model_returned']}{fingerprint}"


def _show_beside(sheet: Sheet, title: str, one: str, other: str) -> None:
    if title:
        sheet.print_line((f"       {title}", "warn"))
    sheet.print_columns([(display_text(one), "gone")], [(display_text(other), "come")], indent=9)


def _show_difference(part: str, difference: Shape, sheet: Sheet) -> None:
    """One place at which requests or answers part: its pointer, and what stands there on either side."""
    title = {"request": "request", "volatile": "outside of the key", "answer": "answer"}[part]
    sheet.print_line((f"       {title} {display_text(difference['pointer'] or '/')}", "warn"))
    if "words" in difference:
        sheet.print_columns(
            list(_marked_words(difference["words"], "gone")), list(_marked_words(difference["words"], "come")), indent=9
        )
        return
    only = difference.get("only")
    here = [("(nothing)", "dim")] if only == "b" else [(display_text(difference["a"]), "gone")]
    there = [("(nothing)", "dim")] if only == "a" else [(display_text(difference["b"]), "come")]
    sheet.print_columns(here, there, indent=9)


def _marked_words(pieces: Sequence[Sequence[str]], fate: str) -> Iterator[StyledText]:
    """Yield one of the two texts with the parts marked that the other does not have."""
    for what, text in pieces:
        if what in ("same", fate):
            yield display_text(text), fate if what == fate else None


def _verdict_sentences(diff: Shape) -> Iterator[str]:
    first, cause, counts = diff["first"], diff["cause"], diff["counts"]
    if diff["same"]:
        yield "the runs are the same: all requests and answers are equal"
    if cause and first != cause:
        yield f"the runs first differ at {display_text(first['words'])}; no later difference follows from it"
    if cause:
        follow = (
            f"; {_calls_clause(cause['leads_to'], 'later', 'follows', 'follow')} from that" if cause["leads_to"] else ""
        )
        yield f"the runs diverge at {display_text(cause['words'])}{follow}"
    if effect := diff.get("effect"):
        yield f"the first effect that differs: {display_text(effect['words'])}"
    if (others := diff["roots"] - (first != cause) - 1) > 0:
        yield f"{count_text(others, 'more difference')} that {'does' if others == 1 else 'do'} not follow from earlier ones"
    if more := counts.get("volatile"):
        yield f"{_calls_clause(more, '', 'differs', 'differ')} only outside the key, which replay ignores"
    if more := counts.get("unexamined"):
        yield f"{_calls_clause(more, 'more', 'was', 'were')} not examined: too many calls differ"


def _calls_clause(number: int, which: str, one: str, several: str) -> str:
    return f"{count_text(number, f'{which} call'.strip())} {one if number == 1 else several}"
