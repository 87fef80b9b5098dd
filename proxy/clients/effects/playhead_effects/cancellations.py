"""Tasks of asyncio that were cancelled: a program cancels those of which it does not need the answer any more."""

import time
import weakref

from playhead_effects import tasks
from playhead_effects.callers import PROGRAM, class_of
from playhead_effects.order import MOST_WAITED, Place

LEAST_TIME, MOST_TIME = 0.25, 1.0
"""Seconds within which a task that was cancelled in the recording comes as far as it came then: as many as it had, between these."""

QUIET, MOST_BUSY = 0.25, 3.0
"""Seconds without anything from the network, after which nothing more is under way; and how long that is waited for at most."""

_CANCELLED = "asyncio.cancelled"
_monotonic_ns = time.monotonic_ns


arrivals = weakref.WeakKeyDictionary()
"""In a replay, of each task that was cancelled in the recording: a future that is done when it has come as far as it came then."""

_replayed = weakref.WeakSet()
"""The program's tasks, in a replay."""


def watch_cancelled(module, effects, real_wait):
    """Record which tasks of the program were cancelled. In a replay these do not end before they are."""
    tasks.watchers.append(CancelledTasks(module, effects, real_wait).watch)


class CancelledTasks:
    """Notes which of the program's tasks were cancelled, and when; or delays their ends in a replay until they are."""

    def __init__(self, module, effects, real_wait):
        self._module, self._effects, self._real_wait = module, effects, real_wait
        self._cancel_error = module.exceptions.CancelledError
        self._network_times = weakref.WeakKeyDictionary()
        """By event loop, in a list: when anything came from the network last."""

    def watch(self, loop, name, coro):
        """Return what a new task of this name runs instead of `coro`, and what is called with the task."""
        code = getattr(coro, "cr_code", None)
        if code is None or class_of(code.co_filename) != PROGRAM:
            return coro, _do_nothing
        effects = self._effects
        lived_ms = effects.state.next_of(_CANCELLED, name) if effects.is_replay else None
        place = Place(code)
        began_ns = _monotonic_ns()

        def note_end(task):
            if task.cancelled():
                self._record(name, place, lived_ms, began_ns)

        if not isinstance(lived_ms, int):
            return coro, lambda task: self._note_task(task, note_end)
        has_arrived = loop.create_future()
        self._arrive_when_quiet(loop, has_arrived, lived_ms)

        def note_start(task):
            arrivals[task] = has_arrived
            self._note_task(task, note_end)
            task.add_done_callback(lambda _: (_arrive(has_arrived), coro.close()))

        wrapper = self._hold(coro, has_arrived)
        wrapper.__name__, wrapper.__qualname__ = coro.__name__, coro.__qualname__
        return wrapper, note_start

    def _note_task(self, task, note_end):
        task.add_done_callback(note_end)
        if self._effects.is_replay:
            _replayed.add(task)

    def _record(self, name, place, lived_ms, began_ns):
        """Record that a task was cancelled, and how long it lived; `lived_ms` is how long it did in the recording."""
        recorder = self._effects
        if recorder.is_replay and lived_ms is None:
            if not recorder.state.is_fork:
                return
            recorder = recorder.state.recording
        token = tasks.name.set(name)
        try:
            recorder.value(_CANCELLED, place, lambda: (_monotonic_ns() - began_ns) // 1_000_000)
        finally:
            tasks.name.reset(token)

    def _arrive_when_quiet(self, loop, has_arrived, lived_ms):
        """End a future when a task that lived this long in the recording has come as far as it came then."""
        network_time = self._network_times.get(loop) or self._watch_network(loop)
        now = loop.time()
        soonest, latest = now + min(max(lived_ms / 1000, LEAST_TIME), MOST_TIME), now + MOST_BUSY

        def check():
            # What is sent next may wait for the connection that is being opened, on a machine that is busy.
            until = max(network_time[0] + QUIET, soonest)
            if loop.time() >= min(until, latest):
                _arrive(has_arrived)
            elif not has_arrived.done():
                loop.call_at(min(until, latest), check)

        check()

    def _watch_network(self, loop):
        last = self._network_times[loop] = [loop.time()]
        selector = getattr(loop, "_selector", None)
        if selector is not None:
            real_select, now = selector.select, loop.time

            def select(timeout=None):
                events = real_select(timeout)
                if events:
                    last[0] = now()
                return events

            selector.select = select
        return last

    async def _hold(self, coro, has_arrived):
        """Run a coroutine, and hold its end back until the task is cancelled."""
        error = result = None
        try:
            result = await coro
        except self._cancel_error:
            raise
        except Exception as caught:  # noqa: BLE001 - it is raised below
            error = caught
        _arrive(has_arrived)
        await self._real_wait({self._module.events.get_running_loop().create_future()}, timeout=MOST_WAITED)
        if error is not None:
            raise error
        return result


def _arrive(future):
    if not future.done():
        future.set_result(None)


def delay_failures(module):
    """In a replay, have a task group cancel its tasks after a failure when these have come as far as in the recording."""
    real = module.TaskGroup._on_task_done

    def note_end(self, task):
        waiting = find_others(self, task) if _replayed and not task.cancelled() and task.exception() else []
        if not waiting:
            real(self, task)
            return
        timer = task.get_loop().call_later(MOST_BUSY, go_on, self, task, waiting)
        for one in [*waiting]:
            one.add_done_callback(lambda _, one=one: note_arrival(one))

        def note_arrival(one):
            waiting.remove(one)
            if not waiting and not timer.cancelled():
                timer.cancel()
                real(self, task)

    def go_on(group, task, waiting):
        waiting.append(None)
        real(group, task)

    def find_others(group, task):
        # One that was not cancelled in the recording ended before the failure, or did not mind.
        others = [arrivals.get(one, one) for one in group._tasks if one is not task and one in _replayed]
        return [one for one in others if not one.done()]

    module.TaskGroup._on_task_done = note_end


def _do_nothing(_task):
    pass
