"""Logs take a bounded part of the disk, and none is taken from a process that writes to it."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from proxy.processes import log_files
from proxy.processes.log_files import WORKERS_KEPT, open_log, remove_old_worker_logs
from tests.drills.up_processes import up


def _make_logs(directory: Path, count: int) -> list[Path]:
    """The logs of workers, the oldest first."""
    directory.mkdir(exist_ok=True)
    logs = [directory / f"worker-{number:08x}.log" for number in range(count)]
    for second, log in enumerate(logs):
        log.write_text("a line\n")
        os.utime(log, (second, second))
    return logs


def test_the_oldest_logs_of_dead_workers_go(tmp_path: Path) -> None:
    logs = _make_logs(tmp_path, WORKERS_KEPT + 3)
    (tmp_path / "store.log").write_text("")
    os.utime(tmp_path / "store.log", (0, 0))
    remove_old_worker_logs(tmp_path)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "store.log", *logs[3:]]


def test_the_log_of_a_living_process_stays_also_if_it_only_inherited_it(tmp_path: Path) -> None:
    logs = _make_logs(tmp_path, WORKERS_KEPT + 3)
    opened = open_log(logs[1])
    living = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=opened)
    os.close(opened)
    remove_old_worker_logs(tmp_path)
    assert [log.exists() for log in logs[:4]] == [False, True, False, True]
    living.communicate()
    _make_logs(tmp_path, WORKERS_KEPT + 3)
    remove_old_worker_logs(tmp_path)
    assert not logs[1].exists()


def test_a_log_that_has_grown_large_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_SIZE", 10)
    log = tmp_path / "store.log"
    for line in ("one\n", "two, long\n", "three\n"):
        opened = open_log(log)
        os.write(opened, line.encode())
        os.close(opened)
    assert (log.read_text(), (tmp_path / "store.log.old").read_text()) == ("three\n", "one\ntwo, long\n")


@pytest.mark.slow
async def test_up_removes_what_killed_workers_have_left_and_keeps_what_its_own_write_to(
    data: Path, database_url: str
) -> None:
    async with up(data, "--database-url", database_url) as processes:
        [killed] = (data / "log").glob("worker-*.log")
        dead = _make_logs(data / "log", WORKERS_KEPT + 3)
        processes.workers[0].kill()
        async with asyncio.timeout(30):
            while dead[0].exists() or not processes.workers:  # noqa: ASYNC110 - what starts the next worker is another process
                await asyncio.sleep(0.05)
        [own] = set((data / "log").glob("worker-*.log")) - {killed, *dead}
        for log in (killed, own):
            os.utime(log, (0, 0))
        _make_logs(data / "log", WORKERS_KEPT + 3)
        remove_old_worker_logs(data / "log")
        assert (own.exists(), killed.exists()) == (True, False)
