"""Keep the events of an exchange in order while a body is redacted on a thread."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple


class _Work(NamedTuple):
    future: "Future[Any]"
    on_done: Callable[[], None]


class OrderedQueue[T]:
    """Calls `write` with each item in order, and `on_empty` after the last. To be used on one event loop's thread only."""

    __slots__ = ("_items", "_loop", "_on_empty", "_waiters", "_write")

    def __init__(self, write: Callable[[T], None], on_empty: Callable[[], None]) -> None:
        self._write = write
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._items: deque[T | _Work] = deque()
        self._waiters: list[asyncio.Future[None]] = []

    def append(self, item: T) -> None:
        """Append an item."""
        self._items.append(item)

    def append_work(self, future: "Future[Any]", on_done: Callable[[], None]) -> None:
        """Append work: later items wait until it is finished and `on_done`, which writes its result, has been called."""
        self._items.append(_Work(future, on_done))
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._process_items))

    async def wait_until_empty(self) -> None:
        """Wait until the queue is empty."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _process_items(self) -> None:
        """Process items up to the first unfinished work."""
        while self._items:
            item = self._items[0]
            if not isinstance(item, _Work):
                self._write(item)
            elif item.future.done():
                item.on_done()
            else:
                return
            self._items.popleft()
        self._on_empty()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
