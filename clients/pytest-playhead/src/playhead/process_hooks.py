"""Pass the current run to programs and processes that are started in it."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing.process
import os
import subprocess
from typing import Any

from playhead.binding import BoundCall, current_run
from playhead.environment import with_run

_ENV = 10
"""The position of `env` among the positional arguments of `Popen`."""

_POOLS = ("multiprocessing.pool", "concurrent.futures.process")


def install() -> None:
    """Hook `subprocess`, asyncio's programs and the processes of multiprocessing."""
    _hook_popen()
    for name in ("create_subprocess_exec", "create_subprocess_shell"):
        _hook_asyncio(name)
    _hook_processes()


def _hook_popen() -> None:
    init = subprocess.Popen.__init__

    @functools.wraps(init)
    def init_in_run(self: Any, *args: Any, **kwargs: Any) -> None:
        run = current_run()
        if run is not None:
            if len(args) > _ENV:
                args = (*args[:_ENV], _environment_with_run(args[_ENV], run), *args[_ENV + 1 :])
            else:
                kwargs["env"] = _environment_with_run(kwargs.get("env"), run)
        init(self, *args, **kwargs)

    subprocess.Popen.__init__ = init_in_run  # type: ignore[method-assign] # that is the hook


def _hook_asyncio(name: str) -> None:
    """Hook asyncio's functions too, because a loop such as uvloop starts programs without `subprocess`."""
    create = getattr(asyncio, name)

    @functools.wraps(create)
    async def create_in_run(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is not None:
            kwargs["env"] = _environment_with_run(kwargs.get("env"), run)
        return await create(*args, **kwargs)

    setattr(asyncio, name, create_in_run)
    setattr(asyncio.subprocess, name, create_in_run)


def _environment_with_run(env: Any, run: str) -> Any:
    """The environment of a program with the run. An explicit one that does not lead to Playhead stays unchanged."""
    if env is None:
        return with_run(os.environ, run)
    return with_run(env, run) if all(isinstance(name, str) for name in env) else env


def _hook_processes() -> None:
    start = multiprocessing.process.BaseProcess.start

    @functools.wraps(start)
    def start_in_run(self: Any) -> None:
        target = getattr(self, "_target", None)
        run = current_run()
        if target is not None and run is not None:
            # The workers of a pool outlive the run in which they happen to be started.
            is_worker = getattr(target, "__module__", None) in _POOLS
            self._target = BoundCall(None if is_worker else run, target)
        start(self)

    multiprocessing.process.BaseProcess.start = start_in_run  # type: ignore[method-assign] # that is the hook
