"""Names of tasks and threads by the order in which they were started: the same in each run, whichever of them is faster.

A name is that of whoever started it, what is run, and how many of these the same one has started before: `main/answer#2`.
"""

import contextvars
import threading
import weakref

name = contextvars.ContextVar("playhead_task", default="")
"""The name of the running task or thread; empty in the main thread before it is set, and in threads that C started."""

_futures = weakref.WeakKeyDictionary()
"""The names of tasks of asyncio and of what was given to pools, by their futures."""

watchers = []
"""Called with the loop, the name and the coroutine of each task of asyncio: returns what the task runs, and what to call with the task."""

_counts = {}
_lock = threading.Lock()


def begin_again():
    """Count anew, for a program that begins in this process."""
    with _lock:
        _counts.clear()


def current():
    """Return the name of the running task or thread."""
    return name.get() or ("main" if threading.current_thread() is threading.main_thread() else "thread")


def child(what):
    """Return the name of what the running task starts next."""
    own = current() + "/" + what
    with _lock:
        number = _counts[own] = _counts.get(own, -1) + 1
    return own if not number else f"{own}#{number}"


def future_name(future):
    """Return the name of a task of asyncio or of what was given to a pool; None if it has none."""
    return _futures.get(future)


def _description(run):
    return getattr(run, "__qualname__", None) or type(run).__name__


def install(patch_late):
    """Name threads, work of pools, and tasks of asyncio."""
    start = threading.Thread.start

    def start_named(self):
        own = child("thread:" + _description(getattr(self, "_target", None) or type(self)))
        run = self.run

        def run_named():
            name.set(own)
            run()

        self.run = run_named
        return start(self)

    threading.Thread.start = start_named
    patch_late("concurrent.futures.thread", _name_pools)
    patch_late("asyncio.base_events", _name_tasks)


def _name_pools(module):
    submit = module.ThreadPoolExecutor.submit

    def submit_named(self, fn, /, *args, **options):
        own = child("pool:" + _description(getattr(fn, "func", fn)))

        def run_named(*args, **options):
            token = name.set(own)
            try:
                return fn(*args, **options)
            finally:
                name.reset(token)

        future = submit(self, run_named, *args, **options)
        _futures[future] = own
        return future

    module.ThreadPoolExecutor.submit = submit_named


def _name_tasks(module):
    create = module.BaseEventLoop.create_task

    def create_named(self, coro, **options):
        own = child(_description(coro))
        notes = []
        for watch in watchers:
            coro, note = watch(self, own, coro)
            notes.append(note)
        context = options.get("context")
        if context is not None:
            context.run(name.set, own)
            task = create(self, coro, **options)
        else:
            token = name.set(own)
            try:
                task = create(self, coro, **options)
            finally:
                name.reset(token)
        _futures[task] = own
        for note in notes:
            note(task)
        return task

    run = module.BaseEventLoop.run_in_executor

    def run_named(self, executor, func, *args):
        own = child("executor:" + _description(getattr(func, "func", func)))
        future = run(self, executor, func, *args)
        _futures[future] = own
        return future

    module.BaseEventLoop.create_task = create_named
    module.BaseEventLoop.run_in_executor = run_named
