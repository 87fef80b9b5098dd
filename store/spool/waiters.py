"""Those who wait for their records, looked after by one call into their loop however many they are."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from store.spool.errors import SpoolBroken

type Verdict = SpoolBroken | bool
"""Whether a record is where it has to be, or why it never will be."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    sequence: int
    future: asyncio.Future[None]


class Waiters:
    """One event loop's. `verdict` is asked under the lock."""

    def __init__(self, lock: threading.Lock, verdict: Callable[[int], Verdict]) -> None:
        self._lock = lock
        self._verdict = verdict
        self._waiters: list[_Waiter] = []
        self._called = False

    def add(self, sequence: int) -> asyncio.Future[None]:
        """Wait for a record; to be called under the lock, from the loop's thread."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(_Waiter(sequence, future))
        return future

    def tell(self) -> None:
        """Something has changed: have those looked after for whom it has. From any thread."""
        # Without the lock: who begins to wait after the state has changed has seen the change.
        if not self._waiters:
            return
        with self._lock:
            if self._called or not any(self._verdict(waiter.sequence) for waiter in self._waiters):
                return
            self._called = True
            loop = self._waiters[0].future.get_loop()
        try:
            loop.call_soon_threadsafe(self._told)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _told(self) -> None:
        with self._lock:
            self._called = False
            found = [(waiter, self._verdict(waiter.sequence)) for waiter in self._waiters]
            self._waiters = [waiter for waiter, verdict in found if not verdict]
        for waiter, verdict in found:
            if not verdict or waiter.future.done():
                continue  # not yet, or whoever waited was cancelled
            if isinstance(verdict, SpoolBroken):
                waiter.future.set_exception(verdict)
            else:
                waiter.future.set_result(None)
