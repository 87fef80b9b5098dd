"""The command lines of overrides and forks: what is wrong with them is said before anything is started."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from proxy.cli import playhead
from proxy.commands.fork import summary_lines
from proxy.commands.override_file import load_overrides
from proxy.errors import Failure


def run_playhead(*words: str) -> Result:
    return CliRunner().invoke(playhead, list(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fork", "last", "--", "true"), "Missing option '--after-step'"),
        (("fork", "last", "--after-step", "-1", "--", "true"), "-1 is not in the range x>=0"),
        (
            ("fork", "last", "--after-step", "1", "--side-effects", "maybe", "--", "true"),
            "use serve-recorded, block, allow",
        ),
        (("resume", "last", "--side-effects", "a b c=allow", "--", "true"), "write HOST or 'METHOD HOST'"),
        (("resume", "last", "--label", "x", "--", "true"), "--label x is not a label: write it as key=value"),
    ],
)
def test_a_wrong_command_line_says_what_is_known(words: tuple[str, ...], said: str) -> None:
    done = run_playhead(*words)
    assert done.exit_code == 125
    assert said in done.output


def test_what_was_edited_is_not_recorded_as_the_truth(tmp_path: Path) -> None:
    file = tmp_path / "what-if.toml"
    file.write_text("[[override]]\nstep = 1\ntext = 'x'\n")
    done = run_playhead("replay", "last", "--override", str(file), "--on-miss", "record", "--", "true")
    assert done.exit_code == 125
    assert "edited answers are never recorded" in " ".join(done.output.split())


@pytest.mark.parametrize("command", ["fork", "resume", "replay"])
def test_help_teaches(command: str) -> None:
    assert f"playhead {command} " in run_playhead(command, "--help").output


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"cannot read the overrides .*: No such file"):
        load_overrides([str(tmp_path / "none.toml")])
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"text = '\xe9'")
    with pytest.raises(Failure, match="is not UTF-8"):
        load_overrides([str(latin)])
    wrong = tmp_path / "wrong.json"
    wrong.write_text('[\n{"step": 1}\n]')
    with pytest.raises(Failure, match=r"wrong.json: line 2: override 1: it changes nothing"):
        load_overrides([str(wrong)])
    for words, why in {
        "clock=noon": "--override clock=noon: the value of clock is 'noon': use RFC 3339",
        "clock=2027-02-29": "not a time after 1970",
        "env=1": "effect env needs a name: write env:NAME",
        "file:a.txt=@none.txt": "cannot read none.txt",
        "listing:.=[1": "is not JSON",
        "seed=many": "whole number",
    }.items():
        with pytest.raises(Failure, match=re.escape(why)):
            load_overrides([words])


def test_what_a_worker_knows_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("\n[[override]]\nstep = 1\ntext = 'x'\n")
    result = {"overrides": [{"step": 1, "text": "x"}], "lines": [2], "overrides_file": str(file)}
    assert (load_overrides([str(file)]), load_overrides([])) == (result, {})
    (tmp_path / "new.bin").write_bytes(b"\xff")
    given = [f"file:a=b.txt#2=@{tmp_path / 'new.bin'}", str(file), "input:Sure? =yes", 'run:date={"exit": 1}']
    entries = load_overrides(given)["overrides"]
    assert entries == [
        {"effect": "file:a=b.txt", "nth": 2, "value": {"$bytes": "/w=="}},
        {"step": 1, "text": "x"},
        {"effect": "input:Sure? ", "value": "yes"},
        {"effect": "run:date", "value": {"exit": 1}},
    ]


def test_a_summary_says_once_what_was_not_let_out_and_what_is_not_stored_yet() -> None:
    asked = ["POST https://mail.example/send", "DELETE https://crm.example/1", "POST https://mail.example/send"]
    fork = {"parent": "a", "forked_at": 2, "blocked": 3, "blocked_calls": [{"asked": one} for one in asked]}
    report = {"served": 2, "edited": 0, "live": 4, "missed": 0, "unused": 0, "misses": [], "fork": fork}
    run = {"id": "b", "known_cost_usd": None, "unpriced": 0}
    lines = list(summary_lines(run, report, "a"))
    assert lines[1].strip() == "2 calls answered free of charge, 4 live ($0), 3 blocked"
    assert [line.strip() for line in lines if "blocked" in line][1:] == [
        "blocked 2 times: POST https://mail.example/send: it may change something there; to let it out: --side-effects 'POST mail.example=allow'",
        "blocked: DELETE https://crm.example/1: it may change something there; to let it out: --side-effects 'DELETE crm.example=allow'",
    ]
    lines = list(summary_lines(run, report, "a", "the disk is full"))
    assert "4 live (at a cost that is not known yet)" in lines[1]
    assert lines[2].strip() == "not all stored yet, the rest waits in the spool: the disk is full"
