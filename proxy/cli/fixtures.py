"""`playhead fixtures`: what a test suite's plugin starts beside itself."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click

from proxy.capture.namespace.isolation import NotCaptive
from proxy.cli.common import settings, with_settings
from proxy.errors import Failure, first
from proxy.fixtures import isolated, process
from proxy.settings import Settings


@click.command("fixtures", short_help="Serve the plugin of a test suite (pytest-playhead starts it).", hidden=True)
@with_settings
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False, exists=True), hidden=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def fixtures_command(command: tuple[str, ...], directory: Path | None, **flags: Any) -> None:
    """Serve the plugin of a test suite: JSON lines on stdin and stdout, until stdin ends.

    With a command (`playhead fixtures -- pytest …`) that is run captive, and the lines go over a socket which it inherits.

    One worker on loopback answers what a test asks from the recording beside it, or records it. No database, no store server.
    pytest-playhead starts it; what is said is told in proxy/fixtures/process.py, for who writes a plugin for another runner.
    """
    started_in = Path.cwd()
    if directory is not None:
        os.chdir(directory)
    found = settings(**flags)
    if command:
        _run_suite(found, command, started_in)
    # Whatever else prints goes where a log goes: stdout is a conversation.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _run(lambda: process.serve(found, out))


def _run_suite(found: Settings, command: tuple[str, ...], directory: Path) -> NoReturn:
    """Run it captive, or as it is where that cannot be."""
    isolated.restore_suite_variables()
    try:
        code = _run(lambda: isolated.run_isolated(found, command, directory))
    except NotCaptive as reason:
        os.chdir(directory)
        isolated.execute_without(command, reason)
    sys.exit(code)


def _run[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(work())
    except ExceptionGroup as failures:
        failure = first(failures)
        if isinstance(failure, Failure):
            raise failure from None
        raise


COMMANDS = (fixtures_command,)
