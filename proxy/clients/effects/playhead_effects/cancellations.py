"""Tasks of asyncio that were cancelled: a program cancels those of which it does not need the answer any more."""

import time
import weakref

from playhead_effects import tasks
from playhead_effects.callers import PROGRAM, class_of
from playhead_effects.order import MOST_WAITED, Place

LEAST_TIME, MOST_TIME = 0.25, 1.0
"""Seconds within which a task that was cancelled in the recording comes as far as it came then: as many as it had, between these."""

_CANCELLED = "asyncio.cancelled"
_monotonic_ns = time.monotonic_ns


def watch_cancelled(module, effects, real_wait):
    """Record which tasks of the program were cancelled. In a replay these do not end before they are.

    Returns a future for each of them, which is done when the task has come as far as it came then.
    """
    arrivals = weakref.WeakKeyDictionary()
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
            return coro, lambda task: task.add_done_callback(note_end)
        has_arrived = loop.create_future()
        timer = loop.call_later(min(max(lived_ms / 1000, LEAST_TIME), MOST_TIME), arrive, has_arrived)

        def note_start(task):
            arrivals[task] = has_arrived
            task.add_done_callback(note_end)
            task.add_done_callback(lambda _: (timer.cancel(), arrive(has_arrived), coro.close()))

        wrapper = hold(coro, has_arrived)
        wrapper.__name__, wrapper.__qualname__ = coro.__name__, coro.__qualname__
        return wrapper, note_start

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
    return arrivals


def _do_nothing(_task):
    pass
