"""Say what a command waits for if it takes more than a moment, and how far it is."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

DELAY: Final = 1.0
"""Seconds after which the line is shown."""

FIRST_LINE: Final = 2.0
"""Seconds before which a file gets no line about progress."""

LINE_INTERVAL: Final = 5.0
"""Seconds between two such lines."""


@contextmanager
def show_waiting(
    text: str,
    stream: TextIO | None = None,
    *,
    delay: float = DELAY,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr while the block takes longer than `delay`, and clear it. Nothing in a file or in CI's log.

    The block may call what this yields with how far it is, which changes the line; a file or CI's log gets few such lines.
    The line is shown by a thread, so that the block may keep the event loop from running.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty() or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        yield _progress_lines(out, now)
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

    def change(progress: str) -> None:
        nonlocal text
        text = progress
        if is_shown:
            show()

    timer = threading.Timer(delay, show)
    timer.daemon = True
    timer.start()
    try:
        yield change
    finally:
        timer.cancel()
        with lock:
            is_over = True
            if is_shown:
                out.write("\r\033[K")
                out.flush()


def _progress_lines(out: TextIO, now: Callable[[], float]) -> Callable[[str], None]:
    """Return what writes a line about progress, unless the wait or the last line has just begun."""
    earliest = now() + FIRST_LINE

    def write_line(progress: str) -> None:
        nonlocal earliest
        if now() >= earliest:
            earliest = now() + LINE_INTERVAL
            out.write(f"playhead: {progress}\n")
            out.flush()

    return write_line
