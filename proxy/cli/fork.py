"""The commands that continue a recording live: fork, resume."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from calls.side_effects import BadRule, parse_side_effects
from proxy.cli.common import (
    ALLOW_UNUSED,
    RUN_ID,
    WrappingCommand,
    isolation_options,
    parse_labels,
    settings_from_flags,
    with_isolation,
    with_settings,
)
from proxy.cli.run_completion import complete_command, complete_recording
from proxy.commands.fork import ForkCommand, fork
from proxy.commands.override_file import load_overrides

type Command = Callable[..., Any]

_LIVE = [
    click.option(
        "--run", "run_id", type=RUN_ID, metavar="ID", help="The id of the new run. Default: one is generated."
    ),
    click.option(
        "--label", "labels", multiple=True, metavar="k=v", help="Attach a label to the new run. May be repeated."
    ),
    click.option(
        "--override",
        multiple=True,
        metavar="FILE|EFFECT=VALUE",
        help="Answer some steps as this file says (docs/forks.md), or give the program another time, file, variable or answer of a person:"
        " clock=2028-02-29T12:00:00Z, file:PATH=@FILE, env:NAME=VALUE, input=TEXT (docs/effects.md). May be repeated.",
    ),
    click.option(
        "--side-effects",
        "effects",
        multiple=True,
        metavar="[[METHOD ]HOST=]POLICY",
        help="Decide about live calls that may change something: block, allow or serve-recorded; with HOST, calls to that host."
        " May be repeated. Default: block.",
    ),
    ALLOW_UNUSED,
    click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report to FILE as JSON."),
]


def _with_fork_options(command: Command) -> Command:
    for option in reversed(_LIVE):
        command = option(command)
    return command


@click.command("fork", cls=WrappingCommand, short_help="Replay a run up to a step, then continue live as a new run.")
@with_settings
@click.option(
    "--after-step",
    "at",
    type=click.IntRange(min=0),
    required=True,
    metavar="K",
    help="The last step answered from the recording: the fork goes live after it. 0: everything goes live.",
)
@_with_fork_options
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_command)
def fork_command(at: int, **options: Any) -> None:
    """Run COMMAND, answer its calls up to step K from a recording, and let later calls go live.

    The live calls are recorded, with the steps before them, as a new run whose parent is the old one. Calls of models and calls that
    only read go out. A call that may change, replace or delete something elsewhere is blocked unless --side-effects allows it.

    \b
        playhead fork last --after-step 2 -- python agent.py
        playhead fork ticket-904 --after-step 4 --override what-if.toml \\
            --side-effects 'POST tickets.example.com=allow' -- python agent.py
    """
    raise click.exceptions.Exit(_run_fork(at, **options))


@click.command("resume", cls=WrappingCommand, short_help="Continue a run that stopped, without paying for it again.")
@with_settings
@_with_fork_options
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_command)
def resume_command(**options: Any) -> None:
    """Run COMMAND again, answer from the recording whatever was answered before it stopped, and let later calls go live.

    This is for an agent that was stopped, or stopped to wait for a person: a fork after the last step that was answered completely.
    Live calls are treated as by `playhead fork`.

    \b
        playhead resume ticket-904 -- python agent.py --approved
    """
    raise click.exceptions.Exit(_run_fork(None, **options))


def _run_fork(
    at: int | None,
    *,
    recording: str,
    command: tuple[str, ...],
    run_id: str | None,
    labels: tuple[str, ...],
    override: tuple[str, ...],
    report: Path | None,
    **options: Any,
) -> int:
    live = {name: options.pop(name) for name in ("effects", "allow_unused")}
    try:
        parse_side_effects(live["effects"], ())
    except BadRule as error:
        raise click.UsageError(str(error)) from error
    fork_options = ForkCommand(
        recording=recording,
        after_step=at,
        run=run_id,
        labels=parse_labels(labels),
        overrides=load_overrides(override),
        report=report,
        isolation=isolation_options(options),
        **live,
    )
    return asyncio.run(fork(settings_from_flags(**options), command, fork_options))


COMMANDS = (fork_command, resume_command)
