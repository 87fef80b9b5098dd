"""The effects of a test, in a process that does more than run it: hooked from when the test begins until it has ended.

What is replaced is put back, so that the test runner, its plugins and other tests have the real clock and the real random numbers.
"""

import builtins
import os
import random
import sys
import threading
import time

from playhead_effects import callers, clocks, randomness, tasks
from playhead_effects.start import Effects, connect, install_hooks


class _Inactive:
    """Lets everything be as it is, between tests."""

    is_replay = is_fork = False

    @staticmethod
    def clock(_kind, _frame, ns, _by=""):
        return ns

    @staticmethod
    def value(_kind, _frame, live, *_args, **_options):
        return live()

    @staticmethod
    def note_output(_text):
        pass

    @staticmethod
    def note_error(*_args):
        pass

    @staticmethod
    def refuse(*_args):
        pass

    @staticmethod
    def content(_data):
        return None

    @staticmethod
    def answers_process(_label):
        return False


_INACTIVE = _Inactive()


class _SwitchedEffects(Effects):
    """The effects of this process while a test runs."""

    def __init__(self):
        self.state = _INACTIVE
        self._is_forked = False
        self.begin_test()

    def begin_test(self):
        """Count anew what the test starts."""
        self.label, self._children, self.waiting_label = "0", 0, None

    @property
    def is_replay(self):
        return self.state.is_replay

    def clock(self, kind, frame, ns, by=""):
        return self.state.clock(kind, frame, ns, by)

    def value(self, *args, **options):
        return self.state.value(*args, **options)

    def note_output(self, text):
        self.state.note_output(text)

    def begin_child(self):
        if self.state is not _INACTIVE:
            super().begin_child()
            self._is_forked = True

    def finish_before_exit(self):
        if self._is_forked:
            self.state.finish_test()


class TestHook:
    """Hooks this process for one test after the other."""

    __test__ = False

    def __init__(self, ignored):
        """`ignored`: files and directories of the test runner and its plugins, whose own effects are left alone."""
        callers.leave_out(ignored)
        self._effects = _SwitchedEffects()
        self._changes = None
        self._in_modules = []
        self._numpy_state = None

    def begin(self):
        """Hook the process. The variables say where the worker is, as in a process of its own. Raises OSError or ValueError."""
        self._effects.begin_test()
        tasks.begin_again()
        state = connect("0")
        if state is None:
            raise ValueError("the worker does not take the effects of this test")
        if self._changes is None:
            self._install()
        else:
            self._random.setstate(random.getstate())
            self._put(new=True)
        self._effects.state = state
        self._replace_in_modules()
        self._seed_numpy()

    def end(self):
        """Put back what was there, and send what is left."""
        state, self._effects.state = self._effects.state, _INACTIVE
        self._put(new=False)
        for module, name, old in self._in_modules:
            setattr(module, name, old)
        self._in_modules.clear()
        if self._numpy_state is not None:
            sys.modules["numpy.random"].set_state(self._numpy_state)
            self._numpy_state = None
        if state is not _INACTIVE:
            state.finish_test()

    def _install(self):
        places = _patched_places()
        before = [dict(vars(place)) for place in places]
        effects, members = self._effects, clocks.datetime_members()
        datetime_before = dict(members or {})
        install_hooks(effects, has_streams=False)
        self._random = random._inst
        self._changes = [
            (place, name, old.get(name), value)
            for place, old in zip(places, before, strict=True)
            for name, value in vars(place).items()
            if old.get(name) is not value
        ]
        self._calendar = [
            (members, name, datetime_before[name], value)
            for name, value in (members or {}).items()
            if datetime_before.get(name) is not value
        ]

    def _put(self, *, new):
        for place, name, old, changed in self._changes:
            if new or old is not None:
                setattr(place, name, changed if new else old)
            else:
                delattr(place, name)
        for members, name, old, changed in self._calendar:
            members[name] = changed if new else old
        clocks.forget_cached_members()

    def _replace_in_modules(self):
        """Replace what modules of the program took by name earlier: `from time import time`."""
        changed = {id(old): (old, new) for _, _, old, new in self._changes if callable(old)}
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or callers.class_of(file) != callers.PROGRAM or callers.is_standard(file):
                continue  # `threading` calls what the program gave it, and has clocks of its own for its timeouts
            for name, value in list(vars(module).items()):
                found = changed.get(id(value))
                if found is not None and found[0] is value:
                    setattr(module, name, found[1])
                    self._in_modules.append((module, name, value))

    def _seed_numpy(self):
        module = sys.modules.get("numpy.random")
        if module is not None and hasattr(module, "set_state"):
            self._numpy_state = module.get_state()
            randomness.seed(self._effects, "numpy.seed", module.seed)


def _patched_places():
    """Modules and classes in which something is replaced. They are imported before, so that nothing is replaced later."""
    import asyncio.base_events
    import asyncio.tasks
    import concurrent.futures.thread
    import getpass
    import io
    import multiprocessing.util
    import secrets
    import subprocess
    import uuid

    modules = (builtins, io, os, random, time, subprocess, uuid, secrets, getpass, multiprocessing.util)
    waiting = (asyncio, asyncio.tasks, concurrent.futures, concurrent.futures._base)
    groups = (asyncio.TaskGroup,) if hasattr(asyncio, "TaskGroup") else ()
    loops, pools = asyncio.base_events.BaseEventLoop, concurrent.futures.thread.ThreadPoolExecutor
    return (
        *modules,
        *waiting,
        *groups,
        threading.Thread,
        loops,
        pools,
        random.SystemRandom,
        type(os.environ),
        subprocess.Popen,
    )
