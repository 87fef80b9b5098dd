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
    busy = weakref.WeakKeyDictionary()
    cancel_error = module.exceptions.CancelledError

    def watch(loop, name, coro):
        code = getattr(coro, "cr_code", None)
        if code is None or class_of(code.co_filename) != PROGRAM:
            return coro, _do_nothing
        lived_ms = effects.state.next_of(_CANCELLED, name) if effects.is_replay else None
        place = Place(code)
        began_ns = _monotonic_ns()

        def note_end(task):
            if not task.cancelled() or (effects.is_replay and lived_ms is None and not effects.state.is_fork):
                return
            recorder = effects if lived_ms is not None or not effects.is_replay else effects.state.recording
            token = tasks.name.set(name)
            try:
                recorder.value(_CANCELLED, place, lambda: (_monotonic_ns() - began_ns) // 1_000_000)
            finally:
                tasks.name.reset(token)

        if not isinstance(lived_ms, int):
            return coro, lambda task: note_task(task, note_end)
        has_arrived = loop.create_future()
        busy_until = busy.get(loop) or watch_network(loop)
        now = loop.time()
        soonest, latest = now + min(max(lived_ms / 1000, LEAST_TIME), MOST_TIME), now + MOST_BUSY

        def check():
            # What is sent next may wait for the connection that is being opened, on a machine that is busy.
            until = max(busy_until[0] + QUIET, soonest)
            if loop.time() >= min(until, latest):
                arrive(has_arrived)
            elif not has_arrived.done():
                loop.call_at(min(until, latest), check)

        check()

        def note_start(task):
            arrivals[task] = has_arrived
            note_task(task, note_end)
            task.add_done_callback(lambda _: (arrive(has_arrived), coro.close()))

        wrapper = hold(coro, has_arrived)
        wrapper.__name__, wrapper.__qualname__ = coro.__name__, coro.__qualname__
        return wrapper, note_start

    def note_task(task, note_end):
        task.add_done_callback(note_end)
        if effects.is_replay:
            _replayed.add(task)

    def watch_network(loop):
        last = busy[loop] = [loop.time()]
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

    def arrive(future):
        if not future.done():
            future.set_result(None)

    async def hold(coro, has_arrived):
        error = result = None
        try:
            result = await coro
        except cancel_error:
            raise
        except Exception as caught:  # noqa: BLE001 - it is raised below
            error = caught
        arrive(has_arrived)
        await real_wait({module.events.get_running_loop().create_future()}, timeout=MOST_WAITED)
        if error is not None:
            raise error
        return result

    tasks.watchers.append(watch)


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
