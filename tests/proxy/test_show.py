"""What a person is shown of a run that is not whole: why, and where."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from calls.comparison.envelope import EnvelopeBuilder
from calls.proof.checkpoint import verifier_key
from proxy.cli.keep.proof import show_verification, verify_command
from proxy.terminal.render_run import (
    RunView,
    call_cost,
    gap_lines,
    run_cost,
    show_call,
    show_envelope,
    show_long_run,
    show_run,
    tool_call_text,
)
from proxy.terminal.text import print_pages
from store.proof.run_check import Erasure, RunCheck
from store.proof.verdict import SealState, conclude, verification_shape
from tests.proxy.test_cli_words import call
from tests.store.running_store import EXAMPLE
from tests.store.samples import NOON, exchange, model_call

DIED = "the worker died before the exchange ended"


def gap(reason: str, exchange: str | None = None) -> dict[str, Any]:
    return {"reason": reason, "exchange": exchange, "happened_at": "2026-11-21T12:00:00.000000Z"}


def run(*, complete: bool, gaps: int = 0) -> dict[str, Any]:
    costs = {"known_cost_usd": 0.25, "unpriced": 0}
    return {"id": "r", "labels": {}, "parent": None, "calls": 2, "gaps": gaps, "complete": complete, **costs}


def test_each_reason_is_listed_once_with_its_steps() -> None:
    calls = [call(step, exchanges=[f"e{step}"]) for step in range(1, 9)]
    gaps = [
        gap(DIED, "e2"),
        gap("the disk is full"),
        gap(DIED, "e7"),
        gap("the disk is full"),
        gap("odd\x1b[m", "gone"),
    ]
    assert gap_lines(gaps, calls) == [
        f"2 gaps at steps 2, 7: {DIED}",
        "2 gaps: the disk is full",
        "1 gap: odd\x1b[m",
    ]
    assert gap_lines([gap(DIED, f"e{n}") for n in range(9)], calls) == [f"9 gaps at steps 1, 2, 3, 4, 5, …: {DIED}"]


def test_of_many_reasons_a_few_are_listed_and_the_others_counted() -> None:
    lines = gap_lines([gap(f"reason {n}") for n in range(7)], [])
    assert lines == [*(f"1 gap: reason {n}" for n in range(5)), "and 2 other reasons: show --json has all"]


def test_a_step_with_a_gap_does_not_stand_as_if_the_provider_had_closed(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [call(1, exchanges=["e1"]), call(2, exchanges=["e2"], complete=False, outcome="server_closed")]
    show_run(RunView(run=run(complete=False, gaps=1), calls=calls, gaps=[gap(f"{DIED}\x1b", "e2")], missing=None))
    shown = capsys.readouterr().out
    assert f"1 gap at step 2: {DIED}\\x1b\n" in shown
    assert "200 gap" in shown
    assert "server_closed" not in shown


def test_effects_stand_between_the_calls(capsys: pytest.CaptureFixture[str]) -> None:
    clock = {"kind": "datetime.now", "count": 2, "names": [], "text": "2028", "at": "a.py:1"}
    file = {**clock, "kind": "open", "count": 1, "names": ["policy.txt\x1b"]}
    groups: list[dict[str, Any]] = [
        {"before_step": 2, "count": 3, "kinds": [clock, file]},
        {"before_step": None, "count": 1, "kinds": [{**file, "names": None}]},
    ]
    calls = [call(1), call(2)]
    show_run(RunView(run=run(complete=True), calls=calls, gaps=[], effects=groups, missing=None))
    lines = capsys.readouterr().out.splitlines()
    first, between, second, after = lines[lines.index("") + 2 :]
    assert (first[0], second[0]) == ("1", "2")
    assert between[1:].strip().startswith("3 effects  ")
    assert between.endswith(r"datetime.now ×2, open policy.txt\x1b")
    assert after.endswith("open")


def test_a_long_run_is_shown_while_its_pages_come(capsys: pytest.CaptureFixture[str]) -> None:
    effect = {"kind": "open", "count": 1, "names": None, "text": "2028", "at": "a.py:1"}
    groups = [{"before_step": step, "count": 1, "kinds": [effect]} for step in (2, 3, None)]
    follows = {"call": "call-1", "step": 1, "by": ["a"]}
    shown: list[list[str]] = []

    def pages() -> Iterator[list[dict[str, Any]]]:
        for calls in ([call(1), call(2, branch=1)], [call(3, branch=2, follows=[follows], text="later")]):
            yield calls
            shown.append(capsys.readouterr().out.splitlines())

    show_long_run(
        RunView(run=run(complete=True), calls=(), gaps=[gap("lost", "e3")], effects=groups, missing=None), pages()
    )
    first, second = shown
    assert "  1 gap: lost" in first
    head, *rows = first[first.index("") + 1 :]
    assert head.split() == ["STEP", "FROM", "BRANCH", "CALL", "STATUS", "MS", "TOKENS", "COST", "ANSWER"]
    assert [row[0] for row in rows] == ["1", "·", "2"]
    assert rows[2].split()[1] == "1"
    assert [row.split()[:3] for row in second] == [["·", "1", "effect"], ["3", "1", "2"]]
    assert second[1].endswith("later")
    rest = capsys.readouterr()
    assert rest.out.startswith("·")
    assert "show r 1" in rest.err


def test_columns_become_as_wide_as_later_pages_need(capsys: pytest.CaptureFixture[str]) -> None:
    print_pages(("A", "B"), iter([[("1", "2")], [], [("100000", "3")], [("4", "5")]]))
    assert capsys.readouterr().out.splitlines() == ["A  B", "1  2", "100000  3", "4       5"]


def test_a_run_that_is_not_all_stored_is_not_called_complete(capsys: pytest.CaptureFixture[str]) -> None:
    show_run(RunView(run=run(complete=True), calls=[], gaps=[], missing="No space left on device"))
    shown = capsys.readouterr().out
    assert "2 calls, 0 gaps, not all stored yet" in shown
    assert "cost: $0.250000, so far" in shown
    assert "complete" not in shown


SEARCH = {"id": "t1", "name": "search", "arguments": {"query": "refund", "limit": 3}}
HOSTILE = {"id": "t2", "name": "rm\x1b[2J", "arguments": {"path": "/\r\n\u202e"}}


def test_a_tool_call_is_one_line() -> None:
    assert tool_call_text(SEARCH) == 'search(query="refund", limit=3)'
    assert tool_call_text(SEARCH, width=20) == 'search(query="refu…)'
    assert tool_call_text({**SEARCH, "arguments": None}) == "search(…)"
    assert tool_call_text({**SEARCH, "arguments": '{"query": '}) == 'search("{\\"query\\": ")'
    assert tool_call_text({**SEARCH, "arguments": {"a": {"b": [1, "é"]}}}) == 'search(a={"b":[1,"é"]})'


def test_a_table_shows_what_a_model_calls_with_which_arguments_and_what_it_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mcp = {
        "kind": "tool",
        "method": "POST",
        "host": "mcp.example.com",
        "path": "/",
        "text": "found",
        "tool_calls": [SEARCH],
    }
    calls = [call(1, tool_calls=[SEARCH, HOSTILE], cost_usd=0.5), call(2, **mcp), call(3), call(4, status=429)]
    show_run(RunView(run=run(complete=True), calls=calls, gaps=[], missing=None))
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(None, 1)[1] for line in lines[lines.index("") + 2 :]]
    assert rows[0].endswith(r'$0.500000  search(query="refund", limit=3), rm\x1b[2J(path="/\r\n\u202e")')
    assert rows[1].startswith('search(query="refund", limit=3) at mcp.example')
    assert rows[1].endswith("-          found")
    assert [row.split()[5] for row in rows[2:]] == ["unknown", "-"]


@pytest.mark.parametrize(
    ("known", "unpriced", "said"),
    [
        (None, 0, "none: no model answered"),
        (0, 0, "$0"),
        (0.00000004, 0, "<$0.000001"),
        (0.000142, 0, "$0.000142"),
        (1234.5, 0, "$1,234.50"),
        (None, 1, "unknown: the cost of 1 model request is not known"),
        (0.5, 2, "unknown, at least $0.500000: the cost of 2 model requests is not known"),
    ],
)
def test_what_a_run_cost_is_never_a_guess(known: float | None, unpriced: int, said: str) -> None:
    assert run_cost({"known_cost_usd": known, "unpriced": unpriced}) == said


def test_only_an_answer_of_a_model_has_an_unknown_cost() -> None:
    assert call_cost(call(1)) == "unknown"
    assert call_cost(call(1, status=None)) == "unknown"
    assert call_cost(call(1, status=500)) == call_cost(call(1, kind="tool")) == "-"


def test_a_fork_says_of_each_step_where_its_answer_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    origins = ("recorded", "edited", "live", "live")
    calls = [call(step, origin=origin) for step, origin in enumerate(origins, 1)]
    fork = run(complete=True) | {"parent": "night\x1b", "forked_at": 2}
    show_run(RunView(run=fork, calls=calls, gaps=[], missing=None))
    lines = capsys.readouterr().out.splitlines()
    assert r"  fork of night\x1b after step 2: 1 recorded, 1 edited, 2 live" in lines
    head = next(number for number, line in enumerate(lines) if line.startswith("STEP  ORIGIN"))
    assert tuple(line.split()[1] for line in lines[head + 1 :]) == origins


def test_one_call_shows_its_tools_its_cost_and_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "run": "r",
        "finish_reason": "tool_calls",
        "warnings": [],
        "prices": "genai-prices/0.2.3",
        "origin": "edited",
    }
    show_call(call(2, tool_calls=[SEARCH, HOSTILE], cost_usd=0.000047, model_returned="gpt-5-2026", **facts))
    shown = capsys.readouterr().out
    assert shown.startswith("step 2 of run r\n")
    for line in (
        "model      gpt-5, answered as gpt-5-2026",
        "cost       $0.000047 (by genai-prices/0.2.3)",
        "origin     edited",
        'tool call  search(query="refund", limit=3)',
        r'tool call  rm\x1b[2J(path="/\r\n\u202e")',
    ):
        assert f"  {line}\n" in shown
    assert not any(char in shown for char in "\x1b\r\u202e")


def test_a_tool_step_names_the_tool_call_that_it_carried_out(capsys: pytest.CaptureFixture[str]) -> None:
    facts: dict[str, Any] = {"run": "r", "finish_reason": None, "warnings": [], "prices": None, "model_requested": None}
    executes = {"call": "call-1", "step": 1, "tool_call": "t1"}
    show_call(call(2, kind="tool", executes=executes, **facts), SEARCH)
    shown = capsys.readouterr().out
    assert '  executes   search(query="refund", limit=3), requested at step 1\n' in shown
    assert "  cost       none: no model answered\n" in shown


def test_an_envelope_shows_what_was_captured_and_what_was_not(capsys: pytest.CaptureFixture[str]) -> None:
    builder = EnvelopeBuilder()
    one = replace(exchange(1), ended_at=None)
    asked = replace(model_call(one), model_requested="gpt-4o", model_returned="gpt-4o\x1b[2J", params={"seed": 7})
    builder.add(1, one, asked)
    show_envelope({"run": "night"} | builder.envelope({"git": "4f1c"}, 0))
    shown = capsys.readouterr().out
    assert "night: what was captured in 1 step" in shown
    assert "gpt-4o → gpt-4o\\x1b[2J  (steps 1)" in shown
    assert "git=4f1c" in shown
    assert "not captured: step 1 lacks a fingerprint of the model's configuration" in shown
    assert "\x1b[2J" not in shown


def test_a_verification_names_what_was_done_to_what(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check = RunCheck(erasures=[Erasure("e1\x1b[2J", "whole", NOON), Erasure("e3", "body", NOON, "rule 1")], proven=3)
    check.add_finding("removed", "exchange e2", "it was recorded\x1b")
    seal = SealState(chain="r/s", origin="playhead/s/default", size=3, signed_at=NOON, note="", unsealed=0)
    show_verification(verification_shape("night", conclude(check, [seal])))
    shown = capsys.readouterr().out
    assert re.search(r"checkpoint 3 of playhead/s/default, noted at 20\S+Z \(this time is not proven\)\n", shown)
    assert "night: NOT as it was recorded: 1 finding" in shown
    assert "erased: whole of e1\\x1b[2J" in shown
    assert "\x1b" not in shown
    assert re.search(r"erased: body of e3, \S+, by retention: rule 1\n", shown)
    assert "removed: exchange e2: it was recorded\\x1b" in shown
    plain, key = tmp_path / "plain.jsonl", verifier_key("playhead/x/default", Ed25519PrivateKey.generate())
    plain.write_bytes(EXAMPLE.read_bytes())
    for arguments, why in (
        ([], "there is no key"),
        (["--key", str(key)], "has no proof"),
        (["--key", "x"], "not a verifier key"),
    ):
        done = CliRunner().invoke(verify_command, [str(plain), "--data", str(tmp_path / "d"), *arguments])
        assert done.exit_code != 0
        assert why in (done.output + str(done.exception))
        assert (done.exit_code == 3) == (why == "has no proof")


def test_a_terminal_is_told_that_a_file_is_being_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def show_waiting(text: str) -> AbstractContextManager[None]:
        texts.append(text)
        return nullcontext()

    monkeypatch.setattr("proxy.cli.keep.proof.show_waiting", show_waiting)
    file = tmp_path / "long.jsonl"
    file.write_bytes(EXAMPLE.read_bytes())
    key = str(verifier_key("playhead/x/default", Ed25519PrivateKey.generate()))
    done = CliRunner().invoke(verify_command, [str(file), "--data", str(tmp_path / "d"), "--key", key])
    assert (done.exit_code, texts) == (3, [f"verifying {file}"])
