"""The command that erases recordings for good: erase."""

import sys
import time
from collections import Counter
from typing import Any, Final

import click

from proxy.cli.common import RUN_ID, as_json, print_json, query_store, with_settings
from proxy.cli.run_completion import complete_run
from proxy.errors import Failure
from proxy.processes.store_client import Api, resolve_run_name
from proxy.terminal.text import count_text, printable

TIMEOUT: Final = 4 * 3600.0
"""Seconds that one step of an erasure may take: the files of a day are written anew."""

REPORT_EVERY: Final = 2.0
"""Seconds between two lines of progress."""

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

    --match looks into every recorded call and says how far it is. Interrupted at any point, the same command again does the rest.

    Prints what was erased and where it was, and what may still have it. Backups and archives of the database keep what they have.
    """
    if sum(one is not None for one in (run_id, call_id, match)) != 1:
        raise click.UsageError("say what to erase: one of --run RUN, --call CALL and --match JSONPATH=VALUE")

    def erase(api: Api) -> dict[str, Any]:
        targets = {"call": call_id, "match": match, "run": run_id and resolve_run_name(api, run_id)}
        body = {name: value for name, value in targets.items() if value is not None}
        if yes and match is not None and not only_plan:
            return _post_steps(api, body)
        plan = _post_steps(api, body | {"dry_run": True})
        if only_plan or not (plan["runs"] or _has_reports(plan)):
            return plan
        if not yes:
            _confirm(plan)
        return _post_steps(api, body)

    result = query_store(flags, erase, is_silent=match is None)
    if as_json:
        print_json(result)
        return
    _show(result)


def _post_steps(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """Erase, in as many steps as it takes; return what was erased in all of them."""
    whole: dict[str, Any] = api.post("/erasures", json=body, timeout=TIMEOUT)
    printed_at = time.monotonic()
    try:
        while whole["next"] is not None:
            if time.monotonic() - printed_at >= REPORT_EVERY:
                printed_at = time.monotonic()
                click.echo(f"playhead: {_progress(whole)}", err=True)
            whole = _add_step(whole, api.post("/erasures", json=body | {"after": whole["next"]}, timeout=TIMEOUT))
    except Failure as error:
        raise Failure(f"{error}; {_progress(whole)}: the same command again does the rest") from error
    return whole


def _has_reports(result: dict[str, Any]) -> bool:
    """Whether there are reports of replays in what was, or would be, erased."""
    return bool(result["rows"].get("replays") or result["files"]["replays"])


def _progress(whole: dict[str, Any]) -> str:
    """Say how far an erasure is."""
    verb = "erased" if whole["erased"] else "found"
    looked = f"looked into {count_text(whole['looked_at'], 'exchange')}, {verb} {len(whole['exchanges']):,}"
    if whole["next"].startswith("day:"):
        return f"{looked}; rewriting the database's files, day by day"
    return looked


def _add_step(whole: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Return what two answers say together."""
    files = {name: number + step["files"][name] for name, number in whole["files"].items()}
    # Each step overwrites the spools anew, and a run may have calls in several.
    files["spool_bytes"] = max(whole["files"]["spool_bytes"], step["files"]["spool_bytes"])
    return step | {
        "runs": sorted({*whole["runs"], *step["runs"]}),
        "exchanges": [*whole["exchanges"], *step["exchanges"]],
        "rows": dict(Counter(whole["rows"]) + Counter(step["rows"])),
        "files": files,
        "objects": whole["objects"] + step["objects"],
        "remains": list(dict.fromkeys([*whole["remains"], *step["remains"]])),
        "looked_at": whole["looked_at"] + step["looked_at"],
    }


def _confirm(plan: dict[str, Any]) -> None:
    """Ask the user. Raises click.Abort, or a usage error where nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError("an erasure cannot be undone, and nobody can confirm it here: add --yes, or try --plan")
    _show(plan)
    click.confirm("Erase this for good?", abort=True, err=True)


def _show(result: dict[str, Any]) -> None:
    verb = "erased" if result["erased"] else "would erase"
    exchanges, runs = count_text(len(result["exchanges"]), "exchange"), count_text(len(result["runs"]), "run")
    if not (result["runs"] or _has_reports(result)):
        click.echo("nothing here is like that: nothing was erased")
        return
    if result["runs"]:
        click.echo(f"{verb} {exchanges} of {runs}: {', '.join(map(printable, result['runs'][:MOST_SHOWN]))}")
    if not result["erased"]:
        if _has_reports(result):
            click.echo("would erase reports of replays that quote it")
        return
    if not result["runs"]:
        click.echo("erased reports of replays that quote it")
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
