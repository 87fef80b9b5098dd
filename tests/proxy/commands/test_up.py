"""What `up` does with a process that will not live."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest

from proxy.commands.up import LONGEST_PAUSE, _kept_up
from proxy.errors import Failure
from proxy.processes.child_process import Child


@dataclass
class ShortLived:
    """A child that ends as soon as it has begun."""

    name: str = "keeper"
    log: str = "keeper.log"
    ready: Mapping[str, Any] = field(default_factory=dict)

    async def messages(self) -> AsyncIterator[Mapping[str, Any]]:
        yield {}

    async def ended(self) -> int:
        return 1


class Enough(Exception):
    """Ends the loop under test."""


@pytest.mark.parametrize("starts", [True, False])
async def test_what_dies_again_and_again_is_started_ever_more_slowly(
    starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`starts`: it serves for a moment each time; else it did once, and cannot start any more."""
    pauses: list[float] = []
    said: list[str] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise Enough

    async def start() -> Child:
        if pauses and not starts:
            raise Failure("the database is away")
        return cast(Child, ShortLived())

    monkeypatch.setattr("proxy.commands.up.asyncio.sleep", pause)
    with pytest.raises(Enough):
        await _kept_up(start, asyncio.get_running_loop().create_future(), said.append, asyncio.Event())
    assert all(later > before for before, later in pairwise(pauses[:5]))
    assert pauses[-1] == LONGEST_PAUSE
    assert len(said) == 10


async def test_what_cannot_start_at_all_is_not_tried_again() -> None:
    async def start() -> Child:
        raise Failure("the port is taken")

    with pytest.raises(Failure, match="the port is taken"):
        await _kept_up(start, asyncio.get_running_loop().create_future(), print, asyncio.Event())
