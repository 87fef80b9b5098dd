"""Do what was scheduled a moment later, many items at a time, without holding up the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

WORK_SLICE: Final = 0.001
"""Seconds of work after which the event loop passes on what has arrived. The work of 50 streams takes three times as long,
and their next events arrive meanwhile."""

WORK_INTERVAL: Final = 0.002
"""Seconds after which work is done. What is redacted before the end of a stream arrives does not delay that end."""

WORK_SHARE: Final = 0.05
"""The share of the time that work may take. If it takes more, it is done less often, for more records at a time, each of
which then costs less."""

MAX_WORK_PAUSE: Final = 0.2
"""Seconds after which work is done at the latest, however long the last work took."""


class ScheduledWork:
    """The work that waits. Call its methods from one event loop's thread."""

    def __init__(self, finish_round: Callable[[], None], finish_without_loop: Callable[[], None]) -> None:
        """`finish_round` is called after the work of a round, `finish_without_loop` after work that was done without an event loop."""
        self._finish_round = finish_round
        self._finish_without_loop = finish_without_loop
        self._items: deque[Callable[[], None]] = deque()
        self._is_planned = False
        self._round_seconds = 0.0
        """How long the current round has taken so far."""

        self._not_before = 0.0
        """Before this time, no further round begins."""

    def add(self, work: Callable[[], None]) -> None:
        """Do `work` a moment later, together with other work."""
        self._items.append(work)
        if not self._is_planned:
            self._plan_round()

    def do_all(self) -> None:
        """Do everything that waits, at once."""
        while self._items:
            self._items.popleft()()

    def _plan_round(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.do_all()
            self._finish_without_loop()
        else:
            self._is_planned = True
            loop.call_later(max(WORK_INTERVAL, self._not_before - time.monotonic()), self._begin_round)

    def _begin_round(self) -> None:
        self._round_seconds = 0.0
        self._do_slice(len(self._items))

    def _do_slice(self, count: int) -> None:
        """Do so many items. What arrives meanwhile is passed on between two slices."""
        began, goes_on = time.monotonic(), False
        try:
            while count and self._items:
                count -= 1
                self._items.popleft()()
                now = time.monotonic()
                if count and now >= began + WORK_SLICE:
                    asyncio.get_running_loop().call_soon(self._do_slice, count)
                    self._round_seconds += now - began
                    goes_on = True
                    return
                self._not_before = now + min(MAX_WORK_PAUSE, (self._round_seconds + now - began) / WORK_SHARE)
        finally:
            self._is_planned = goes_on
            if self._items and not goes_on:
                self._plan_round()
        self._finish_round()
