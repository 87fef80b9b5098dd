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
    real_wait, real_as_completed = module.wait, module.as_completed
    cancel_error, timeout_error = module.exceptions.CancelledError, module.exceptions.TimeoutError

    def begin(kind, frame, collection, futures):
        if not is_program(frame) or module.events._get_running_loop() is None:
            return None
        if not all(module.futures.isfuture(one) for one in futures):
            return None
        by_name = name_futures(collection, futures)
        return Wait(effects, kind, frame, by_name) if by_name else None

    def wait(fs, *, timeout=None, return_when=module.ALL_COMPLETED):
        try:
            futures = list(fs)
        except TypeError:
            return real_wait(fs, timeout=timeout, return_when=return_when)
        one = begin("asyncio.wait", _getframe(1), fs, futures)
        if one is None:
            return real_wait(futures, timeout=timeout, return_when=return_when)
        return wait_for_some(one, timeout, return_when)

    async def wait_for_some(one, timeout, return_when):
        decides = timeout is not None or return_when != module.ALL_COMPLETED
        done = one.recorded_done() if decides else MISSED
        try:
            if done is not MISSED:
                done = await wait_for_recorded(one, done)
            if done is MISSED:
                done, _ = await real_wait(set(one.futures.values()), timeout=timeout, return_when=return_when)
        except cancel_error:
            if decides:
                one.observe(None)
            raise
        if decides:
            one.observe(done)
        return one.sets(done)

    watch_cancelled(module, effects, real_wait)

    async def wait_for_recorded(one, done):
        if done == []:
            await module.sleep(0)
            return done
        # A wait that was cancelled in the recording goes on until it is cancelled.
        expected = set(done) if done else {module.events.get_running_loop().create_future()}
        _, unfinished = await real_wait(expected, timeout=MOST_WAITED)
        if not unfinished:
            await wait_for_others(one, expected)
            return done
        return one.refuse_late(done) if done else one.refuse("this wait was cancelled in the recording")

    async def wait_for_others(one, expected):
        waiting = one.cancelled_before
        if waiting is None:
            waiting = [other for other in one.futures.values() if other in arrivals]
        one.cancelled_before = waiting = [
            other for other in waiting if other not in expected and not arrivals[other].done()
        ]
        if waiting:
            await real_wait([arrivals[other] for other in waiting])

    class Completed:
        """What `as_completed` returns: iterated over with `for`, and from Python 3.13 on with `async for`, too."""

        def __init__(self, one, timeout):
            self._one = one
            self._count_left = len(one.futures)
            self._results_given = set()
            self._arrived = deque()
            self._waiting = deque()
            self._loop = module.events.get_running_loop()
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

        if hasattr(getattr(module, "_AsCompletedIterator", None), "__aiter__"):

            def __aiter__(self):
                return self

            async def __anext__(self):
                if not self._count_left:
                    raise StopAsyncIteration
                self._count_left -= 1
                return await self._next()

        async def _result(self):
            return (await self._next()).result()

        async def _next(self):
            one = self._one
            try:
                done = MISSED if self._is_live else one.recorded_done()
                if done is not MISSED:
                    done = await wait_for_recorded(one, done)
                if done is MISSED:
                    self._is_live = True
                    done = await self._next_live()
            except cancel_error:
                one.observe(None)
                raise
            one.observe(done)
            if not done:
                raise timeout_error
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

    def as_completed(fs, *, timeout=None):
        frame = _getframe(1)
        if not is_program(frame) or module.futures.isfuture(fs) or module.coroutines.iscoroutine(fs):
            return real_as_completed(fs, timeout=timeout)
        awaitables = list(fs)
        if not isinstance(fs, (set, frozenset)) and module.events._get_running_loop() is not None:
            # In the order in which they were given, so that the names of these tasks are the same in each run.
            awaitables = [module.ensure_future(one) for one in dict.fromkeys(awaitables)]
        one = begin("asyncio.as_completed", frame, fs, awaitables)
        return real_as_completed(awaitables, timeout=timeout) if one is None else Completed(one, timeout)

    replace_functions(module, "asyncio", wait=wait, as_completed=as_completed)
