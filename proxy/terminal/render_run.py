"""Show a run: its facts, and its calls in step order with the tools they call and what they cost; or one call."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from proxy.terminal.render_effects import rows_with_effects
from proxy.terminal.text import count_text, money, next_command, print_pages, print_table, printable, shorten

type Shape = Mapping[str, Any]

MAX_NAMED: Final = 5
"""Reasons for gaps, and steps of one reason, that are named; further ones are only counted."""

ATTRIBUTION: Final[Mapping[str, str]] = {
    "given": "given (every call named this run to Playhead)",
    "derived": "derived (from ids that agents send, from ids in their messages, or from the process that called)",
    "guessed": "guessed (calls of other work may be among these, or calls of this run elsewhere; see docs/runs.md)",
}

JSON_RPC: Final = ("mcp", "a2a")
"""Dialects whose operations have one address in common: the method and path of a request do not tell them apart."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the API shows it, with its calls and gaps. Calls of a fork have an `origin`."""

    run: Shape
    calls: Sequence[Shape]
    gaps: Sequence[Shape]
    effects: Sequence[Shape] = ()
    """What its programs got from elsewhere than the network, summed up between calls."""

    missing: str | None
    """Why the store may not have all of the run yet."""


def show_run(view: RunView) -> None:
    """Print a run's facts and a table of its calls."""
    _show_facts(view)
    calls = view.calls
    print_table(*rows_with_effects(*call_table(calls, _exchanges_with_gaps(view)), calls, view.effects))
    if calls:
        _suggest_call(view, calls[0])


def show_long_run(view: RunView, pages: Iterable[Sequence[Shape]]) -> None:
    """Print a run's facts and, as the pages of its calls come, their table. The view has no calls, so gaps are shown without steps."""
    _show_facts(view)
    columns = ("FROM", "BRANCH", *(["ORIGIN"] if view.run["parent"] is not None else []))
    head, _ = call_table((), columns=columns)
    first_calls: list[Shape] = []

    def rows() -> Iterator[Sequence[tuple[str, ...]]]:
        effects = list(view.effects)
        for calls in pages:
            first_calls.extend(calls[: 1 - len(first_calls)])
            last = calls[-1]["step"] if calls else 0
            before = [one for one in effects if one["before_step"] is not None and one["before_step"] <= last]
            effects = effects[len(before) :]
            _, page_rows = call_table(calls, _exchanges_with_gaps(view), columns)
            yield rows_with_effects(head, page_rows, calls, before)[1]
        yield rows_with_effects(head, (), (), effects)[1]

    print_pages(head, rows())
    for call in first_calls:
        _suggest_call(view, call)


def _exchanges_with_gaps(view: RunView) -> set[str | None]:
    return {gap["exchange"] for gap in view.gaps}


def _suggest_call(view: RunView, call: Shape) -> None:
    click.echo(f"\none call in full: {next_command(f'show {view.run["id"]} {call["step"]}')}", err=True)


def _show_facts(view: RunView) -> None:
    run, calls = view.run, view.calls
    click.echo(click.style(f"run {printable(run['id'])}", bold=True))
    for label, value in (run["labels"] or {}).items():
        click.echo(f"  {printable(label)} = {printable(value)}")
    if run.get("isolation", "none") != "none":
        click.echo(f"  isolation: {run['isolation']}")
    if run.get("waiting"):
        click.echo(
            f"  waiting for a person: {count_text(run['waiting'], 'question')} ({next_command('waiting', str(run['id']))})"
        )
    if run["parent"] is not None:
        click.echo(f"  {_fork_line(run, calls)}")
    click.echo(f"  {count_text(run['calls'], 'call')}, {count_text(run['gaps'], 'gap')}, {_completeness(view)}")
    click.echo(f"  cost: {run_cost(run)}{'' if view.missing is None else ', so far'}")
    if run.get("attribution"):
        click.echo(f"  attribution: {ATTRIBUTION.get(run['attribution'], run['attribution'])}")
    for line in gap_lines(view.gaps, calls):
        click.echo(f"  {printable(line)}")
    click.echo()


def show_call(call: Shape, executed: Shape | None = None) -> None:
    """Print a call's facts, a line each. `executed` is the tool call of a model that this call carried out."""
    click.echo(click.style(f"step {call['step']} of run {printable(call['run'])}", bold=True))
    for name, value in _facts(call, executed):
        click.echo(f"  {name:10} {printable(value)}")


def _facts(call: Shape, executed: Shape | None) -> Iterator[tuple[str, str]]:
    yield "call", call["id"]
    yield "request", f"{call['method']} {_address(call)}"
    if call["kind"] == "model":
        yield "operation", call["operation"]
    took = f", {call['duration_ms']:,.0f} ms" if call["duration_ms"] is not None else ""
    yield "status", f"{_status(call)}{took}"
    if models := list(dict.fromkeys(filter(None, (call["model_requested"], call["model_returned"])))):
        yield "model", ", answered as ".join(models)
    usage = {name.removesuffix("_tokens"): count for name, count in call["usage"].items() if count is not None}
    if usage:
        yield "tokens", ", ".join(f"{count:,} {name}" for name, count in usage.items())
    yield "cost", _cost_with_source(call)
    if "origin" in call:
        yield "origin", call["origin"]
    if call["executes"]:
        called = f"{tool_call_text(executed)}, requested" if executed else "a tool call"
        yield "executes", f"{called} at step {call['executes']['step']}"
    for tool in call["tool_calls"] or ():
        yield "tool call", tool_call_text(tool, width=400)
    if call["finish_reason"]:
        yield "finished", call["finish_reason"]
    for warning in call["warnings"] or ():
        yield "warning", warning


def tool_call_text(tool: Shape, width: int = 60) -> str:
    """A tool call on one line: `search(query="refund", limit=3)`. Arguments that a summary leaves out are a `…`."""
    arguments = tool["arguments"]
    if arguments is None:
        inside = "…"
    elif isinstance(arguments, Mapping):
        inside = ", ".join(f"{name}={_json_text(value)}" for name, value in arguments.items())
    else:
        inside = _json_text(arguments)
    name = shorten(str(tool["name"]), width)
    return f"{name}({shorten(inside, max(width - len(name) - 2, 8))})"


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def call_cost(call: Shape) -> str:
    """What a step cost: `unknown` for an answer of a model without a known price, `-` where no model answered."""
    if call["cost_usd"] is not None:
        return money(call["cost_usd"])
    is_answered = call["status"] is None or call["status"] < 300
    return "unknown" if call["kind"] == "model" and is_answered else "-"


def _cost_with_source(call: Shape) -> str:
    cost = call_cost(call)
    if cost == "unknown":
        return "unknown: no price is known for this model, or the answer does not say how many tokens it used"
    if cost == "-":
        return "none: no model answered"
    if call["prices"] == "record":
        return f"{cost}: answered from a recording"
    return f"{cost} (by {call['prices']})" if call["prices"] else cost


def run_cost(run: Shape) -> str:
    """What a run cost, as far as that is known."""
    known, unpriced = run["known_cost_usd"], run["unpriced"]
    if not unpriced:
        return "none: no model answered" if known is None else money(known)
    at_least = f", at least {money(known)}" if known else ""
    # Each attempt of a call is a request, and costs for itself.
    return f"unknown{at_least}: the cost of {count_text(unpriced, 'model request')} is not known"


def _fork_line(run: Shape, calls: Sequence[Shape]) -> str:
    counts = Counter(call["origin"] for call in calls if call.get("origin"))
    origins = ", ".join(f"{count:,} {origin}" for origin, count in counts.items())
    return f"fork of {printable(run['parent'])} after step {run['forked_at']}{f': {origins}' if origins else ''}"


def _completeness(view: RunView) -> str:
    if not view.run["complete"]:
        return "INCOMPLETE: something is cut or could not be recorded"
    return "complete" if view.missing is None else "not all stored yet"


def gap_lines(gaps: Sequence[Shape], calls: Sequence[Shape]) -> list[str]:
    """Each reason for gaps once, with the steps it was met at."""
    steps = {exchange: call["step"] for call in calls for exchange in call["exchanges"]}
    steps_by_reason: dict[str, list[int | None]] = {}
    for gap in gaps:
        steps_by_reason.setdefault(gap["reason"], []).append(steps.get(gap["exchange"]))
    lines = [f"{count_text(len(at), 'gap')}{_at_steps(at)}: {reason}" for reason, at in steps_by_reason.items()]
    more = len(lines) - MAX_NAMED
    return [*lines[:MAX_NAMED], *([f"and {count_text(more, 'other reason')}: show --json has all"] if more > 0 else [])]


def _at_steps(places: Sequence[int | None]) -> str:
    steps = sorted({step for step in places if step is not None})
    if not steps:
        return ""
    few = ", ".join(map(str, steps[:MAX_NAMED])) + (", …" if len(steps) > MAX_NAMED else "")
    return f" at step {few}" if len(steps) == 1 else f" at steps {few}"


def call_table(
    calls: Sequence[Shape],
    exchanges_with_gaps: Collection[str | None] = (),
    columns: Collection[str] | None = None,
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows of a table of calls. FROM, BRANCH and ORIGIN are columns only where something of them is known.

    `columns`: which of the three are columns, where not all calls are known yet.
    """
    known = [
        ("FROM", [_earlier_steps(call) for call in calls]),
        ("BRANCH", _branches(calls, is_shown=columns is not None)),
        ("ORIGIN", [call.get("origin", "") for call in calls]),
    ]
    extra = [(head, cells) for head, cells in known if (any(cells) if columns is None else head in columns)]
    rows = [_call_row(call, gap=any(one in exchanges_with_gaps for one in call["exchanges"])) for call in calls]
    merged = [(row[0], *(cells[n] for _, cells in extra), *row[1:]) for n, row in enumerate(rows)]
    return ("STEP", *(head for head, _ in extra), "CALL", "STATUS", "MS", "TOKENS", "COST", "ANSWER"), merged


def _earlier_steps(call: Shape) -> str:
    """The steps whose answers a call goes on from; of a tool, the step in which a model requested it."""
    if call["executes"]:
        return f"{call['executes']['step']}"
    return "+".join(str(one["step"]) for one in call["follows"] or [])


def _branches(calls: Sequence[Shape], *, is_shown: bool) -> list[str]:
    """The branch of each call, where there is more than one or `is_shown`."""
    numbers = [call["branch"] for call in calls]
    several = is_shown or len({number for number in numbers if number is not None}) > 1
    return [str(number) if several and number is not None else "" for number in numbers]


def _call_row(call: Shape, *, gap: bool) -> tuple[str, ...]:
    usage = call["usage"]
    # Embeddings and token counts have no second number.
    tokens = "+".join(str(usage[name]) for name in ("input_tokens", "output_tokens") if usage[name] is not None)
    took = f"{call['duration_ms']:.0f}" if call["duration_ms"] is not None else ""
    name, answer = shorten(_call_name(call), 48), shorten(_answer_text(call), 100)
    return str(call["step"]), name, _status(call, gap=gap), took, tokens, call_cost(call), answer


def _call_name(call: Shape) -> str:
    if call["kind"] == "model":
        # Where the provider keeps the agent's settings only the answer names the model.
        return f"{call['operation']} {call['model_requested'] or call['model_returned'] or ''}".rstrip()
    if call["tool_calls"]:
        # MCP: the request itself calls a tool.
        return f"{_tool_calls_text(call)} at {_address(call)}"
    if call["dialect"] in JSON_RPC:
        return f"{call['operation']} at {_address(call)}"
    return f"{call['method']} {_address(call)}"


def _answer_text(call: Shape) -> str:
    """The tools that a model calls in its answer, or the text of the answer."""
    return (_tool_calls_text(call) if call["kind"] == "model" else "") or call["text"] or ""


def _tool_calls_text(call: Shape) -> str:
    return ", ".join(tool_call_text(tool) for tool in call["tool_calls"] or ())


def _status(call: Shape, *, gap: bool = False) -> str:
    tries = f" ({call['attempts']} tries)" if call["attempts"] > 1 else ""
    return (f"{call['status'] or '-'} gap" if gap else call_status(call)) + tries


def call_status(call: Shape) -> str:
    """The status of a call's answer and, unless the answer is whole and the API's, what became of it."""
    return f"{call['status'] or '-'} {outcome_word(call)}".rstrip()


def outcome_word(call: Shape) -> str:
    """What became of an answer that is not whole or not the API's; an empty text for any other. The page has the same words."""
    if has_failed_answer(call):
        return "failed"
    if call["outcome"] == "refused" or not call["complete"]:
        # An answer that ended well and is not whole has lost its end to our own size limit.
        return "truncated" if call["outcome"] == "completed" else str(call["outcome"])
    return "partial" if call["answer_state"] == "partial" else ""


def has_failed_answer(call: Shape) -> bool:
    """Whether the answer failed, or ended without its end mark, although its response was complete and its status is no error's."""
    return bool(call["failed"]) and call["outcome"] == "completed" and (call["status"] or 400) < 400


def _address(call: Shape) -> str:
    return f"{call['host']}{call['path']}"


def show_envelope(envelope: Mapping[str, Any]) -> None:
    """Print what was captured of a run, and what was not."""
    click.echo(f"{printable(envelope['run'])}: what was captured in {count_text(envelope['steps'], 'step')}")
    for name, thing in envelope.items():
        if not isinstance(thing, dict):
            continue
        click.echo(click.style(name, bold=True))
        for one in (*thing.get("values", ()), *thing.get("results_in_requests", ())):
            steps = ", ".join(map(str, one["steps"])) + (", …" if one["count"] > len(one["steps"]) else "")
            click.echo(f"  {printable(one['value'])}  (steps {steps})")
        for label, value in thing.get("labels", {}).items():
            click.echo(f"  {printable(label)}={printable(value)}")
        if thing.get("first") is not None:
            click.echo(f"  from {thing['first']} to {thing['last']}, by the recorder's clock")
        for sentence in thing["missing"]:
            click.echo(click.style(f"  not captured: {printable(sentence)}", dim=True))
