"""A child process that ends before it is ready is reported with the reason."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.processes import child_process
from proxy.processes.child_process import ChildFailure, ChildProcess, describe_end


class Nothing(msgspec.Struct):
    """A configuration."""


async def test_a_process_that_is_killed_before_it_is_ready_is_reported_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = child_process._start_module

    async def start_and_kill(*arguments: Any) -> Any:
        process = await start(*arguments)
        os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(child_process, "_start_module", start_and_kill)
    with pytest.raises(ChildFailure, match=r"proxy\.worker\.process was killed \(SIGKILL\) before it was ready"):
        await ChildProcess.start("proxy.worker.process", Nothing(), log=tmp_path / "worker.log")


@pytest.mark.parametrize(("program", "is_killed"), [("cat", False), ("sleep 60", True)])
async def test_it_is_known_which_process_was_killed_because_it_did_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, is_killed: bool
) -> None:
    monkeypatch.setattr(child_process, "GRACE", 0.2 if is_killed else 60)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program.split(), stdin=pipe, stdout=pipe)
    child = ChildProcess(tmp_path / "worker.log", process, {})
    assert await child.stop() == (-signal.SIGKILL if is_killed else 0)
    assert child.is_killed is is_killed


async def test_a_process_that_fails_is_reported_with_what_it_logged_last(tmp_path: Path) -> None:
    with pytest.raises(ChildFailure, match=r"ended before it was ready: .*No module named"):
        await ChildProcess.start("proxy.no_such_module", Nothing(), log=tmp_path / "none.log")
    assert sys.executable in (tmp_path / "none.log").read_text()


async def test_a_process_that_can_start_no_thread_is_reported_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limited.py").write_text('raise RuntimeError("can\'t start new thread")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        ChildFailure, match=r"ended before it was ready: the limit of processes and threads .*ulimit -u"
    ):
        await ChildProcess.start("limited", Nothing(), log=tmp_path / "limited.log")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kill -KILL $$", "was killed (SIGKILL), as the kernel does when memory is short"),
        ("kill -SEGV $$", "was ended by signal 11 (Segmentation fault)"),
        ("exit 3", "ended with status 3"),
    ],
)
async def test_the_end_of_a_process_is_said_in_words(command: str, words: str) -> None:
    process = await asyncio.create_subprocess_exec("sh", "-c", f"ulimit -c 0; {command}")
    assert describe_end(await process.wait()) == words
