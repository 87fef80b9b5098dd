"""The commands that look at recordings: ls, show."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import click

from proxy.cli.common import as_json, asking, moment, print_json, with_settings
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, lacks, meant, segment
from proxy.terminal.text import counted, print_table, printable, shortened, typed

NO_RUNS = "no runs; record one with: playhead record -- COMMAND"
FEW = 5
"""Reasons, and steps of one reason, that are named; more are only counted."""


@click.command("ls")
@with_settings
@as_json
@click.option("--limit", type=click.IntRange(1, 500), default=20, help="Default: 20, newest first.")
@click.option("--label", metavar="k=v", help="Only runs with this label.")
@click.option("--model", metavar="NAME", help="Only runs that used this model.")
@click.option("--host", metavar="HOST", help="Only runs that asked this host.")
@click.option("--since", metavar="TIME", help="Only runs since this RFC 3339 time, or since so long ago: 7d, 12h.")
@click.option(
    "--search", "q", metavar="TEXT", help="Only runs named so, or in which a model said so or asked it of a tool."
)
@click.option(
    "--incomplete",
    is_flag=True,
    default=None,
    help="Only runs that lack something: gaps, answers cut off. What a client itself left, or had whole when it tried again, is"
    " not lacking.",
)
def ls_command(as_json: bool, limit: int, **flags: Any) -> None:
    """List runs, newest first.

    Words are looked for in the newest 10,000 calls that fit the other options: --since, --model and --host make it look further.
    """
    filters = {name: flags.pop(name) for name in ("label", "model", "host", "q", "incomplete")}
    filters["since"] = moment(flags.pop("since"))
    found = asking(flags, lambda api: api.get("/runs", limit=limit, **filters))
    if as_json:
        print_json(found)
        return
    if not found["items"]:
        none = "no run fits these filters; `playhead ls` lists all" if any(filters.values()) else NO_RUNS
        click.echo(none, err=True)
        return
    print_table(
        ("RUN", "STARTED", "CALLS", "TOKENS", "MODELS", "NAME, LABELS"),
        [_row(run) for run in found["items"]],
    )


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    # Cached tokens are among the input's and reasoning among the output's.
    total = sum(run["tokens"][side] or 0 for side in ("input_tokens", "output_tokens"))
    flag = "" if run["complete"] else " (incomplete)"
    flag += " (guessed)" if run.get("attribution") == "guessed" else ""
    named = [run["name"]] if run["name"] else []
    labels = " ".join((*named, *(f"{name}={value}" for name, value in (run["labels"] or {}).items())))
    started = (run["started_at"] or "")[:19].replace("T", " ")
    return run["id"], started, f"{run['calls']}{flag}", f"{total:,}", ", ".join(run["models"] or []), labels


@click.command("show", short_help="Show a run step by step, or one call whole.")
@with_settings
@as_json
@click.argument("what", metavar="RUN|CALL|last")
@click.argument("step", type=click.IntRange(min=1), required=False)
def show_command(what: str, step: int | None, as_json: bool, **flags: Any) -> None:
    """Show a run, what is lacking in it and why, and its calls in step order; or one call whole.

    \b
    playhead show last        every call of the newest run, in a line each
    playhead show last 7      its seventh call whole: request, answer, tokens, cost
    """

    def look(api: Api) -> _Seen | dict[str, Any]:
        run = meant(api, what)
        if step is not None:
            return _step(api, run, step)
        path = f"/runs/{segment(run)}"
        try:
            # First, because it waits for what is under way: what is told behind it is all of one moment.
            lacking = lacks(api, run)
            shape = api.get(path)
        except NotFound:
            return _call(api, what)
        # A table needs summaries only; with bodies, pages are small.
        wanted: dict[str, Any] = {"fields": "*", "limit": 20} if as_json else {"limit": 500}
        calls = list(api.each(f"{path}/calls", **wanted))
        return _Seen(shape=shape, calls=calls, gaps=list(api.each(f"{path}/gaps")), lacking=lacking)

    found = asking(flags, look)
    if isinstance(found, dict):
        print_json(found)
        return
    if found.lacking:
        click.echo(f"playhead: not all that was recorded is stored yet: {printable(found.lacking)}", err=True)
    if as_json:
        print_json({**found.shape, "items": found.calls, "gap_items": found.gaps})
        return
    _show_run(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A run, and what it consists of."""

    shape: dict[str, Any]
    calls: list[dict[str, Any]]
    gaps: list[dict[str, Any]]
    lacking: str | None
    """Why the store may not have all of it."""


def _call(api: Api, what: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.get(f"/calls/{segment(what)}")
    except NotFound as error:
        raise Failure(f"there is no run and no call {what} here; `playhead ls` lists what was recorded") from error
    return found


def _step(api: Api, run: str, step: int) -> dict[str, Any]:
    """The call at a step of a run, whole."""
    last = 0
    try:
        lacks(api, run)
        for call in api.each(f"/runs/{segment(run)}/calls", limit=500):
            if call["step"] == step:
                return _call(api, call["id"])
            last = max(last, call["step"])
    except NotFound as error:
        raise Failure(f"there is no run {run} here; `playhead ls` lists what was recorded") from error
    raise Failure(f"run {run} has no step {step}: its last step is {last}; `playhead show {run}` lists them")


_ATTRIBUTION = {
    "given": "given (every call named this run to Playhead)",
    "derived": "derived (from ids that agents send, from ids in their messages, or from the process that called)",
    "guessed": "guessed (calls of other work may be among these, or calls of this run elsewhere; see docs/runs.md)",
}


def _show_run(seen: _Seen) -> None:
    run, calls = seen.shape, seen.calls
    click.echo(click.style(f"run {printable(run['id'])}", bold=True))
    for label, value in (run["labels"] or {}).items():
        click.echo(f"  {printable(label)} = {printable(value)}")
    if run.get("isolation", "none") != "none":
        click.echo(f"  isolation: {run['isolation']}")
    if run["parent"] is not None:
        click.echo(f"  fork of {printable(run['parent'])} at step {run['forked_at']}")
    click.echo(f"  {counted(run['calls'], 'call')}, {counted(run['gaps'], 'gap')}, {_state(seen)}")
    if run.get("attribution"):
        click.echo(f"  attribution: {_ATTRIBUTION.get(run['attribution'], run['attribution'])}")
    for line in _gap_lines(seen.gaps, calls):
        click.echo(f"  {printable(line)}")
    click.echo()
    print_table(*_table(calls, {gap["exchange"] for gap in seen.gaps}))
    if calls:
        whole = typed(f"show {run['id']} {calls[0]['step']}")
        click.echo(f"\none call whole: {whole}", err=True)


def _state(seen: _Seen) -> str:
    if not seen.shape["complete"]:
        return "INCOMPLETE: something is cut or could not be recorded"
    return "complete" if seen.lacking is None else "not all stored yet"


def _gap_lines(gaps: list[dict[str, Any]], calls: list[dict[str, Any]]) -> list[str]:
    """Why something is lacking, and at which steps: each reason once."""
    steps = {exchange: call["step"] for call in calls for exchange in call["exchanges"]}
    reasons: dict[str, list[int | None]] = {}
    for gap in gaps:
        reasons.setdefault(gap["reason"], []).append(steps.get(gap["exchange"]))
    lines = [f"{counted(len(at), 'gap')}{_at(at)}: {reason}" for reason, at in reasons.items()]
    more = len(lines) - FEW
    return [*lines[:FEW], *([f"and {counted(more, 'other reason')}: show --json has all"] if more > 0 else [])]


def _at(places: list[int | None]) -> str:
    steps = sorted({step for step in places if step is not None})
    if not steps:
        return ""
    few = ", ".join(map(str, steps[:FEW])) + (", …" if len(steps) > FEW else "")
    return f" at step {few}" if len(steps) == 1 else f" at steps {few}"


def _table(
    calls: list[dict[str, Any]], lacking: Collection[str | None] = ()
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows; what leads to a call, and its branch, only where something of that is known. `lacking`: the exchanges
    that have a gap."""
    columns = [("FROM", [_before(call) for call in calls]), ("BRANCH", _branches(calls))]
    extra = [(head, cells) for head, cells in columns if any(cells)]
    rows = [_call_row(call, gap=any(one in lacking for one in call["exchanges"])) for call in calls]
    merged = [(row[0], *(cells[n] for _, cells in extra), *row[1:]) for n, row in enumerate(rows)]
    return ("STEP", *(head for head, _ in extra), "CALL", "STATUS", "MS", "TOKENS", "ANSWER"), merged


def _before(call: dict[str, Any]) -> str:
    """The steps that this one goes on from; of a tool, the step in which a model asked for it."""
    if call["executes"]:
        return f"{call['executes']['step']}"
    return "+".join(str(one["step"]) for one in call["follows"] or [])


def _branches(calls: list[dict[str, Any]]) -> list[str]:
    """The branch of each call, where there is more than one."""
    numbers = [call["branch"] for call in calls]
    several = len({number for number in numbers if number is not None}) > 1
    return [str(number) if several and number is not None else "" for number in numbers]


def _call_row(call: dict[str, Any], *, gap: bool) -> tuple[str, ...]:
    usage = call["usage"]
    # Vectors and counts have no second number.
    tokens = "+".join(str(usage[name]) for name in ("input_tokens", "output_tokens") if usage[name] is not None)
    name = (
        # Of an agent that is kept at its provider only the answer tells the model.
        f"{call['operation']} {call['model_requested'] or call['model_returned'] or ''}".rstrip()
        if call["kind"] == "model"
        else f"{call['method']} {_place(call)}"
    )
    whole = call["complete"] and call["outcome"] != "refused" and not gap
    status = str(call["status"] or "-") + ("" if whole else " gap" if gap else f" {_cut(call)}")
    if call["attempts"] > 1:
        status += f" ({call['attempts']} tries)"
    took = f"{call['duration_ms']:.0f}" if call["duration_ms"] is not None else ""
    return str(call["step"]), shortened(name, 48), status, took, tokens, shortened(_said(call), 60)


def _cut(call: dict[str, Any]) -> str:
    """Why an answer is not whole, or not the API's. One that ended well has lost its end to our own limit."""
    return "truncated" if call["outcome"] == "completed" else str(call["outcome"])


def _place(call: dict[str, Any]) -> str:
    return f"{call['host']}{call['path']}"


def _said(call: dict[str, Any]) -> str:
    """The text of an answer, or the tools it asks for."""
    asked = ", ".join(f"{tool['name']}(…)" for tool in call["tool_calls"] or [])
    return asked or call["text"] or ""


COMMANDS = (ls_command, show_command)
