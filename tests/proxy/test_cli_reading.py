"""A command that reads makes no data directory: one was named wrongly, or nothing was recorded yet."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import playhead
from proxy.errors import Failure

READING = [
    *("ls", "calls", "show last", "show last 1", "search refund", "stats", "cost last", "tail", "drift", "waiting"),
    *(
        "export run-1",
        "diff run-1 run-2",
        "check run-1 --spec checks.toml",
        "rekey run-1",
        "explain 01890000",
        "why replay-1",
    ),
    *("verify run-1", "verify --all", "erase --run run-1", "retention --plan", "token list", "token revoke ci"),
    *(
        "replay run-1 -- true",
        "fork run-1 --after-step 1 -- true",
        "bisect run-1 run-2 -- true",
        "resume run-1 -- true",
    ),
    "regress run-1 -- true",
]


@pytest.mark.parametrize("line", READING)
def test_a_command_that_reads_makes_no_data_directory(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checks.toml").write_text('[[rule]]\nkind = "forbid"\ntools = ["drop_*"]\n')
    words = line.split()
    done = CliRunner().invoke(playhead, [words[0], "--data", "typo", *words[1:]])
    assert isinstance(done.exception, Failure), (done.exception, done.output)
    assert "typo is no data directory" in str(done.exception)
    assert "playhead record" in str(done.exception)
    assert not (tmp_path / "typo").exists()
