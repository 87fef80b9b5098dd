"""A worker that is started before its command has read its settings."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from proxy.processes import early_worker
from proxy.processes.early_worker import start_early_worker, take_early_worker
from store.datadir import open_data_dir

IN_CI = {"CI": "true"}

ONE_ENDS_UNUSED_AND_ONE_KNOWS_NO_LOG = """
import asyncio, sys, msgspec
from pathlib import Path
from proxy.processes import early_worker
from proxy.processes.early_worker import end_early_worker, start_early_worker, take_early_worker

def start():
    start_early_worker(["record", "--", "true"], {"CI": "true"})

start()
(worker,) = early_worker._waiting
end_early_worker()
end_early_worker()
assert worker._process.returncode == -9, worker._process.returncode

start()
# Only now: what a fork has imported is no part of this.
from proxy.processes.child_process import ChildFailure, ChildProcess

class Config(msgspec.Struct):
    other: str = "version"

worker = take_early_worker()
try:
    asyncio.run(ChildProcess.start("proxy.worker.process", Config(), log=Path(sys.argv[1]), request_fork=worker.request))
except ChildFailure as failure:
    print(failure)
assert worker._process.returncode == 1, worker._process.returncode
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "is_started"),
    [
        (["record", "--run", "x", "--", "true"], IN_CI, True),
        (["replay", "x.jsonl", "--", "agent", "--help"], {"PLAYHEAD_STORE_IDLE": "0"}, True),
        (["replay", "x.jsonl", "--", "agent"], {}, False),
        (["record", "--help", "--", "true"], IN_CI, False),
        (["record"], IN_CI, False),
        (["ls", "--", "record"], IN_CI, False),
        ([], IN_CI, False),
    ],
)
def test_it_is_started_where_a_command_starts_one_and_none_stays_ready(
    monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], environment: Mapping[str, str], is_started: bool
) -> None:
    monkeypatch.setattr(early_worker, "EarlyWorker", object)
    start_early_worker(arguments, environment)
    assert (take_early_worker() is not None) is is_started
    assert take_early_worker() is None


@pytest.mark.parametrize(
    ("arguments", "mode", "is_started"),
    [
        (["record", "--data", "DIR", "--", "true"], "record", False),
        (["record", "--data=DIR", "--run", "x", "--", "true"], "auto", False),
        (["record", "--", "true"], "record", False),
        (["record", "--data", "OTHER", "--", "true"], "record", True),
        (["record", "--", "true", "--data", "OTHER"], "record", False),
        (["record", "--", "true"], "replay", True),
        (["replay", "x", "--", "true"], "record", True),
    ],
)
def test_none_is_started_where_the_workers_of_up_serve_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: Sequence[str], mode: str, is_started: bool
) -> None:
    monkeypatch.setattr(early_worker, "EarlyWorker", object)
    data = open_data_dir(tmp_path / "data")
    data.announce("up", {"mode": mode})
    arguments = [one.replace("DIR", str(data.root)).replace("OTHER", str(tmp_path)) for one in arguments]
    environment = IN_CI | {"PLAYHEAD_DATA": str(data.root)}
    with data.up_lock.hold():
        start_early_worker(arguments, environment)
        assert (take_early_worker() is not None) is is_started
    # The notice of one that was killed is still there.
    start_early_worker(arguments, environment)
    assert take_early_worker() is not None


@pytest.mark.own_interpreter
def test_one_that_nobody_needs_ends_and_one_that_fails_before_it_knows_its_log_says_why(tmp_path: Path) -> None:
    # In a process of its own: a worker is a fork of it.
    log = tmp_path / "worker.log"
    code = [sys.executable, "-c", ONE_ENDS_UNUSED_AND_ONE_KNOWS_NO_LOG, str(log)]
    ran = subprocess.run(code, capture_output=True, text=True, check=True, timeout=60)
    assert "ended before it was ready" in ran.stdout
    assert "ValidationError" in log.read_text()
