"""The command that removes old recordings by rules: retention."""

from typing import Any, Final

import click
import msgspec

from proxy.cli.common import as_json, print_json, query_store, settings_from_flags, with_settings
from proxy.errors import Failure
from proxy.processes.store_client import Api
from proxy.retention_settings import retention_policy
from proxy.terminal.text import count_text, print_table, printable

TIMEOUT: Final = 4 * 3600.0
"""Seconds that a pass may take: it reads all runs and may rewrite every day."""

MOST_SHOWN: Final = 30


@click.group("retention", short_help="Remove old runs by the rules of playhead.toml.", invoke_without_command=True)
@with_settings
@as_json
@click.option("--plan", "only_plan", is_flag=True, help="Show what would go now, and why. Nothing is changed.")
@click.pass_context
def retention_command(ctx: click.Context, /, only_plan: bool, as_json: bool, **flags: Any) -> None:
    """Remove runs that the rules in playhead.toml let go. `playhead up` does it every hour by itself.

    \b
        playhead retention --plan      what would go now, how much that frees, and why
        playhead retention run         remove it now

    Pinned, flagged, live and forked-from runs stay whatever the rules say, and so do runs that ended badly, unless retention_failed
    says otherwise (docs/retention.md).
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = flags
        return
    if not only_plan:
        raise click.UsageError("say what to do: playhead retention --plan, or playhead retention run")

    def fetch(api: Api) -> dict[str, Any]:
        plan: dict[str, Any] = api.get("/retention")
        _require_same_rules(plan, flags)
        return plan

    plan = query_store(flags, fetch)
    if as_json:
        print_json(plan)
        return
    _show_plan(plan)


@retention_command.command("run", short_help="Remove now what the rules let go.")
@with_settings
@as_json
@click.pass_obj
def run_command(outer: dict[str, Any], /, as_json: bool, **flags: Any) -> None:
    """Remove now what the rules let go. Recording and queries go on meanwhile. What was removed cannot be restored."""
    merged = outer | {name: value for name, value in flags.items() if value is not None}

    def post(api: Api) -> dict[str, Any]:
        _require_same_rules(api.get("/retention"), merged)
        done: dict[str, Any] = api.post("/retention/run", timeout=TIMEOUT)
        return done

    done = query_store(merged, post)
    if as_json:
        print_json(done)
        return
    click.echo(
        f"removed {count_text(done['runs'], 'run')}, and the bodies of {done['bodies']}; {freed_text(done['freed'])}"
    )
    if done["days"]:
        rows = [(one["day"], one["way"], size_text(one["before"]), size_text(one["after"])) for one in done["days"]]
        print_table(("DAY", "WAS", "BEFORE", "AFTER"), rows)
    _warn(done)


def freed_text(freed: int) -> str:
    """Say by how much the database became smaller; `freed` is negative if more was stored meanwhile."""
    return f"freed {size_text(freed)}" if freed >= 0 else f"the database grew by {size_text(-freed)} meanwhile"


def _require_same_rules(plan: dict[str, Any], flags: dict[str, Any]) -> None:
    """Raise Failure if this command's settings have other rules than the store server that runs."""
    settings = settings_from_flags(**flags)
    if not settings.given_names & {"retention", "retention_failed", "retention_budget"}:
        return
    own = retention_policy(settings.retention, settings.retention_failed, settings.retention_budget)
    if msgspec.json.decode(msgspec.json.encode(own)) != {"rules": plan["rules"], "budget": plan["budget"]}:
        raise Failure(
            "the store server that runs has other rules of retention than this command: it read them when it was started;"
            " restart `playhead up` with the same playhead.toml"
        )


def _show_plan(plan: dict[str, Any]) -> None:
    click.echo(
        f"{count_text(plan['runs'], 'run')} would go, which frees about {size_text(plan['frees'])} of {size_text(plan['size'])}"
    )
    rows = [
        (
            printable(one["run"]),
            printable(one["project"]),
            one["part"],
            one["newest_at"][:16],
            size_text(one["bytes"]),
            printable(one["reason"]),
        )
        for one in plan["items"][:MOST_SHOWN]
    ]
    if rows:
        click.echo()
        print_table(("RUN", "PROJECT", "GOES", "NEWEST", "FREES", "WHY"), rows)
    if plan["runs"] > len(rows):
        click.echo(f"… and {plan['runs'] - len(rows)} more; --json lists the first 1,000")
    if plan["kept"]:
        click.echo()
        kept_rows = [(printable(one["reason"]), str(one["runs"]), size_text(one["bytes"])) for one in plan["kept"]]
        print_table(("KEPT BY", "RUNS", "SIZE"), kept_rows)
    _warn(plan)


def _warn(result: dict[str, Any]) -> None:
    for warning in result["warnings"]:
        click.echo(f"playhead: {printable(warning)}", err=True)


def size_text(size: int) -> str:
    """Write a number of bytes for people."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


COMMANDS = (retention_command,)
