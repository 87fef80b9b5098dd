"""End in order when the terminal is closed, as on SIGTERM, unless `nohup` says to go on."""

import asyncio
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn


def is_hangup_ignored() -> bool:
    """Whether this process was started to outlive its terminal, as by `nohup`."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def call_when_stopped(
    stop: Callable[[signal.Signals], object], numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> None:
    """Have the event loop call this with the signal on these signals and SIGHUP."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    if not is_hangup_ignored():
        loop.add_signal_handler(signal.SIGHUP, _stop_after_hangup, stop)


@contextmanager
def exit_when_stopped() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this block with an exception, as Ctrl-C does, so that its unfinished files are removed."""
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _exit_by_signal)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit_by_signal(number: int, _frame: object) -> NoReturn:
    if number == signal.SIGHUP:
        leave_closed_terminal()
    raise SystemExit(128 + number)


def leave_closed_terminal() -> None:
    """Write to nowhere instead of to a terminal that was closed, which would be an error."""
    closed = [descriptor for descriptor in (1, 2) if _is_closed(descriptor)]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for descriptor in closed:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _stop_after_hangup(stop: Callable[[signal.Signals], object]) -> None:
    leave_closed_terminal()
    stop(signal.SIGHUP)


def _is_closed(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
