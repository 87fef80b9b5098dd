"""The command that follows what is recorded: tail."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from proxy.cli.common import as_json, query_store, with_settings
from proxy.cli.run_completion import complete_run
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, StoreUnavailable, path_segment, resolve_run_name
from proxy.terminal.text import money, next_command, printable

RETRY_PAUSE: Final = 1.0
"""Seconds until a lost connection is tried again."""

MOST_RETRIES: Final = 60
"""Attempts in a row that may fail before the command gives up."""


@click.command("tail", short_help="Follow what is recorded, live.")
@with_settings
@as_json
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("--type", "types", multiple=True, metavar="NAME", help="Only events of this name, such as call or gap.")
@click.option("--label", multiple=True, metavar="k=v", help="Only of runs with this label; or `k` for any value.")
@click.option("--model", multiple=True, metavar="NAME", help="Only calls of this model.")
@click.option("--tool", multiple=True, metavar="NAME", help="Only calls that request or are of this tool.")
@click.option("--host", multiple=True, metavar="HOST", help="Only calls to this host.")
@click.option(
    "--kind", multiple=True, type=click.Choice(["model", "tool", "retrieval", "other"]), help="Only such calls."
)
@click.option("--status", multiple=True, metavar="CODE", help="Only calls with this status, such as 429 or 5xx.")
@click.option("--error/--no-error", default=None, help="Only calls that failed, or did not.")
def tail_command(as_json: bool, run: str | None, types: tuple[str, ...], **flags: Any) -> None:
    """Follow what is recorded, one line an event: runs that begin and end, calls, gaps, replays, and models that changed.

    With RUN, only its events, until it ends. A lost connection is opened again where it was; Ctrl-C ends the command. With --json,
    each line is an event as the API sends it, with its name and id.

    \b
    playhead tail                     everything
    playhead tail ticket-904          one run, until it ends; `last` is the newest
    playhead tail --error --json      calls that fail, for a program
    """
    filters: dict[str, Any] = {
        name: list(flags.pop(name)) for name in ("label", "model", "tool", "host", "kind", "status")
    }
    error = flags.pop("error")
    filters |= {
        "type": list(types),
        "error": None if error is None else str(error).lower(),
    }
    query = {name: value for name, value in filters.items() if value}
    query_store(flags, lambda api: _print_events(api, query, run, as_json=as_json), is_silent=False)


def _print_events(api: Api, query: Mapping[str, Any], name: str | None, *, as_json: bool) -> None:
    run = None if name is None else resolve_run_name(api, name)
    if run is not None:
        _require_not_ended(api, run)
    for event in _follow(api, query if run is None else {**query, "run": [run]}):
        click.echo(json.dumps(event) if as_json else _line(event))
        if run is not None and event["event"] == "run.ended":
            return


def _require_not_ended(api: Api, run: str) -> None:
    """Raise Failure if the run has ended; say that a run which has not begun is waited for: its name may be mistyped."""
    try:
        ended_at: str | None = api.get(f"/runs/{path_segment(run)}")["ended_at"]
    except NotFound:
        click.echo(f"playhead: there is no run {run} yet: waiting for it to begin; Ctrl-C ends this", err=True)
        return
    if ended_at:
        raise Failure(
            f"run {run} ended at {ended_at[:19]}Z, and nothing follows: see it with {next_command(f'show {run}')}"
        )


def _follow(api: Api, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield events, and connect again after the last one where the connection is lost. Raises Failure."""
    last: str | None = None
    failures = 0
    while True:
        try:
            for event in api.stream_events(query, last):
                failures = 0
                last = event["id"] or last
                yield event
        except (Failure, StoreUnavailable):
            failures += 1
            if last is None or failures > MOST_RETRIES:
                raise
        time.sleep(RETRY_PAUSE)


def _line(event: Mapping[str, Any]) -> str:
    at, name, run = (event.get("at") or "")[11:19], event["event"], printable(str(event.get("run") or "-"))
    if name == "call":
        return f"{at} {run} {_call_text(event)}"
    texts = {
        "run.ended": f"ended ({event.get('reason')})",
        "gap": click.style(f"gap: {printable(str(event.get('reason')))}", fg="yellow"),
        "replay": f"replay {printable(str(event.get('replay')))}: {event.get('verdict')}, {event.get('served')} served,"
        f" {event.get('missed')} missed, {event.get('drifted')} drifted",
        "drift": click.style(
            f"{printable(str(event.get('model')))} is answered by another model:"
            f" {printable(str(event.get('was_returned')))} {printable(str(event.get('was_fingerprint') or ''))} →"
            f" {printable(str(event.get('returned')))} {printable(str(event.get('fingerprint') or ''))}",
            fg="yellow",
        ),
        "reset": "some events since the last connection are gone",
    }
    return f"{at} {run} {texts.get(name, name.removeprefix('run.'))}".strip()


def _call_text(call: Mapping[str, Any]) -> str:
    target = call["model"] if call["kind"] == "model" else f"{call['operation']} {call['host']}"
    status = "no response" if call["status"] is None else str(call["status"])
    if call["error"]:
        status = click.style(status, fg="red")
    tools = f" → {', '.join(map(printable, call['tools']))}" if call["tools"] else ""
    usage = call["usage"]
    tokens = (usage["input_tokens"] or 0) + (usage["output_tokens"] or 0)
    parts = [f"{tokens:,} tokens"] if tokens else []
    parts += [money(call["cost_usd"])] if call["cost_usd"] is not None else []
    parts += [f"{call['duration_ms']:,.0f} ms"] if call["duration_ms"] is not None else []
    return f"{printable(str(target))} {status}{tools}  {', '.join(parts)}".rstrip()


COMMANDS = (tail_command,)
