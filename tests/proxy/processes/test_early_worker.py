"""A worker that is started before its command has read its settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from proxy.processes import early_worker
from proxy.processes.child_process import ChildFailure, ChildProcess
from proxy.processes.early_worker import EarlyWorker, end_early_worker, start_early_worker, take_early_worker

IN_CI = {"CI": "true"}


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


def test_one_that_nobody_needs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    start_early_worker(["record", "--", "true"], IN_CI)
    # The console script starts it, and the command line would if it were called otherwise.
    start_early_worker(["record", "--", "true"], IN_CI)
    (worker,) = early_worker._waiting
    end_early_worker()
    end_early_worker()
    assert worker._process.returncode is not None


async def test_the_log_says_why_one_ended_that_did_not_know_its_log(tmp_path: Path) -> None:
    class Config(msgspec.Struct):
        other: str = "version"

    worker = EarlyWorker()
    log = tmp_path / "worker.log"
    with pytest.raises(ChildFailure, match="ended before it was ready"):
        await ChildProcess.start("proxy.worker.process", Config(), log=log, request_fork=worker.request)
    assert "ValidationError" in log.read_text()
    assert worker._process.returncode is not None
