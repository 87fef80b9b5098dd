"""The command that runs an agent and keeps what it asked and heard: record."""

import asyncio
from typing import Any

import click

from proxy.cli.common import RUN_ID, isolation_wish, pairs, settings, with_isolation, with_settings
from proxy.commands.record import record


@click.command("record", short_help="Run a command and record every call it makes.")
@with_settings
@click.option("--run", "run_id", type=RUN_ID, metavar="ID", help="Name the run yourself.")
@click.option(
    "--append", is_flag=True, help="Add to a run of this name that is there already; without it that is refused."
)
@click.option("--label", "labels", multiple=True, metavar="k=v", help="Attach a label to the run. May be repeated.")
@click.option("--quiet", is_flag=True, help="No summary.")
@with_isolation
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record_command(
    command: tuple[str, ...], run_id: str | None, labels: tuple[str, ...], append: bool, quiet: bool, **flags: Any
) -> None:
    """Run COMMAND and record every call it makes as one run.

    Uses the running `playhead up`, or its own for as long as COMMAND lasts. Exits with COMMAND's code.

    \b
        playhead record -- python agent.py
        playhead record --run ticket-904 --label team=support -- pytest tests/
    """
    wish = isolation_wish(flags)
    work = record(settings(**flags), command, run=run_id, labels=pairs(labels), append=append, quiet=quiet, wish=wish)
    code = asyncio.run(work)
    raise click.exceptions.Exit(code)


COMMANDS = (record_command,)
