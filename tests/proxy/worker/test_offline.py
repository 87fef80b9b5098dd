"""Where no request goes out, a command may have the clock of its recording."""

from typing import Any, Final

import msgspec
import pytest

from proxy.worker.process import is_offline
from proxy.worker_config import WorkerConfig

REPLAY: Final[dict[str, Any]] = {
    "name": "worker",
    "data": "/nowhere",
    "started": 0,
    "mode": "replay",
    "engine": "lane",
    "body_limit": 1,
    "spool_limit": 1,
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"modes": {"local.example": "passthrough"}}, False),
        ({"mode": "auto"}, False),
        ({"mode": "auto", "replay_options": {"fork": {"at": 1}}}, False),
        ({"mode": "auto", "replay_options": {"fork": {"at": 1, "offline": True}}}, True),
        ({"mode": "auto", "modes": {"a": "passthrough"}, "replay_options": {"fork": {"offline": True}}}, False),
        ({"mode": "record"}, False),
    ],
)
def test_replays_and_trials_of_other_answers_let_nothing_out(change: dict[str, Any], expected: bool) -> None:
    assert is_offline(msgspec.convert(REPLAY | change, WorkerConfig)) is expected
