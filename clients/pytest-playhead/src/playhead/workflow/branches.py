"""Execute several functions at once, with results in the order of the functions."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from playhead.workflow.execution import Parted, Place, Suspended, current_place, enter_place

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from concurrent.futures import Future

T = TypeVar("T")

MOST_THREADS = 32


def parallel(*functions: Callable[[], T]) -> list[T]:
    """Call functions at once, each in a thread, and return their results in the order of the functions.

    Effects belong to the branch in which they are asked for, so a replay gives each branch its own, whichever was first. All branches end
    before this returns or raises; of several exceptions, that of the first function is raised.
    """
    if not functions:
        return []
    place = current_place()
    branches = _make_branches(place, len(functions))
    with ThreadPoolExecutor(min(MOST_THREADS, len(functions)), thread_name_prefix="playhead-parallel") as pool:
        futures: list[Future[T]] = [
            pool.submit(contextvars.copy_context().run, _call_in, branch, function)
            for branch, function in zip(branches, functions)
        ]
    _join_branches(place, branches)
    _raise_first([error for error in (future.exception() for future in futures) if error is not None])
    return [future.result() for future in futures]


async def parallel_async(*functions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Call coroutine functions at once, each in a task, and return their results in the order of the functions; otherwise like `parallel`."""
    place = current_place()
    branches = _make_branches(place, len(functions))
    work = (_await_in(branch, function) for branch, function in zip(branches, functions))
    found = await asyncio.gather(*work, return_exceptions=True)
    _join_branches(place, branches)
    _raise_first([each for each in found if isinstance(each, BaseException)])
    return list(found)


def _make_branches(place: Place | None, count: int) -> list[Place | None]:
    if place is None:
        return [None] * count
    group = f"{place.path}/{place.branchings}"
    place.branchings += 1
    return [Place(place.execution, place.step, f"{group}/{number}") for number in range(count)]


def _join_branches(place: Place | None, branches: list[Place | None]) -> None:
    if place is not None:
        for branch in branches:
            if branch is not None:
                place.effects.extend(branch.effects)


def _raise_first(errors: list[BaseException]) -> None:
    for kind in (Parted, Suspended, BaseException):
        for error in errors:
            if isinstance(error, kind):
                raise error


async def _await_in(place: Place | None, function: Callable[[], Awaitable[Any]]) -> Any:
    if place is None:
        return await function()
    with enter_place(place):
        return await function()


def _call_in(place: Place | None, function: Callable[[], Any]) -> Any:
    if place is None:
        return function()
    with enter_place(place):
        return function()
