"""A command stops what it has started, also when Ctrl-C arrives while it stops."""

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.errors import Failure
from proxy.processes.child_process import ChildProcess
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.ports import reserve_port
from proxy.settings import load_settings
from replay.recording import PROGRESS_STEP
from store.bundle.bundle import bundle_lines
from tests.replay.strategies import chat, exchange, model_answer, run_of


class Slow:
    """A child that is slow to stop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_killed = False
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
        async with CommandProcesses(load_settings({"data": data}, None)) as processes:
            processes._workers.append(cast(ChildProcess, child))

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


async def test_a_command_whose_start_was_too_late_uses_or_replaces_the_store_server_that_was_quicker(
    data: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has the directory and the port when ours starts, and has ended when we hear of it."""
    settings = load_settings({"data": data, "database_url": database_url, "store_idle": 0}, None)
    start = ChildProcess.start
    failures: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        async def start_beside_another(*arguments: Any, **options: Any) -> ChildProcess:
            if failures:
                return await start(*arguments, **options)
            lock = os.open(data / "store.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return await start(*arguments, **options)
            except Failure as failure:
                failures.append(str(failure))
                raise
            finally:
                os.close(lock)
                other.close()

        monkeypatch.setattr(ChildProcess, "start", start_beside_another)
        async with CommandProcesses(settings) as processes:
            with await processes.connect_store_server(port) as api:
                assert api.url == f"http://127.0.0.1:{port}"
                assert api.get("/runs")["items"] == []
    assert failures == [
        f"another store server uses {data}: stop the `playhead` command that started it, or use another directory with --data DIR"
    ]


async def test_a_store_server_that_nobody_waits_for_starts_when_the_worker_has(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun = asyncio.Event()

    async def begin(*_: Any, **__: Any) -> ChildProcess:
        has_begun.set()
        raise Failure("this one fails")

    async with CommandProcesses(load_settings({"data": data}, None)) as processes, asyncio.TaskGroup() as group:
        monkeypatch.setattr(processes, "start_store_server", begin)
        is_worker_ready = asyncio.Event()
        worker = group.create_task(is_worker_ready.wait())
        with reserve_port("127.0.0.1", 0) as port:
            store = await processes.reach_store_server(port, stays_ready=False, after=worker)
            for _ in range(10):
                await asyncio.sleep(0)
            assert (store.is_starting, has_begun.is_set()) == (True, False)
            is_worker_ready.set()
            with pytest.raises(Failure, match="this one fails"):
                await store.api()


async def test_a_command_is_told_how_far_its_worker_has_loaded_the_recording(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[str] = []

    def show_waiting(_text: str) -> AbstractContextManager[Callable[[str], None]]:
        return nullcontext(progress.append)

    monkeypatch.setattr("proxy.processes.command_processes.show_waiting", show_waiting)
    file = tmp_path / "long.jsonl"
    calls = [exchange(chat(f"question {number}"), model_answer("yes")) for number in range(PROGRESS_STEP + 1)]
    file.write_bytes(b"".join(bundle_lines(run_of(*calls))))
    async with CommandProcesses(load_settings({"data": data, "store_idle": 0}, None)) as processes:
        worker = await processes.start_own_worker(mode="replay", spooled=False, replay=(str(file),))
        assert worker.ready["ready"]
    count = f"{PROGRESS_STEP:,}"
    total = f"{PROGRESS_STEP + 1:,}"
    assert progress == [
        f"reading long.jsonl: {count} calls",
        f"reading run-1: {count} of {total} calls",
        f"loading run-1: {count} of {total} calls",
    ]
