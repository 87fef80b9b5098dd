"""The command that erases recordings for good: erase."""

import sys
from typing import Any, Final

import click

from proxy.cli.common import RUN_ID, as_json, print_json, query_store, with_settings
from proxy.cli.run_completion import complete_run
from proxy.processes.store_client import Api, resolve_run_name
from proxy.terminal.text import count_text, printable

TIMEOUT: Final = 4 * 3600.0
"""Seconds that an erasure may take: a match reads all exchanges, and the files of their days are written anew."""

MOST_SHOWN: Final = 20


@click.command("erase", short_help="Erase a run, a call, or a person's data for good.")
@with_settings
@as_json
@click.option("--run", "run_id", type=RUN_ID, shell_complete=complete_run, help="Erase this run.")
@click.option("--call", "call_id", metavar="CALL", help="Erase this call with all its attempts.")
@click.option(
    "--match",
    metavar="JSONPATH=VALUE",
    help="Erase all calls, of all runs, whose request or answer has this value at this RFC 9535 path.",
)
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be erased. Nothing is changed.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def erase_command(
    run_id: str | None,
    call_id: str | None,
    match: str | None,
    only_plan: bool,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Erase recordings from the database, its files and its log, from spools and replays. This cannot be undone.

    \b
        playhead erase --run night --plan
        playhead erase --match '$..email=anna@example.com'

    Prints what was erased and where it was, and what may still have it. Backups and archives of the database keep what they have.
    """
    if sum(one is not None for one in (run_id, call_id, match)) != 1:
        raise click.UsageError("say what to erase: one of --run RUN, --call CALL and --match JSONPATH=VALUE")

    def post(api: Api) -> dict[str, Any]:
        wanted = {"call": call_id, "match": match, "run": run_id and resolve_run_name(api, run_id)}
        body = {name: value for name, value in wanted.items() if value is not None}
        plan: dict[str, Any] = api.post("/erasures", json=body | {"dry_run": True}, timeout=TIMEOUT)
        if only_plan or not (plan["exchanges"] or plan["runs"]):
            return plan
        if not yes:
            _confirm(plan)
        done: dict[str, Any] = api.post("/erasures", json=body, timeout=TIMEOUT)
        return done

    result = query_store(flags, post)
    if as_json:
        print_json(result)
        return
    _show(result)


def _confirm(plan: dict[str, Any]) -> None:
    """Ask the user. Raises click.Abort, or a usage error where nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError("an erasure cannot be undone, and nobody can confirm it here: add --yes, or try --plan")
    _show(plan)
    click.confirm("Erase this for good?", abort=True, err=True)


def _show(result: dict[str, Any]) -> None:
    verb = "erased" if result["erased"] else "would erase"
    exchanges, runs = count_text(len(result["exchanges"]), "exchange"), count_text(len(result["runs"]), "run")
    if not result["runs"]:
        click.echo("nothing here is like that: nothing was erased")
        return
    click.echo(f"{verb} {exchanges} of {runs}: {', '.join(map(printable, result['runs'][:MOST_SHOWN]))}")
    if not result["erased"]:
        return
    for table, rows in result["rows"].items():
        click.echo(f"  {rows:>8} rows of the table {table}")
    files = result["files"]
    click.echo(f"  {files['spool_bytes']:>8} bytes of spools, overwritten")
    click.echo(f"  {files['replays']:>8} files of replays, {files['damaged']} of damaged records")
    if result["objects"]:
        click.echo(f"  {result['objects']:>8} objects in object storage")
    for remains in result["remains"]:
        click.echo(f"playhead: {printable(remains)}", err=True)


COMMANDS = (erase_command,)
