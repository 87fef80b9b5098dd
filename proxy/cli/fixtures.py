"""`playhead fixtures`: the process that a test suite's plugin starts."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click

from proxy.capture.namespace.isolation import NotCaptive
from proxy.cli.common import settings_from_flags, with_settings
from proxy.errors import Failure, first_exception
from proxy.fixtures import isolated, process
from proxy.settings import Settings


@click.command("fixtures", short_help="Serve the plugin of a test suite (pytest-playhead starts it).", hidden=True)
@with_settings
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False, exists=True), hidden=True)
@click.option("--replay-only", is_flag=True, hidden=True, help="No test of the suite records.")
@click.option(
    "--shared", is_flag=True, hidden=True, help="Serve the suites that connect to the socket passed over stdin."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def fixtures_command(
    command: tuple[str, ...], directory: Path | None, *, replay_only: bool, shared: bool, **flags: Any
) -> None:
    """Serve the plugin of a test suite: JSON lines on stdin and stdout, until stdin ends.

    With a command (`playhead fixtures -- pytest …`) the command is run captive, and the lines go over a socket that it inherits.

    One worker on loopback answers each test from its recording, or records it, without a database or a store server.
    pytest-playhead starts it; the protocol is described in proxy/fixtures/process.py, for plugins of other test runners.
    """
    started_in = Path.cwd()
    if directory is not None:
        os.chdir(directory)
    found = settings_from_flags(**flags)
    if command:
        _run_suite(found, command, started_in)
    if shared:
        listener = process.receive_listener()
        _run_coroutine(lambda: process.serve_shared(found, listener, is_replay_only=replay_only))
        return
    # Standard output is for the protocol; other output goes to standard error.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _run_coroutine(lambda: process.serve(found, out, is_replay_only=replay_only))


def _run_suite(settings: Settings, command: tuple[str, ...], directory: Path) -> NoReturn:
    """Run the suite captive, or uncaptured where the system does not allow it."""
    isolated.restore_suite_variables()
    try:
        code = _run_coroutine(lambda: isolated.run_isolated(settings, command, directory))
    except NotCaptive as reason:
        os.chdir(directory)
        isolated.execute_without_capture(command, reason)
    sys.exit(code)


def _run_coroutine[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(work())
    except ExceptionGroup as failures:
        failure = first_exception(failures)
        if isinstance(failure, Failure):
            raise failure from None
        raise


COMMANDS = (fixtures_command,)
