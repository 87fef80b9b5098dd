"""Answer the notifications of processes that outlive a command, whose calls would fail otherwise."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

NOTIFIER: Final = Path(__file__).with_name("notifier.py")


def start_answering_process(listener: int, *, refuses: bool) -> None:
    """Start a process that lets the calls continue, or refuses them. Closes the listener."""
    try:
        os.set_inheritable(listener, True)
        null = os.open(os.devnull, os.O_RDWR)
        line = [sys.executable, "-I", "-S", str(NOTIFIER), "refuse" if refuses else "pass", str(listener)]
        with suppress(OSError):
            os.posix_spawn(
                sys.executable,
                line,
                {},
                setsid=True,
                file_actions=[(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)],
            )
        os.close(null)
    finally:
        os.close(listener)
