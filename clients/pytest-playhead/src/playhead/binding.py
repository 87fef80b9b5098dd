"""Bind calls to a run by a context variable, so that runs which overlap in one process are never mixed.

A context variable is inherited by the tasks that a coroutine starts. It is not inherited by threads (`thread_hooks`), and a
`with` block in a generator sets it for the consumer of the generator as well. So a block also remembers the frame of its
generator: code that the generator calls belongs to its run, whatever was bound in between.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from playhead.checks import check_stored_run
from playhead.environment import hold_variables, release_variables
from playhead.hooks import install_hooks
from playhead.rest import fetch_calls, fetch_envelope
from playhead.runs import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType, TracebackType

RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")
"""The same as in the server (`calls/request_identifiers.py`). A URL cannot hold `.` or `..` as a path segment."""

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_test_calls: Callable[[], Sequence[Mapping[str, Any]]] | None = None


def set_test_calls(calls: Callable[[], Sequence[Mapping[str, Any]]] | None) -> None:
    """Set the source of calls for a test plugin, in place of a running `playhead up`; None when no test runs."""
    global _test_calls
    _test_calls = calls


class Binding:
    """One entered block."""

    __slots__ = ("enclosing", "frame", "is_over", "previous", "run")

    def __init__(self, run: str | None, frame: FrameType | None = None) -> None:
        self.run = run
        self.previous = _bound.get()
        """The binding of this context before the block."""
        self.frame = frame
        """The frame of the generator that contains the block; None if it is not in a generator."""
        self.enclosing = frozenset(_generators_on_stack(sys._getframe(1))) if _by_generator else frozenset()
        """Blocks in generators that were running when this block was entered."""
        self.is_over = False


_bound: ContextVar[Binding | None] = ContextVar("playhead_run", default=None)
_by_generator: dict[FrameType, Binding] = {}


def _generators_on_stack(frame: FrameType | None) -> list[Binding]:
    """The open blocks of the running generators, innermost first."""
    found = []
    while frame is not None:
        if (binding := _by_generator.get(frame)) is not None:
            found.append(binding)
        frame = frame.f_back
    return found


def current_binding() -> Binding | None:
    """The block that the running code belongs to."""
    bound = _bound.get()
    if not _by_generator:
        return bound
    running = _generators_on_stack(sys._getframe(1))
    if not running:
        return bound
    nearest = running[0]
    inner = bound
    while inner is not None and inner is not nearest:
        if nearest in inner.enclosing:
            return inner  # entered by code that this generator called
        inner = inner.previous
    return nearest


def restore_generator_binding() -> None:
    """Restore the binding of the running generator, before the context is copied."""
    if _by_generator and (binding := current_binding()) is not _bound.get():
        _bound.set(binding)


def current_run() -> str | None:
    """The run to which calls made here belong; None outside of all blocks."""
    binding = current_binding()
    return binding.run if binding else None


class BoundCall(Generic[T]):
    """A function that always runs in the same run, also on another thread or in another process."""

    def __init__(self, run: str | None, function: Callable[..., T]) -> None:
        self.run = run
        self.function = function
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        install_hooks()  # another process does not have them
        token = _bound.set(Binding(self.run))
        try:
            return self.function(*args, **kwargs)
        finally:
            _bound.reset(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundCall, (self.run, self.function)


def bind(function: Callable[..., T], run: str | None = None) -> Callable[..., T]:
    """Bind a function to a run (default: the current one), for your own threads and queues."""
    return BoundCall(current_run() if run is None else require_run_id(run), function)


def require_run_id(run: str) -> str:
    """Return a valid run id. Raises ValueError."""
    if not RUN_ID.fullmatch(run):
        raise ValueError(f"invalid run id {run!r}: use 1 to 128 of A-Z a-z 0-9 . _ : - (not `.` or `..`)")
    return run


class RunBlock:
    """`with run(...)`, `async with run(...)`, or a decorator of a function or coroutine function."""

    def __init__(self, id: str) -> None:  # noqa: A002 - the name in the public API
        self.id = require_run_id(id)
        self._entered: list[Binding | None] = []

    def __enter__(self) -> Run:
        return self._enter(sys._getframe(1))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exit()

    async def __aenter__(self) -> Run:
        return self._enter(sys._getframe(1))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._exit()

    def _enter(self, frame: FrameType) -> Run:
        if (test := _test_calls) is not None:
            # A marked test has a single recording, whatever runs it names.
            start = len(test())
            self._entered.append(None)
            return Run(self.id, lambda: test()[start:])
        hold_variables()
        install_hooks()
        generator = frame if frame.f_code.co_flags & _GENERATOR else None
        binding = Binding(self.id, generator)
        if generator is not None:
            _by_generator[generator] = binding
        self._entered.append(binding)
        _bound.set(binding)
        return Run(
            self.id,
            lambda: fetch_calls(self.id),
            lambda spec: check_stored_run(self.id, spec),
            lambda: fetch_envelope(self.id),
        )

    def _exit(self) -> None:
        binding = self._entered.pop()
        if binding is None:
            return
        binding.is_over = True
        if binding.frame is not None and _by_generator.get(binding.frame) is binding:
            _restore_generator(binding.frame, binding)
        # A generator may be closed out of order or in another context; then another block is bound here.
        if _bound.get() is binding:
            _bound.set(_innermost_open(binding))
        release_variables()

    def __call__(self, function: F) -> F:
        """Decorate a function: each call of it happens in this run."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_run_async(*args: Any, **kwargs: Any) -> Any:
                with RunBlock(self.id):
                    return await function(*args, **kwargs)

            return in_run_async  # type: ignore[return-value] # of the same signature
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator: use `with playhead.run({self.id!r}):` inside of it"
            )

        @functools.wraps(function)
        def in_run(*args: Any, **kwargs: Any) -> Any:
            with RunBlock(self.id):
                return function(*args, **kwargs)

        return in_run  # type: ignore[return-value] # of the same signature


def _restore_generator(frame: FrameType, binding: Binding) -> None:
    """Restore the outer block of the same generator, if there is one."""
    outer = binding.previous
    while outer is not None and (outer.frame is not frame or outer.is_over):
        outer = outer.previous
    if outer is None:
        del _by_generator[frame]
    else:
        _by_generator[frame] = outer


def _innermost_open(binding: Binding) -> Binding | None:
    outer = binding.previous
    while outer is not None and outer.is_over:
        outer = outer.previous
    return outer


def run(id: str) -> RunBlock:  # noqa: A002 - the name in the public API
    """Assign the calls made in this block to a run, including those of tasks, threads and programs started in it.

    Runs may overlap and be nested; the innermost applies. The first block installs the hooks of `playhead.install()`.
    """
    return RunBlock(id)
