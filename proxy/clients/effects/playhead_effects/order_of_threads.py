"""Which of several futures was done first: `wait` and `as_completed` of `concurrent.futures`."""

import sys

from playhead_effects.callers import is_program
from playhead_effects.order import MISSED, MOST_WAITED, Wait, name_futures, replace_functions

_getframe = sys._getframe


def install(effects, patch_late):
    """Replace `wait` and `as_completed`."""
    patch_late("concurrent.futures._base", lambda module: _replace(module, effects))


def _replace(module, effects):
    real_wait, real_as_completed = module.wait, module.as_completed

    def begin(kind, frame, collection, futures):
        if not is_program(frame) or not all(isinstance(one, module.Future) for one in futures):
            return None
        by_name = name_futures(collection, futures)
        return Wait(effects, kind, frame, by_name) if by_name else None

    def wait(fs, timeout=None, return_when=module.ALL_COMPLETED):
        futures = list(fs)
        one = begin("futures.wait", _getframe(1), fs, futures)
        if one is None:
            return real_wait(futures, timeout, return_when)
        decides = timeout is not None or return_when != module.ALL_COMPLETED
        done = one.recorded_done() if decides else MISSED
        if done is not MISSED and real_wait(done, MOST_WAITED).not_done:
            done = one.refuse_late(done)
        if done is MISSED:
            done = real_wait(futures, timeout, return_when).done
        if decides:
            one.observe(done)
        return module.DoneAndNotDoneFutures(*one.sets(done))

    def as_completed(fs, timeout=None):
        futures = list(fs)
        one = begin("futures.as_completed", _getframe(1), fs, futures)
        return real_as_completed(futures, timeout) if one is None else complete(one, timeout)

    def complete(one, timeout):
        rest = dict.fromkeys(one.futures.values())
        live = None
        while rest:
            done = one.recorded_done() if live is None else MISSED
            if done is not MISSED and real_wait(done, MOST_WAITED).not_done:
                done = one.refuse_late(done)
            if done is MISSED:
                live = live or real_as_completed(list(rest), timeout)
                try:
                    done = [next(live)]
                except module.TimeoutError:
                    done = []
            one.observe(done)
            if not done:
                raise module.TimeoutError(f"{len(rest)} (of {len(one.futures)}) futures unfinished")
            rest.pop(done[0], None)
            yield done.pop()

    replace_functions(module, "concurrent.futures", wait=wait, as_completed=as_completed)
