"""Show a diff of two runs: equal steps in a line, different ones side by side, with the reason."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from proxy.terminal.table import Run, Sheet, shown
from proxy.terminal.text import counted

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
    "prompt": "the request is another one",
    "model": "another model answered",
    "tool_answer": "answered otherwise",
    "answer": "the model answered otherwise",
    "failure": "ended otherwise",
    "order": "in another order",
    "missing": "only in A",
    "extra": "only in B",
    "follows": "follows",
    "volatile": "differs outside of its key",
    "same": "equal",
}


def show(told: Shape, sheet: Sheet, *, everything: bool = False) -> None:
    """Print a diff in the form of docs/compare.md."""
    _heads(told, sheet)
    if told["equal_prefix"]:
        sheet.put((f"= {counted(told['equal_prefix'], 'equal call')}", "dim"))
    shown_already: set[str] = set()
    for quiet, pairs in groupby(told["pairs"], lambda pair: not everything and _is_quiet(pair, shown_already)):
        if quiet:
            sheet.put((_quietly(list(pairs)), "dim"))
        else:
            for pair in pairs:
                _pair(pair, sheet)
    sheet.put()
    for sentence in _verdict(told):
        sheet.say(sentence, "good" if told["same"] else "bold")


def _is_quiet(pair: Shape, shown_already: set[str]) -> bool:
    """Whether a pair tells nothing that was not told before it."""
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


def _heads(told: Shape, sheet: Sheet) -> None:
    named = max(len(shown(told[side]["run"])) for side in ("a", "b"))
    for side in ("a", "b"):
        run = told[side]
        facts = [counted(run["calls"], "call"), *_totals(run, signed=False)]
        sheet.put((f"{side.upper()} {shown(run['run']):{named}}", "bold"), ("  " + "  ".join(facts), None))
    if more := _totals(told["delta"], signed=True):
        sheet.put((" " * (named + 4) + "  ".join(["B is", *more]), "dim"))


def _totals(sums: Shape, *, signed: bool) -> list[str]:
    """Tokens, dollars and time, as far as they are known."""
    sign = "+" if signed else ""
    told = []
    tokens = [sums[name] for name in ("input_tokens", "output_tokens")]
    if None not in tokens and (sum(tokens) or not signed):
        told.append(f"{sum(tokens):{sign},} tokens")
    if sums["cost_usd"] is not None and (sums["cost_usd"] or not signed):
        told.append(f"{sums['cost_usd']:{sign}.6f} USD")
    if sums["duration_ms"] is not None and (round(sums["duration_ms"]) or not signed):
        told.append(f"{sums['duration_ms']:{sign},.0f} ms")
    return told


def _quietly(pairs: Sequence[Shape]) -> str:
    """Equal calls, and calls that only show again what was shown, in one line."""
    equal, outside = (sum(pair["cause"] == cause for pair in pairs) for cause in ("same", "volatile"))
    roots = sorted({number for pair in pairs if (number := _number(pair["follows"])) is not None})
    told = [counted(equal, "equal call")] if equal else []
    if outside:
        told.append(
            f"{counted(outside, 'call')} with the like outside of {'its key' if outside == 1 else 'their keys'}"
        )
    if following := len(pairs) - equal - outside:
        verb = "follows" if following == 1 else "follow"
        told.append(f"{counted(following, 'call')} that {verb} from step {', '.join(map(str, roots))}")
    return f"{'›' if following else '='} {' and '.join(told)}"


def _number(steps: Shape | None) -> int | None:
    """A pair's step, as A counts where A has it."""
    return None if steps is None else steps["a_step"] or steps["b_step"]


def _pair(pair: Shape, sheet: Sheet) -> None:
    cause = pair["cause"]
    sign, style = SIGNS.get(cause, _PARTED)
    step = pair["a"] or pair["b"]
    line: list[Run] = [(f"{sign} {_steps(pair):>4}  ", style), (_what(step), "bold" if style == "bad" else None)]
    line.append((f"  {NAMES.get(cause, 'not looked at closely')}", style))
    root = _number(pair["follows"])
    if root is not None:
        line.append((f" from step {root}" if cause == "follows" else f", follows from step {root}", "dim"))
    if pair["delta"] and (more := _totals(pair["delta"], signed=True)):
        line.append(("  " + " ".join(more), "dim"))
    sheet.put(*line)
    if cause in ("model", "failure"):
        _between(sheet, "", *(_ended(pair[side], cause) for side in ("a", "b")))
    for name in ("request", "volatile", "answer") if cause != "follows" else ():
        for difference in pair[name]:
            _difference(name, difference, sheet)
    if pair["more"]:
        sheet.put((f"       and at {counted(pair['more'], 'more place')}", "dim"))


def _steps(pair: Shape) -> str:
    numbers = [str(side["step"]) for side in (pair["a"], pair["b"]) if side]
    return numbers[0] if len(set(numbers)) == 1 else "/".join(numbers)


def _what(step: Shape) -> str:
    actor = f"[{step['actor']}] " if step["actor"] else ""
    asked = f"{step['operation']} {step['model_requested']} at " if step["model_requested"] else f"{step['method']} "
    return shown(f"{actor}{asked}{step['host']}{step['path'] or ''}")


def _ended(step: Shape, cause: str) -> str:
    if cause == "failure":
        return f"{step['status'] or 'no status'}{'' if step['complete'] else ', not whole: ' + step['outcome']}"
    fingerprint = f" ({step['system_fingerprint']})" if step["system_fingerprint"] else ""
    return f"{step['model_returned']}{fingerprint}"


def _between(sheet: Sheet, title: str, one: str, other: str) -> None:
    if title:
        sheet.put((f"       {title}", "warn"))
    sheet.beside([(shown(one), "gone")], [(shown(other), "come")], indent=9)


def _difference(part: str, difference: Shape, sheet: Sheet) -> None:
    """One place at which requests or answers part: its pointer, and what stands there on either side."""
    title = {"request": "request", "volatile": "outside of the key", "answer": "answer"}[part]
    sheet.put((f"       {title} {shown(difference['pointer'] or '/')}", "warn"))
    if "words" in difference:
        sheet.beside(list(_words(difference["words"], "gone")), list(_words(difference["words"], "come")), indent=9)
        return
    only = difference.get("only")
    here = [("(nothing)", "dim")] if only == "b" else [(shown(difference["a"]), "gone")]
    there = [("(nothing)", "dim")] if only == "a" else [(shown(difference["b"]), "come")]
    sheet.beside(here, there, indent=9)


def _words(pieces: Sequence[Sequence[str]], fate: str) -> Iterator[Run]:
    """One of the two texts, with what only it has marked."""
    for what, text in pieces:
        if what in ("same", fate):
            yield shown(text), fate if what == fate else None


def _verdict(told: Shape) -> Iterator[str]:
    first, cause, counts = told["first"], told["cause"], told["counts"]
    if told["same"]:
        yield "the runs are the same: every call was asked and answered alike"
    if cause and first != cause:
        yield f"the runs first differ at {shown(first['words'])}; nothing follows from that"
    if cause:
        follow = f"; {_calls(cause['leads_to'], 'later', 'follows', 'follow')} from that" if cause["leads_to"] else ""
        yield f"the runs part at {shown(cause['words'])}{follow}"
    if (others := told["roots"] - (first != cause) - 1) > 0:
        yield f"{counted(others, 'more difference')} that {'follows' if others == 1 else 'follow'} from nothing before"
    if more := counts.get("volatile"):
        yield f"{_calls(more, '', 'differs', 'differ')} only outside of the key, which no replay minds"
    if more := counts.get("unexamined"):
        yield f"{_calls(more, 'more', 'was', 'were')} not looked at closely: too many differ"


def _calls(number: int, which: str, one: str, several: str) -> str:
    return f"{counted(number, f'{which} call'.strip())} {one if number == 1 else several}"
