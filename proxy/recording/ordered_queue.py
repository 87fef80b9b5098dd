"""Keep the events of an exchange in order behind a body that is being redacted on a thread."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple


class _Work(NamedTuple):
    future: "Future[Any]"
    done: Callable[[], None]


class OrderedQueue[T]:
    """For one event loop's thread. `tell` is given each thing when its turn comes, `over` is called when none is left."""

    __slots__ = ("_items", "_loop", "_over", "_tell", "_waiters")

    def __init__(self, tell: Callable[[T], None], over: Callable[[], None]) -> None:
        self._tell = tell
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._items: deque[T | _Work] = deque()
        self._waiters: list[asyncio.Future[None]] = []

    def put(self, item: T) -> None:
        """Have this told behind all there is."""
        self._items.append(item)

    def work(self, future: "Future[Any]", done: Callable[[], None]) -> None:
        """Let all that follows wait for this, and for `done`, which tells what came of it."""
        self._items.append(_Work(future, done))
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._go_on))

    async def empty(self) -> None:
        """Wait until all is told."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _go_on(self) -> None:
        """Up to what is still being worked on."""
        while self._items:
            item = self._items[0]
            if not isinstance(item, _Work):
                self._tell(item)
            elif item.future.done():
                item.done()
            else:
                return
            self._items.popleft()
        self._over()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
