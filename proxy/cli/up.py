"""The command that runs Playhead for any client: up."""

import asyncio
from typing import Any

import click

from proxy.capture.rules import TRANSPARENT_PORT
from proxy.cli.common import settings_from_flags, with_settings
from proxy.cli.run_completion import complete_recording
from proxy.commands.up import say_on_stderr, up
from proxy.errors import Failure


@click.command("up", short_help="Run Playhead in the foreground: proxy, store server, Postgres.")
@with_settings
@click.option(
    "--mode",
    type=click.Choice(["record", "replay", "auto", "passthrough"]),
    help="What to do with requests. Default: record.",
)
@click.option("--proxy-port", type=int, help="The port of the proxy. Default: 8080; 0 selects a free one.")
@click.option("--api-port", type=int, help="The port of the REST API. Default: 8081; 0 selects a free one.")
@click.option(
    "--transparent",
    is_flag=False,
    flag_value=TRANSPARENT_PORT,
    type=int,
    metavar="[PORT]",
    help=f"Also accept connections that nftables or iptables redirect to PORT (see playhead rules). Default: {TRANSPARENT_PORT}.",
)
@click.option("--workers", type=int, help="Worker processes that share the proxy port. Default: 1.")
@click.option(
    "--listen",
    metavar="ADDR",
    help="The address to listen on. Default: 127.0.0.1. Beyond loopback the proxy requires its recording token.",
)
@click.option("--reverse", metavar="ORIGIN", help="Serve this origin in reverse mode, for clients with a base_url.")
@click.option(
    "--replay",
    multiple=True,
    metavar="RUN|BUNDLE",
    shell_complete=complete_recording,
    help="A recording to answer from in modes replay and auto. May be repeated.",
)
@click.option(
    "--part",
    type=click.Choice(["all", "store", "proxy"]),
    help="Run only the store server or only the proxy workers, as the images do.",
)
@click.option("--engine", type=click.Choice(["lane", "mitmproxy"]), help="The wire engine. Default: lane.")
@click.option(
    "--durability",
    type=click.Choice(["process", "fsync"]),
    help="What the end of an answer waits for: the write (process) or the disk (fsync).",
)
@click.option(
    "--on-record-failure",
    type=click.Choice(["gap", "refuse"]),
    help="What to do with calls that cannot be recorded: let them pass and note a gap, or refuse them.",
)
def up_command(**flags: Any) -> None:
    """Run Playhead in the foreground: the proxy, the store server and, unless --database-url names one, a Postgres server.

    Prints one line on stdout once it answers: ready proxy=… api=… ca=… token=FILE. Then point an agent at it:

    \b
        eval "$(playhead env)"
        python agent.py

    FILE holds the token that the API requires; `playhead token` prints it. Playhead's own commands read it by themselves.
    """
    flags["replay"] = flags["replay"] or None
    try:
        asyncio.run(up(settings_from_flags(**flags), say_on_stderr))
    except* Failure as failures:
        raise failures.exceptions[0] from None


COMMANDS = (up_command,)
