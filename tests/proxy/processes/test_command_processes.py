"""What a command has started, it stops: also when Ctrl-C comes while it does."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from proxy.processes.child_process import Child
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import load


class Slow:
    """A child that takes its time to stop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_end = asyncio.Event()
        self.end = "running"

    async def stop(self) -> int:
        self.asked.set()
        await self.may_end.wait()
        self.end = "stopped"
        return 0

    def forget(self) -> None:
        """It has no log."""

    async def killed(self) -> int:
        self.end = "killed"
        return -9


@pytest.mark.parametrize(("times", "end"), [(1, "stopped"), (2, "killed")])
async def test_ctrl_c_while_its_processes_stop_leaves_none_of_them(times: int, end: str, data: Path) -> None:
    child = Slow()

    async def command() -> None:
        async with CommandProcesses(load({"data": data}, None)) as house:
            house._workers.append(cast(Child, child))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(command())
        await child.asked.wait()
        for _ in range(times):
            assert child.end == "running"
            task.cancel()
            await asyncio.sleep(0)
        if times == 1:
            child.may_end.set()
    assert (child.end, task.cancelled()) == (end, True)
