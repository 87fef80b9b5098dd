"""Which of several tasks was done first: `wait` and `as_completed` of `asyncio`."""

import sys
from collections import deque

from playhead_effects.callers import is_program
from playhead_effects.cancellations import arrivals, delay_failures, watch_cancelled
from playhead_effects.order import MISSED, MOST_WAITED, Wait, name_futures, replace_functions

_getframe = sys._getframe


def install(effects, patch_late):
    """Replace `wait` and `as_completed`."""
    patch_late("asyncio.tasks", lambda module: _replace(module, effects))
    if sys.version_info >= (3, 11):
        patch_late("asyncio.taskgroups", delay_failures)


def _replace(module, effects):
    first = FirstTasks(module, effects)

    def wait(fs, *, timeout=None, return_when=module.ALL_COMPLETED):
        return first.wait(_getframe(1), fs, timeout, return_when)

    def as_completed(fs, *, timeout=None):
        return first.as_completed(_getframe(1), fs, timeout)

    watch_cancelled(module, effects, first.real_wait)
    replace_functions(module, "asyncio", wait=wait, as_completed=as_completed)


class FirstTasks:
    """Which tasks were done first, where the program calls `wait` or `as_completed`: recorded, or as in the recording."""

    def __init__(self, module, effects):
        self.module = module
        self.real_wait, self._real_as_completed = module.wait, module.as_completed
        self.cancel_error, self.timeout_error = module.exceptions.CancelledError, module.exceptions.TimeoutError
        self._effects = effects
        # An iterator of asyncio is an asynchronous one as well from Python 3.13 on.
        is_async = hasattr(getattr(module, "_AsCompletedIterator", None), "__aiter__")
        self._completed_class = AsyncCompleted if is_async else Completed

    def wait(self, frame, fs, timeout, return_when):
        """Wait for some of several futures, as `asyncio.wait` does. Returns a coroutine."""
        try:
            futures = list(fs)
        except TypeError:
            return self.real_wait(fs, timeout=timeout, return_when=return_when)
        one = self._begin("asyncio.wait", frame, fs, futures)
        if one is None:
            return self.real_wait(futures, timeout=timeout, return_when=return_when)
        return self._wait_for_some(one, timeout, return_when)

    def as_completed(self, frame, fs, timeout):
        """Return what iterates over futures in the order in which they get done, as `asyncio.as_completed` does."""
        module = self.module
        if not is_program(frame) or module.futures.isfuture(fs) or module.coroutines.iscoroutine(fs):
            return self._real_as_completed(fs, timeout=timeout)
        awaitables = list(fs)
        if not isinstance(fs, (set, frozenset)) and module.events._get_running_loop() is not None:
            # In the order in which they were given, so that the names of these tasks are the same in each run.
            awaitables = [module.ensure_future(one) for one in dict.fromkeys(awaitables)]
        one = self._begin("asyncio.as_completed", frame, fs, awaitables)
        if one is None:
            return self._real_as_completed(awaitables, timeout=timeout)
        return self._completed_class(self, one, timeout)

    def _begin(self, kind, frame, collection, futures):
        """Return the wait; None if it is not the program's, or its futures have no names that are the same in each run."""
        module = self.module
        if not is_program(frame) or module.events._get_running_loop() is None:
            return None
        if not all(module.futures.isfuture(one) for one in futures):
            return None
        by_name = name_futures(collection, futures)
        return Wait(self._effects, kind, frame, by_name) if by_name else None

    async def _wait_for_some(self, one, timeout, return_when):
        # Who waits for all of them without a limit learns nothing of their order.
        decides = timeout is not None or return_when != self.module.ALL_COMPLETED
        done = one.recorded_done() if decides else MISSED
        try:
            if done is not MISSED:
                done = await self.wait_for_recorded(one, done)
            if done is MISSED:
                done, _ = await self.real_wait(set(one.futures.values()), timeout=timeout, return_when=return_when)
        except self.cancel_error:
            if decides:
                one.observe(None)
            raise
        if decides:
            one.observe(done)
        return one.sets(done)

    async def wait_for_recorded(self, one, done):
        """Wait until those are done that were done in the recording, and return them; MISSED if they do not get done."""
        if done == []:
            await self.module.sleep(0)
            return done
        # A wait that was cancelled in the recording goes on until it is cancelled.
        expected = set(done) if done else {self.module.events.get_running_loop().create_future()}
        _, unfinished = await self.real_wait(expected, timeout=MOST_WAITED)
        if not unfinished:
            await self._wait_for_others(one, expected)
            return done
        return one.refuse_late(done) if done else one.refuse("this wait was cancelled in the recording")

    async def _wait_for_others(self, one, expected):
        """Let those that were cancelled in the recording come as far as they came then."""
        waiting = one.cancelled_before
        if waiting is None:
            waiting = [other for other in one.futures.values() if other in arrivals]
        one.cancelled_before = waiting = [
            other for other in waiting if other not in expected and not arrivals[other].done()
        ]
        if waiting:
            await self.real_wait([arrivals[other] for other in waiting])


class Completed:
    """What `as_completed` returns: iterated over with `for`."""

    def __init__(self, first, one, timeout):
        self._first = first
        self._one = one
        self._count_left = len(one.futures)
        self._results_given = set()
        self._arrived = deque()
        self._waiting = deque()
        self._loop = first.module.events.get_running_loop()
        self._is_over = self._is_live = False
        self._timer = None if timeout is None else self._loop.call_later(timeout, self._end)
        for future in one.futures.values():
            future.add_done_callback(self._arrive)

    def _arrive(self, future):
        self._arrived.append(future)
        if self._timer is not None and len(self._arrived) == len(self._one.futures):
            self._timer.cancel()
        self._wake()

    def _end(self):
        self._is_over = True
        self._wake()

    def _wake(self):
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def __iter__(self):
        return self

    def __next__(self):
        if not self._count_left:
            raise StopIteration
        self._count_left -= 1
        return self._result()

    async def _result(self):
        return (await self._next()).result()

    async def _next(self):
        one = self._one
        try:
            done = MISSED if self._is_live else one.recorded_done()
            if done is not MISSED:
                done = await self._first.wait_for_recorded(one, done)
            if done is MISSED:
                self._is_live = True
                done = await self._next_live()
        except self._first.cancel_error:
            one.observe(None)
            raise
        one.observe(done)
        if not done:
            raise self._first.timeout_error
        self._results_given.update(done)
        return done[0]

    async def _next_live(self):
        while True:
            while self._arrived:
                future = self._arrived.popleft()
                if future not in self._results_given:
                    return [future]
            if self._is_over:
                return []
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                self._waiting.remove(waiter)


class AsyncCompleted(Completed):
    """What `as_completed` returns where it is iterated over with `async for`, too."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._count_left:
            raise StopAsyncIteration
        self._count_left -= 1
        return await self._next()
