"""The commands through which an agent's traffic passes: up, record, replay."""

import asyncio
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import RUN_ID, pairs, settings, with_settings
from proxy.errors import Failure
from proxy.overrides import overrides_of
from proxy.record import record
from proxy.replay import Wanted, replay
from proxy.up import say_on_stderr, up


@click.command("up", short_help="Run Playhead in the foreground: proxy, keeper, Postgres.")
@with_settings
@click.option("--mode", type=click.Choice(["record", "replay", "auto", "passthrough"]), help="Default: record.")
@click.option("--proxy-port", type=int, help="Default: 8080; 0 takes a free one.")
@click.option("--api-port", type=int, help="Default: 8081; 0 takes a free one.")
@click.option("--workers", type=int, help="Door processes that share the proxy port. Default: 1.")
@click.option("--listen", metavar="ADDR", help="Default: 127.0.0.1. Beyond loopback a token is required.")
@click.option("--reverse", metavar="ORIGIN", help="Serve this origin in reverse mode, for clients with a base_url.")
@click.option("--replay", multiple=True, metavar="RUN|BUNDLE", help="What answers in replay mode. May be repeated.")
@click.option("--part", type=click.Choice(["all", "keeper", "doors"]), help="Run one half alone, as the images do.")
@click.option("--engine", type=click.Choice(["lane", "mitmproxy"]), help="The wire engine. Default: lane.")
@click.option("--durability", type=click.Choice(["process", "fsync"]), help="What the end of an answer waits for.")
@click.option(
    "--on-record-failure", type=click.Choice(["gap", "refuse"]), help="What happens to calls we cannot record."
)
def up_command(**flags: Any) -> None:
    """Run Playhead in the foreground: the proxy, the keeper and, unless you name one, its Postgres.

    Prints one line on stdout once it answers: ready proxy=… api=… ca=… . Then point an agent at it:

    \b
        eval "$(playhead env)"
        python agent.py
    """
    flags["replay"] = flags["replay"] or None
    try:
        asyncio.run(up(settings(**flags), say_on_stderr))
    except* Failure as failures:
        raise failures.exceptions[0] from None


@click.command("record", short_help="Run a command and record every call it makes.")
@with_settings
@click.option(
    "--run", "run_id", type=RUN_ID, metavar="ID", help="Name the run yourself; the same name later continues it."
)
@click.option("--label", "labels", multiple=True, metavar="k=v", help="Attach a label to the run. May be repeated.")
@click.option("--quiet", is_flag=True, help="No summary.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record_command(
    command: tuple[str, ...], run_id: str | None, labels: tuple[str, ...], quiet: bool, **flags: Any
) -> None:
    """Run COMMAND and record every call it makes as one run.

    Uses the running `playhead up`, or its own for as long as COMMAND lasts. Exits with COMMAND's code.

    \b
        playhead record -- python agent.py
        playhead record --run ticket-904 --label team=support -- pytest tests/
    """
    code = asyncio.run(record(settings(**flags), command, run=run_id, labels=pairs(labels), quiet=quiet))
    raise click.exceptions.Exit(code)


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
    "--allow-host", "hosts", multiple=True, metavar="HOST", help="Let this host (or *.HOST) be asked for real."
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
    options = {name: flags.pop(name) for name in ("pace", "on_miss", "from_step", "after_last", "allow_unused")}
    options |= overrides_of(flags.pop("override"))
    if "overrides" in options and options["on_miss"] == "record":
        raise click.UsageError("what was edited is no recording: take --override or --on-miss record, not both")
    wanted = Wanted(recording=recording, report=report, options=options, hosts=hosts)
    raise click.exceptions.Exit(asyncio.run(replay(settings(**flags), command, wanted)))


COMMANDS = (up_command, record_command, replay_command)
