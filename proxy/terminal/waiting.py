"""Say on a terminal what a command waits for, if it takes more than a moment."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

DELAY: Final = 1.0
"""Seconds after which the line is shown."""


@contextmanager
def show_waiting(text: str, stream: TextIO | None = None, *, delay: float = DELAY) -> Iterator[None]:
    """Show a line on stderr while the block takes longer than `delay`, and clear it. Nothing in a file or in CI's log.

    Call it in a running event loop, which must not be blocked meanwhile.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty() or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        yield
        return
    shown = False

    def show() -> None:
        nonlocal shown
        shown = True
        out.write(f"\rplayhead: {text} …\033[K")
        out.flush()

    timer = asyncio.get_running_loop().call_later(delay, show)
    try:
        yield
    finally:
        timer.cancel()
        if shown:
            out.write("\r\033[K")
            out.flush()
