"""Call functions in order, some of them only when work on a thread is done."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple


class _Entry(NamedTuple):
    call: Callable[[], None]
    work: "Future[Any] | None"
    """What must be done before the call."""


class OrderedQueue:
    """Calls functions in order, and `on_empty` after the last. To be used on one event loop's thread only."""

    __slots__ = ("_entries", "_loop", "_on_empty", "_waiters")

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._entries: deque[_Entry] = deque()
        self._waiters: list[asyncio.Future[None]] = []

    def append(self, call: Callable[[], None], work: "Future[Any] | None" = None) -> None:
        """Append a call. Later ones wait until `work` is done and the call has used its result."""
        self._entries.append(_Entry(call, work))
        if work is not None:
            work.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._process_entries))

    async def wait_until_empty(self) -> None:
        """Wait until the queue is empty."""
        if not self._entries:
            return
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _process_entries(self) -> None:
        """Make the calls before the first one whose work is not done."""
        while self._entries:
            call, work = self._entries[0]
            if work is not None and not work.done():
                return
            call()
            self._entries.popleft()
        self._on_empty()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
