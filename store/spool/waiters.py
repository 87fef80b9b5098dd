"""Wake the tasks that wait for records, with one call into their event loop for all of them."""

import asyncio
import threading
from collections.abc import Callable

import msgspec

from store.spool.errors import SpoolBroken

type Verdict = SpoolBroken | bool
"""Whether a record is as durable as configured, or why it never will be."""


class _Waiter(msgspec.Struct, frozen=True):
    sequence: int
    future: asyncio.Future[None]


class Waiters:
    """The waiting tasks of one event loop. `verdict` is called under the lock."""

    def __init__(self, lock: threading.Lock, verdict: Callable[[int], Verdict]) -> None:
        self._lock = lock
        self._verdict = verdict
        self.waiting: list[_Waiter] = []
        """The tasks that wait. May be read from any thread: a task that starts to wait after a change has seen it."""

        self._is_scheduled = False

    def add(self, sequence: int) -> asyncio.Future[None]:
        """Return a future for a record. Call this under the lock, from the loop's thread."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiter(sequence, future))
        return future

    def notify(self) -> None:
        """Resolve the futures whose verdict has changed. Call this from any thread after a change of state."""
        if not self.waiting:
            return
        with self._lock:
            if self._is_scheduled or not any(self._verdict(waiter.sequence) for waiter in self.waiting):
                return
            self._is_scheduled = True
            loop = self.waiting[0].future.get_loop()
        try:
            loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            pass  # the loop is closed, so no task waits any more

    def _resolve(self) -> None:
        with self._lock:
            self._is_scheduled = False
            verdicts = [(waiter, self._verdict(waiter.sequence)) for waiter in self.waiting]
            self.waiting = [waiter for waiter, verdict in verdicts if not verdict]
        for waiter, verdict in verdicts:
            if not verdict or waiter.future.done():
                continue  # still waiting, or cancelled
            if isinstance(verdict, SpoolBroken):
                waiter.future.set_exception(verdict)
            else:
                waiter.future.set_result(None)
