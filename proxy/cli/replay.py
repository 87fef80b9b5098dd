"""The command that runs an agent and answers it from a recording: replay."""

import asyncio
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import HOST, isolation_wish, settings, with_isolation, with_settings
from proxy.commands.override_file import overrides_of
from proxy.commands.replay import ReplayCommand, replay


@click.command("replay", short_help="Run a command with its calls answered from a recording.")
@with_settings
@click.option("--pace", type=click.Choice(["instant", "recorded"]), default="instant", help="Default: instant.")
@click.option(
    "--on-miss",
    type=click.Choice(["fail", "live", "record"]),
    default="fail",
    help="Default: fail, with an explanation. record: ask for real, and let what came back whole become the run's new generation.",
)
@click.option(
    "--allow-host",
    "hosts",
    type=HOST,
    multiple=True,
    metavar="HOST",
    help="Let this host (or *.HOST) be asked for real.",
)
@click.option("--from-step", type=click.IntRange(min=1), metavar="N", help="Leave out what was recorded before step N.")
@click.option(
    "--after-last",
    type=click.Choice(["miss", "repeat-last", "cycle"]),
    default="miss",
    help="Once a call's answers are used up.",
)
@click.option("--allow-unused", is_flag=True, help="Recordings left over are no failure.")
@click.option("--override", type=click.Path(path_type=Path), metavar="FILE", help="Answer some steps differently.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report there as JSON.")
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def replay_command(
    recording: str, command: tuple[str, ...], report: Path | None, hosts: tuple[str, ...], **flags: Any
) -> None:
    """Run COMMAND and answer every call it makes from a recording, with the network cut.

    Exits with COMMAND's code; where COMMAND succeeded and the replay did not (a miss, a divergence, a recording left over)
    with 1, and with 3 where that cannot be told. What was missed, and what would mend it: playhead why.

    \b
        playhead replay last -- python agent.py
        playhead replay ticket-904.playhead.jsonl -- pytest tests/
    """
    wish = isolation_wish(flags)
    options = {name: flags.pop(name) for name in ("pace", "on_miss", "from_step", "after_last", "allow_unused")}
    options |= overrides_of(flags.pop("override"))
    if "overrides" in options and options["on_miss"] == "record":
        raise click.UsageError("what was edited is no recording: take --override or --on-miss record, not both")
    wanted = ReplayCommand(recording=recording, report=report, options=options, hosts=hosts, wish=wish)
    raise click.exceptions.Exit(asyncio.run(replay(settings(**flags), command, wanted)))


COMMANDS = (replay_command,)
