"""The command that runs an agent and records its calls: record."""

import asyncio
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import (
    RUN_ID,
    WrappingCommand,
    isolation_options,
    parse_labels,
    settings_from_flags,
    with_isolation,
    with_settings,
)
from proxy.cli.run_completion import complete_command
from proxy.commands.record import record
from proxy.effects.launch import EffectsOptions


@click.command("record", cls=WrappingCommand, short_help="Run a command and record every call it makes.")
@with_settings
@click.option("--run", "run_id", type=RUN_ID, metavar="ID", help="The id of the run. Default: one is generated.")
@click.option(
    "--append",
    is_flag=True,
    help="Add to the run of this id if it exists already. Without this option that is an error.",
)
@click.option("--label", "labels", multiple=True, metavar="k=v", help="Attach a label to the run. May be repeated.")
@click.option("--no-git", is_flag=True, help="Attach no labels git and git-dirty.")
@click.option(
    "--effects",
    is_flag=True,
    help="Also record what Python programs get without the network: time, random numbers, variables, files (docs/effects.md).",
)
@click.option(
    "--effects-of",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="With --effects: an installed package that is part of the program. May be repeated.",
)
@click.option("--quiet", is_flag=True, help="Print no summary.")
@with_isolation
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_command)
def record_command(
    command: tuple[str, ...],
    run_id: str | None,
    labels: tuple[str, ...],
    append: bool,
    no_git: bool,
    effects: bool,
    packages: tuple[str, ...],
    quiet: bool,
    **flags: Any,
) -> None:
    """Run COMMAND and record every call it makes as one run.

    Uses the running `playhead up`, or processes of its own while COMMAND runs. Exits with COMMAND's code, or with 125 if
    COMMAND succeeded and the store server could not be started: the calls wait in the spool then. In a Git repository, the run gets the
    labels git (the commit) and git-dirty (whether tracked files differ from it), unless --label git=… names another.

    \b
        playhead record -- python agent.py
        playhead record --run ticket-904 --label team=support -- pytest tests/
    """
    wish = isolation_options(flags)
    chosen = parse_labels(labels)
    has_version = not no_git and "git" not in chosen
    work = record(
        settings_from_flags(**flags),
        command,
        run=run_id,
        labels=chosen,
        code_directory=Path.cwd() if has_version else None,
        append=append,
        quiet=quiet,
        isolation=wish,
        effects=EffectsOptions(packages=packages) if effects or packages else None,
    )
    code = asyncio.run(work)
    raise click.exceptions.Exit(code)


COMMANDS = (record_command,)
