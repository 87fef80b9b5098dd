"""Say on a terminal what a command waits for, if it takes more than a moment."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

DELAY: Final = 1.0
"""Seconds after which the line is shown."""


@contextmanager
def show_waiting(text: str, stream: TextIO | None = None, *, delay: float = DELAY) -> Iterator[None]:
    """Show a line on stderr while the block takes longer than `delay`, and clear it. Nothing in a file or in CI's log.

    The line is shown by a thread, so that the block may keep the event loop from running.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty() or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        yield
        return
    is_shown = is_over = False
    lock = threading.Lock()

    def show() -> None:
        nonlocal is_shown
        with lock:
            if not is_over:
                is_shown = True
                out.write(f"\rplayhead: {text} …\033[K")
                out.flush()

    timer = threading.Timer(delay, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
            if is_shown:
                out.write("\r\033[K")
                out.flush()
