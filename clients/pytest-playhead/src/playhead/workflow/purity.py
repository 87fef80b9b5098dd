"""Stop code that reads the clock, the disk, the environment or the network by itself."""

from __future__ import annotations

import datetime
import gc
import os
import random
import sys
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep

_CLOCK = "effects.now()"
_RANDOM = "effects.random()"
_FILE = "effects.read()"

_BUILTINS: dict[Any, str] = {
    **{
        getattr(time, name): _CLOCK
        for name in (
            "time",
            "time_ns",
            "monotonic",
            "monotonic_ns",
            "perf_counter",
            "perf_counter_ns",
            "localtime",
            "gmtime",
        )
    },
    time.sleep: "effects.sleep()",
    os.urandom: _RANDOM,
    open: _FILE,
    os.listdir: _FILE,
    os.scandir: _FILE,
    os.stat: _FILE,
    input: "effects.input()",
}
"""Functions of C, and what to use instead."""

_CLOCK_METHODS = {"now", "utcnow", "today"}
_RANDOM_METHODS = {"random", "getrandbits"}

_FUNCTIONS: dict[Any, str] = {
    uuid.uuid1.__code__: "effects.uuid()",
    uuid.uuid4.__code__: "effects.uuid()",
    type(os.environ).__getitem__.__code__: "effects.env()",
    **{
        function.__code__: _RANDOM
        for function in (
            random.Random.choice,
            random.Random.randrange,
            random.Random.shuffle,
            random.Random.sample,
            random.Random.uniform,
            random.SystemRandom.random,
        )
    },
}
"""Functions of Python, by their code, and what to use instead."""

_MODULES = {"socket": "effects.http()", "subprocess": "a step outside of the workflow"}
"""Modules of the standard library whose functions reach the world."""


class UnownedEffect(RuntimeError):
    """A step of plain code read something that moves, and that no record has. The message says where, and what to use."""


@contextmanager
def forbid_unowned_effects(step: str) -> Iterator[None]:
    """Raise UnownedEffect from the code of a block (in this thread) that reads something that moves, other than through `effects`.

    It looks at calls with `sys.setprofile`, so it slows the code down, and another profiler is off meanwhile.
    """

    def check(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            use = _find_builtin(argument)
            name = getattr(argument, "__qualname__", repr(argument))
            code = frame
        elif event == "call":
            use = _FUNCTIONS.get(frame.f_code)
            module = str(frame.f_globals.get("__name__", ""))
            use = use or _MODULES.get(module)
            name = f"{module}.{frame.f_code.co_name}"
            if frame.f_back is None:
                return
            code = frame.f_back
        else:
            return
        if use is not None and (place := _find_own_line(code)) is not None:
            raise UnownedEffect(f"step `{step}` calls {name} at {place}, which no record has: use {use}")

    previous = sys.getprofile()
    sys.setprofile(check)
    try:
        yield
    finally:
        sys.setprofile(previous)


def _find_builtin(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(owner, type) and issubclass(owner, datetime.date):
        return _CLOCK if name in _CLOCK_METHODS else None
    if isinstance(owner, random.Random):
        # One that was made with a seed gives the same numbers in each replay.
        return _RANDOM if name in _RANDOM_METHODS and owner is _module_generator() else None
    try:
        return _BUILTINS.get(function)
    except TypeError:  # bound to something that has no hash
        return None


def _module_generator() -> object:
    return getattr(random.random, "__self__", None)


def _find_own_line(frame: FrameType | None) -> str | None:
    """Return the line of the workflow's code, None if the call came from `effects` or from an import."""
    # The garbage collector calls these in the middle of any code.
    collecting = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None:
        if frame.f_code in collecting:
            return None
        file = frame.f_code.co_filename
        if file.startswith((_PACKAGE, "<frozen importlib")):
            return None
        if not file.startswith(_LIBRARY) or "site-packages" in file:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None
