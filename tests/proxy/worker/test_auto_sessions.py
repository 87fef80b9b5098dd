"""The run in which a recorder of auto sessions, forks and replays records a call."""

import time
from pathlib import Path

from calls.redaction.redactor import Redactor
from proxy.worker.auto_recorder import AutoRecorder
from store.spool import Spool
from tests.calls.secrets import KEY


def test_a_fork_s_worker_records_into_the_fork_whatever_run_a_request_names(tmp_path: Path) -> None:
    """An agent that names its own runs must not add to the recording that it was forked from."""
    with Spool(tmp_path / "spool") as spool:
        recorder = AutoRecorder(spool, Redactor(key=KEY), now=time.time_ns)
        assert recorder.recording_run("ticket-904", "https://api.example/") == "ticket-904"
        recorder.only_run = "second-try"
        assert recorder.recording_run("ticket-904", "https://api.example/") == "second-try"
        assert recorder.recording_run("ticket-904", None) == "second-try"
