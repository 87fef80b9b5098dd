"""Pass the run to other threads: a thread belongs to the run that starts it, a task of a pool to the run that submits it.

The threads of a pool outlive the run in which they happen to be started, so they belong to no run themselves.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing.pool
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Callable

from playhead.binding import BoundCall, current_run, restore_generator_binding

_POOL_WORKER = multiprocessing.pool.worker  # type: ignore[attr-defined] # not in its stubs


def install() -> None:
    """Hook threads, executors, the pools of multiprocessing, and (for generators) asyncio's tasks."""
    _hook_threads()
    _hook_tasks()
    for executor in (ThreadPoolExecutor, ProcessPoolExecutor):
        _bind_first_argument(executor, "submit")
    for method in ("apply_async", "_map_async", "imap", "imap_unordered"):
        _bind_first_argument(multiprocessing.pool.Pool, method)


def _hook_threads() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_in_run(self: Any) -> None:
        run = current_run()
        if run is not None and getattr(self, "_target", None) is not _POOL_WORKER:
            self.run = BoundCall(run, self.run)
        start(self)

    threading.Thread.start = start_in_run  # type: ignore[method-assign] # that is the hook


def _hook_tasks() -> None:
    """Restore the generator's binding before a task copies the context, where another generator may have bound its run."""
    create = asyncio.BaseEventLoop.create_task
    to_thread: Callable[..., Any] = asyncio.to_thread

    @functools.wraps(create)
    def create_task(self: Any, *args: Any, **kwargs: Any) -> Any:
        restore_generator_binding()
        return create(self, *args, **kwargs)

    @functools.wraps(to_thread)
    async def to_thread_in_run(*args: Any, **kwargs: Any) -> Any:
        restore_generator_binding()
        return await to_thread(*args, **kwargs)

    asyncio.BaseEventLoop.create_task = create_task  # type: ignore[method-assign] # that is the hook
    for name in ("asyncio", "asyncio.threads"):
        setattr(sys.modules[name], "to_thread", to_thread_in_run)  # noqa: B010 - no type checker knows the one or the other


def _bind_first_argument(owner: Any, name: str) -> None:
    """Bind the function that is passed to a method to the caller's run, or to no run if there is none."""
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def with_run(self: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return method(self, BoundCall(current_run(), function), *args, **kwargs)

    setattr(owner, name, with_run)
