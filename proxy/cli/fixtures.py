"""`playhead fixtures`: what a test suite's plugin starts beside itself."""

import asyncio
import os
import sys
from typing import Any

import click

from proxy.cli.common import settings, with_settings
from proxy.errors import Failure, first
from proxy.fixtures import process


@click.command("fixtures", short_help="Serve the plugin of a test suite (pytest-playhead starts it).", hidden=True)
@with_settings
def fixtures_command(**flags: Any) -> None:
    """Serve the plugin of a test suite: JSON lines on stdin and stdout, until stdin ends.

    One door on loopback answers what a test asks from the recording beside it, or records it. No database, no keeper.
    pytest-playhead starts it; what is said is told in proxy/fixtures/process.py, for who writes a plugin for another runner.
    """
    found = settings(**flags)
    # Whatever else prints goes where a log goes: stdout is a conversation.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            asyncio.run(process.serve(found, out))
        except* Failure as failures:
            failure = first(failures)
            raise failure if isinstance(failure, Failure) else Failure(str(failure)) from None


COMMANDS = (fixtures_command,)
