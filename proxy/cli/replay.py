"""The command that runs an agent and answers it from a recording: replay."""

import asyncio
from itertools import chain
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import (
    ALLOW_UNUSED,
    HOSTS,
    WrappingCommand,
    isolation_options,
    settings_from_flags,
    with_isolation,
    with_settings,
)
from proxy.cli.run_completion import complete_command, complete_recording
from proxy.commands.replay import ReplayCommand, replay


@click.command("replay", cls=WrappingCommand, short_help="Run a command with its calls answered from a recording.")
@with_settings
@click.option(
    "--pace",
    type=click.Choice(["instant", "recorded"]),
    default="instant",
    help="How fast to send answers. Default: instant.",
)
@click.option(
    "--on-miss",
    type=click.Choice(["fail", "live", "record"]),
    default="fail",
    help="What to do with a request that was not recorded. Default: fail, with an explanation. live: let it go out. record: let it go"
    " out, and make the answers part of the run's next generation if all of them are complete.",
)
@click.option(
    "--allowed-hosts",
    type=HOSTS,
    multiple=True,
    metavar="HOST[,HOST…]",
    help="Hosts (or *.HOST) whose requests go out unrecorded, beside those of the setting allowed_hosts. May be repeated.",
)
@click.option(
    "--from-step",
    type=click.IntRange(min=1),
    metavar="N",
    help="The first step of the recording to answer from: earlier ones are left out.",
)
@click.option(
    "--after-last",
    type=click.Choice(["miss", "repeat-last", "cycle"]),
    default="miss",
    help="What to do with a request whose recorded answers are used up. Default: miss.",
)
@ALLOW_UNUSED
@click.option(
    "--override",
    multiple=True,
    metavar="FILE|EFFECT=VALUE",
    help="Answer some steps as this file says (docs/forks.md), or give the program another time, file, variable or answer of a person:"
    " clock=2028-02-29T12:00:00Z, file:PATH=@FILE, env:NAME=VALUE, input=TEXT (docs/effects.md). May be repeated.",
)
@click.option(
    "--clock",
    type=click.Choice(["present", "recorded"]),
    help="recorded: the clock of an isolated command begins when the recording began, through libfaketime, and the replay says where that is"
    " not possible. Default: recorded where it is possible.",
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report to FILE as JSON.")
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_command)
def replay_command(
    recording: str,
    command: tuple[str, ...],
    report: Path | None,
    allowed_hosts: tuple[tuple[str, ...], ...],
    **flags: Any,
) -> None:
    """Run COMMAND and answer every call it makes from a recording, with the network cut.

    Exits with COMMAND's code. If COMMAND succeeded and the replay did not (a miss, a divergence, unused recorded answers), exits with
    1; if the outcome of the replay is unknown, with 3. `playhead why` explains misses and how to fix them.

    \b
        playhead replay last -- python agent.py
        playhead replay ticket-904.playhead.jsonl -- pytest tests/
    """
    wish, clock = isolation_options(flags), flags.pop("clock")
    hosts = tuple(chain.from_iterable(allowed_hosts))
    options = {name: flags.pop(name) for name in ("pace", "on_miss", "from_step", "after_last", "allow_unused")}
    options |= _read_overrides(flags.pop("override"))
    if "overrides" in options and options["on_miss"] == "record":
        raise click.UsageError(
            "--override and --on-miss record cannot be combined, since edited answers are never recorded: use one of them"
        )
    replay_options = ReplayCommand(
        recording=recording,
        report=report,
        options=options,
        allowed_hosts=hosts,
        isolation=wish,
        clock=clock,
    )
    raise click.exceptions.Exit(asyncio.run(replay(settings_from_flags(**flags), command, replay_options)))


def _read_overrides(arguments: tuple[str, ...]) -> dict[str, Any]:
    if not arguments:
        return {}
    # The import takes as long as that of this module.
    from proxy.commands.override_file import load_overrides

    return load_overrides(arguments)


COMMANDS = (replay_command,)
