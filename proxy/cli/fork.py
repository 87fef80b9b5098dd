"""The commands that leave a record: fork, resume."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from calls.effects import BadRule, effects
from proxy.cli.common import RUN_ID, isolation_wish, pairs, settings, with_isolation, with_settings
from proxy.commands.fork import ForkCommand, fork
from proxy.commands.override_file import overrides_of

type Command = Callable[..., Any]

_LIVE = [
    click.option("--run", "run_id", type=RUN_ID, metavar="ID", help="Name the new run yourself."),
    click.option("--label", "labels", multiple=True, metavar="k=v", help="Attach a label to it. May be repeated."),
    click.option("--override", type=click.Path(path_type=Path), metavar="FILE", help="Answer some steps differently."),
    click.option(
        "--effects",
        multiple=True,
        metavar="POLICY|[METHOD ]HOST=POLICY",
        help="What becomes of live calls that may change something: serve-recorded, block or allow. Default: block.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="HOST|METHOD HOST",
        help="Let such calls go out to this host. May be repeated.",
    ),
    click.option("--allow-unused", is_flag=True, help="Recorded steps that nobody asks for are no failure."),
    click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report there as JSON."),
]


def _with_live(command: Command) -> Command:
    for option in reversed(_LIVE):
        command = option(command)
    return command


@click.command("fork", short_help="Replay a run up to a step, then go on live as a run of its own.")
@with_settings
@click.option(
    "--from",
    "at",
    type=click.IntRange(min=0),
    required=True,
    metavar="K",
    help="The last step that the record answers.",
)
@_with_live
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def fork_command(at: int, **given: Any) -> None:
    """Run COMMAND, answer its calls up to step K from a recording, and let it go on live from there.

    What goes live is recorded, with the steps before it, as a new run whose parent is the old one. Models are asked for real,
    and so is whatever only reads. A call that may change something elsewhere, or that replaces or deletes, is blocked unless you
    allow it: what was sent cannot be unsent.

    \b
        playhead fork last --from 2 -- python agent.py
        playhead fork ticket-904 --from 4 --override what-if.toml --allow 'POST tickets.example.com' -- python agent.py
    """
    raise click.exceptions.Exit(_forked(at, **given))


@click.command("resume", short_help="Go on with a run that stopped, without paying for it again.")
@with_settings
@_with_live
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def resume_command(**given: Any) -> None:
    """Run COMMAND again, answer from the recording all that it had got when it stopped, and let it go on live from there.

    This is for an agent that stopped to wait for a person, or was stopped: it is a fork at the last step that was answered
    whole. Models are asked for real; of other calls holds what `playhead fork --help` says.

    \b
        playhead resume ticket-904 -- python agent.py --approved
    """
    raise click.exceptions.Exit(_forked(None, **given))


def _forked(
    at: int | None,
    *,
    recording: str,
    command: tuple[str, ...],
    run_id: str | None,
    labels: tuple[str, ...],
    override: Path | None,
    report: Path | None,
    **given: Any,
) -> int:
    live = {name: given.pop(name) for name in ("effects", "allow", "allow_unused")}
    try:
        effects(live["effects"], live["allow"])
    except BadRule as error:
        raise click.UsageError(str(error)) from error
    wanted = ForkCommand(
        recording=recording,
        at=at,
        run=run_id,
        labels=pairs(labels),
        overrides=overrides_of(override),
        report=report,
        wish=isolation_wish(given),
        **live,
    )
    return asyncio.run(fork(settings(**given), command, wanted))


COMMANDS = (fork_command, resume_command)
