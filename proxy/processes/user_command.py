"""Run the user's command as if we were not there: its terminal, its signals, its exit code."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from proxy.errors import Failure

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


def present(command: Sequence[str]) -> None:
    """Raise Failure where the command cannot be found, before anything is started for it."""
    if shutil.which(command[0]) is None:
        if os.path.isdir(command[0]):
            raise Failure(f"cannot run {command[0]}: it is a directory; name the program in it")
        if os.path.isfile(command[0]) and os.path.dirname(command[0]):
            raise Failure(
                f"cannot run {command[0]}: it may not be executed; make it so (chmod +x), or name its interpreter"
            )
        raise Failure(f"cannot run {command[0]}: there is no such command; check its name and your PATH")


async def wrapped(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: int | None = None,
    started: Callable[[int], None] = lambda _pid: None,
) -> int:
    """The command's exit code; 128 + n where signal n ended it, as a shell says it. It may write to another stdout than ours.

    Raises Failure when it cannot be started.
    """
    try:
        # Python's own descriptors are not inherited; what the user's shell passed on is.
        process = await asyncio.create_subprocess_exec(*command, env=dict(environment), stdout=stdout, close_fds=False)
    except OSError as error:
        raise Failure(f"cannot run {command[0]}: {error.strerror}") from error
    started(process.pid)
    with forwarded_signals(process):
        code = await process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def forwarded_signals(process: asyncio.subprocess.Process) -> Iterator[None]:
    """While the command runs, what is sent to us goes to it, and Ctrl-C does not end us before it."""
    loop = asyncio.get_running_loop()

    def forward(number: int) -> None:
        # A terminal's Ctrl-C has reached the command already: it is in the same process group.
        if number == signal.SIGINT and _in_foreground():
            return
        if process.returncode is None:
            process.send_signal(number)

    signals = (*FORWARDED, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, forward, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
