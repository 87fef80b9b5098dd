"""The command that runs Playhead for whoever comes: up."""

import asyncio
from typing import Any

import click

from proxy.capture.rules import TRANSPARENT_PORT
from proxy.cli.common import settings, with_settings
from proxy.commands.up import say_on_stderr, up
from proxy.errors import Failure


@click.command("up", short_help="Run Playhead in the foreground: proxy, store server, Postgres.")
@with_settings
@click.option("--mode", type=click.Choice(["record", "replay", "auto", "passthrough"]), help="Default: record.")
@click.option("--proxy-port", type=int, help="Default: 8080; 0 takes a free one.")
@click.option("--api-port", type=int, help="Default: 8081; 0 takes a free one.")
@click.option(
    "--transparent",
    is_flag=False,
    flag_value=TRANSPARENT_PORT,
    type=int,
    metavar="[PORT]",
    help=f"Also take connections that nftables or iptables redirect here (see playhead rules). Port: {TRANSPARENT_PORT}.",
)
@click.option("--workers", type=int, help="Worker processes that share the proxy port. Default: 1.")
@click.option(
    "--listen", metavar="ADDR", help="Default: 127.0.0.1. Beyond loopback the proxy asks for its recording token."
)
@click.option("--reverse", metavar="ORIGIN", help="Serve this origin in reverse mode, for clients with a base_url.")
@click.option("--replay", multiple=True, metavar="RUN|BUNDLE", help="What answers in replay mode. May be repeated.")
@click.option("--part", type=click.Choice(["all", "store", "proxy"]), help="Run one half alone, as the images do.")
@click.option("--engine", type=click.Choice(["lane", "mitmproxy"]), help="The wire engine. Default: lane.")
@click.option("--durability", type=click.Choice(["process", "fsync"]), help="What the end of an answer waits for.")
@click.option(
    "--on-record-failure", type=click.Choice(["gap", "refuse"]), help="What happens to calls we cannot record."
)
def up_command(**flags: Any) -> None:
    """Run Playhead in the foreground: the proxy, the store server and, unless you name one, its Postgres.

    Prints one line on stdout once it answers: ready proxy=… api=… ca=… token=FILE. Then point an agent at it:

    \b
        eval "$(playhead env)"
        python agent.py

    FILE holds the token that the API asks for; `playhead token` prints it, and our own commands read it themselves.
    """
    flags["replay"] = flags["replay"] or None
    try:
        asyncio.run(up(settings(**flags), say_on_stderr))
    except* Failure as failures:
        raise failures.exceptions[0] from None


COMMANDS = (up_command,)
