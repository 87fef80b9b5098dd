"""Workers are forked by a process that stays ready, and are like those that are started."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from proxy.errors import Failure
from proxy.processes.child_process import UNKNOWN_STATUS
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.forked_process import ForkedProcess
from proxy.settings import load_settings
from proxy.worker import template
from tests.drills.up_processes import until_true


def command_of(pid: int) -> bytes:
    """Its command line, which a zombie has no more: pytest has started it, and does not wait for it."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def parent_of(process: ForkedProcess) -> int:
    """The process that has forked it."""
    return int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")")[1].split()[1])


async def forked_worker(processes: CommandProcesses) -> ForkedProcess:
    """Start a worker, which has to be forked."""
    process = (await processes.start_own_worker(mode="record"))._process
    assert isinstance(process, ForkedProcess)
    return process


@pytest.mark.timeout(240)
async def test_workers_are_forked_by_a_process_that_stays_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "")
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    settings = load_settings({"data": data, "store_idle": 600}, None)
    async with CommandProcesses(settings) as first:
        worker = await forked_worker(first)
        ready = parent_of(worker)
        seen = Path(f"/proc/{worker.pid}")
        assert b"proxy.worker.template" in command_of(ready)
        assert (seen / "cwd").readlink() == tmp_path
        assert (seen / "fd" / "2").readlink().parent == data / "log"
        assert os.getsid(worker.pid) == worker.pid
        assert not [one for one in (seen / "fd").iterdir() if "template" in os.fspath(one.readlink())]
        assert await first.close_workers() == [0]
        # The next one has the same parent, and a failure is told as by one that was started.
        again = await forked_worker(first)
        assert parent_of(again) == ready
        with pytest.raises(Failure, match="no-such-file"):
            await first.start_own_worker(mode="replay", spooled=False, replay=("no-such-file.jsonl",))
        again.kill()
        assert await again.wait() == -signal.SIGKILL
        # Whoever started it with another locale is not served: its worker is started.
        with monkeypatch.context() as changed:
            changed.setenv("LC_ALL", "C.UTF-8")
            started = (await first.start_own_worker(mode="record"))._process
            assert isinstance(started, asyncio.subprocess.Process)
        # Without the process that has forked it, a worker goes on, and only how it ended stays unknown.
        orphan = await forked_worker(first)
        os.kill(ready, signal.SIGKILL)
        orphan.stdin.close()
        assert await orphan.wait() == UNKNOWN_STATUS
        other = parent_of(await forked_worker(first))
        assert other != ready
    # It ends with the data directory.
    await asyncio.to_thread(shutil.rmtree, data)
    await until_true(lambda: not command_of(other))


@pytest.mark.parametrize(("setting", "ci"), [({"store_idle": 0}, ""), ({}, "true")])
def test_none_are_forked_in_ci_or_where_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, object], ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("PLAYHEAD_STORE_IDLE", raising=False)
    assert CommandProcesses(load_settings({"data": tmp_path}, None))._keeps_processes() is (not ci)
    assert not CommandProcesses(load_settings({"data": tmp_path, **setting}, None))._keeps_processes()
    # Within another command, what stays ready is in that command's network.
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("PLAYHEAD_RUN", "run-1")
    assert not CommandProcesses(load_settings({"data": tmp_path}, None))._keeps_processes()


def test_changed_code_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("a = 1")
    code = {os.fspath(module): template._read_state(os.fspath(module))}
    assert template._is_unchanged(code)
    module.write_text("a = 22")
    assert not template._is_unchanged(code)
    module.unlink()
    assert not template._is_unchanged(code)
