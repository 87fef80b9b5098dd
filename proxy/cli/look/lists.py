"""The commands that list recordings: ls, calls."""

from typing import Any

import click

from proxy.cli.common import as_json, print_json, query_store, with_settings
from proxy.cli.look.list_options import fetch_list, has_filters, take_list_query, with_list_options
from proxy.terminal.render_run import JSON_RPC, call_cost, call_status
from proxy.terminal.text import money, print_table

NO_RUNS = "no runs; record one with: playhead record -- COMMAND"


@click.command("ls", short_help="List runs, newest first.")
@with_settings
@as_json
@with_list_options
def ls_command(as_json: bool, limit: int, **flags: Any) -> None:
    """List runs, newest first.

    Filters select the runs that have at least one call to which all of them apply; of a filter that is repeated, one value must
    apply. --min-cost, --min-duration and --sort look at the whole run. --search takes what `playhead search` takes.

    \b
    playhead ls --error --since 1d             runs of the last day in which a call failed
    playhead ls --sort cost --limit 5          the five most expensive runs
    playhead ls --tool delete_user --tool refund --label team=blue
    """
    query = take_list_query(flags)
    found = query_store(flags, lambda api: fetch_list(api, "/runs", limit, query | {"settled": True}))
    if as_json:
        print_json(found)
        return
    if not found["items"]:
        none = "no run fits these filters; `playhead ls` lists all" if has_filters(query) else NO_RUNS
        click.echo(none, err=True)
        return
    print_table(
        ("RUN", "STARTED", "CALLS", "TOKENS", "COST", "MODELS", "NAME, LABELS"),
        [_run_row(run) for run in found["items"]],
    )


@click.command("calls", short_help="List calls of all runs, newest first.")
@with_settings
@as_json
@with_list_options
def calls_command(as_json: bool, limit: int, **flags: Any) -> None:
    """List calls of all runs, newest first.

    All filters must apply; of a filter that is repeated, one value. `playhead show RUN STEP` shows a call in full.

    \b
    playhead calls --error --since 12h             calls that failed in the last 12 hours
    playhead calls --sort cost --limit 10          the ten most expensive calls
    playhead calls --tool refund --status 4xx --status 5xx
    playhead calls --model gpt-4o-mini --json      as JSON, with the text of answers
    """
    query = take_list_query(flags)
    found = query_store(flags, lambda api: fetch_list(api, "/calls", limit, query | {"settled": True}))
    if as_json:
        print_json(found)
        return
    if not found["items"]:
        none = "no call fits these filters; `playhead calls` lists all" if has_filters(query) else NO_RUNS
        click.echo(none, err=True)
        return
    print_table(
        ("RUN", "STEP", "STARTED", "KIND", "MODEL/TOOL", "STATUS", "TOKENS", "COST", "MS"),
        [_call_row(call) for call in found["items"]],
    )


def _run_row(run: dict[str, Any]) -> tuple[str, ...]:
    # Cached tokens are among the input's and reasoning among the output's.
    total = sum(run["tokens"][side] or 0 for side in ("input_tokens", "output_tokens"))
    flag = "" if run["complete"] else " (incomplete)"
    flag += " (guessed)" if run.get("attribution") == "guessed" else ""
    names = [run["name"]] if run["name"] else []
    labels = " ".join(
        (
            *names,
            *(f"{name}={value}" for name, value in (run["labels"] or {}).items() if not name.startswith("playhead.")),
        )
    )
    models = ", ".join(run["models"] or [])
    return run["id"], _seconds(run["started_at"]), f"{run['calls']}{flag}", f"{total:,}", _run_cost(run), models, labels


def _run_cost(run: dict[str, Any]) -> str:
    """What a run cost, as far as that is known; a plus where more is not known."""
    if not run["unpriced"]:
        return "-" if run["known_cost_usd"] is None else money(run["known_cost_usd"])
    return f"{money(run['known_cost_usd'])}+" if run["known_cost_usd"] else "unknown"


def _call_row(call: dict[str, Any]) -> tuple[str, ...]:
    usage = call["usage"]
    tokens = "+".join(f"{usage[name]:,}" for name in ("input_tokens", "output_tokens") if usage[name] is not None)
    took = "" if call["duration_ms"] is None else f"{call['duration_ms']:.0f}"
    started = _seconds(call["started_at"])
    return (
        call["run"],
        str(call["step"]),
        started,
        call["kind"],
        _target(call),
        call_status(call),
        tokens,
        call_cost(call),
        took,
    )


def _target(call: dict[str, Any]) -> str:
    """The model that was asked, or the tool that was called."""
    if call["kind"] == "model":
        return str(call["model_requested"] or call["model_returned"] or call["operation"])
    if call["tool_calls"]:
        # MCP: the request itself calls a tool.
        return ", ".join(tool["name"] for tool in call["tool_calls"])
    if call["dialect"] in JSON_RPC:
        return f"{call['operation']} at {call['host']}{call['path']}"
    return f"{call['method']} {call['host']}{call['path']}"


def _seconds(time: str | None) -> str:
    return (time or "")[:19].replace("T", " ")


COMMANDS = (ls_command, calls_command)
