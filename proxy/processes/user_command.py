"""Run the user's command transparently: with its terminal, signals and exit code."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from proxy.errors import Failure
from proxy.terminal.hangup import is_hangup_ignored, leave_closed_terminal

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


def require_command(command: Sequence[str]) -> None:
    """Raise Failure if the command cannot be run, before anything is started for it."""
    if shutil.which(command[0]) is None:
        if os.path.isdir(command[0]):
            raise Failure(f"cannot run {command[0]}: it is a directory; name a program in it")
        if os.path.isfile(command[0]) and os.path.dirname(command[0]):
            raise Failure(f"cannot run {command[0]}: it is not executable; run chmod +x on it, or name its interpreter")
        raise Failure(f"cannot run {command[0]}: there is no such command; check its name and your PATH")


async def run_user_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: int | None = None,
    on_start: Callable[[int], None] = lambda _pid: None,
) -> int:
    """Run the command and return its exit code; 128 + n if signal n ended it, as in a shell.

    Raises Failure if it cannot be started.
    """
    try:
        # Python's own descriptors are not inherited, but those that the user's shell passed on are.
        process = await asyncio.create_subprocess_exec(*command, env=dict(environment), stdout=stdout, close_fds=False)
    except OSError as error:
        raise Failure(f"cannot run {command[0]}: {error.strerror}") from error
    on_start(process.pid)
    with forwarded_signals(process):
        code = await process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def forwarded_signals(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Forward signals to the command while it runs, so that Ctrl-C does not end this process before it.

    When the terminal is closed, what remains to be done is done when the command has ended: a shell that ends sends SIGHUP once more.
    """
    loop = asyncio.get_running_loop()
    is_hung_up = False

    def forward(number: int) -> None:
        # A terminal sends Ctrl-C to the whole process group, so the command already has it.
        if number == signal.SIGINT and _in_foreground():
            return
        if number == signal.SIGHUP:
            nonlocal is_hung_up
            is_hung_up = True
            leave_closed_terminal()
        if process.returncode is None:
            process.send_signal(number)

    signals = [*FORWARDED_SIGNALS, signal.SIGINT]
    if is_hangup_ignored():
        signals.remove(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, forward, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        if is_hung_up:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
