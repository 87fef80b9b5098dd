"""A command stops what it has started, also when Ctrl-C arrives while it stops."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from proxy.processes.child_process import ChildProcess
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import load_settings


class Slow:
    """A child that is slow to stop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_end = asyncio.Event()
        self.end = "running"

    async def stop(self) -> int:
        self.asked.set()
        await self.may_end.wait()
        self.end = "stopped"
        return 0

    def remove_empty_log(self) -> None:
        """It has no log."""

    async def kill(self) -> int:
        self.end = "killed"
        return -9


@pytest.mark.parametrize(("times", "end"), [(1, "stopped"), (2, "killed")])
async def test_ctrl_c_while_its_processes_stop_leaves_none_of_them(times: int, end: str, data: Path) -> None:
    child = Slow()

    async def command() -> None:
        async with CommandProcesses(load_settings({"data": data}, None)) as house:
            house._workers.append(cast(ChildProcess, child))

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
