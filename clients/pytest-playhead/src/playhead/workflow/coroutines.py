"""Run the coroutines of steps: in the event loop of the program, or in one of their own."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

_loop: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar("playhead_loop", default=None)
"""The event loop that waits for the workflow."""


@contextmanager
def use_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Run coroutines of steps in this loop."""
    token = _loop.set(loop)
    try:
        yield
    finally:
        _loop.reset(token)


def run_coroutine(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, and return its result."""
    loop = _loop.get()
    if loop is not None and loop.is_running() and not _runs_here(loop):
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    if not _runs_here(None):
        return asyncio.run(work)
    # A replay that is asked for within an event loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, work).result()


def _runs_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return loop is None or running is loop
