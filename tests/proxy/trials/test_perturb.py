"""perturb as a person uses it, and what it says of a trial."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from calls.checking.check import CheckResult, RuleResult
from calls.checking.rules import RuleFinding
from calls.checking.spec import parse_spec
from calls.perturbation.edits import GROUPS, apply_edits
from calls.perturbation.entries import plain_json
from calls.perturbation.proposals import propose_edits
from calls.perturbation.variations import choose_variations
from proxy.cli import playhead
from proxy.trials.perturb import trial_finding
from replay.overrides.apply import apply_patch
from replay.overrides.dialect_paths import copy_mutable
from tests.calls.perturbation.test_variations import DOCUMENTS, RECORDS, answers_of
from tests.proxy.test_compare import run_playhead, save_agent
from tests.proxy.trials.agent_script import write_agent
from tests.proxy.trials.test_outcome import REPORT, result
from tests.store.agents import Agent


@pytest.fixture
def home(data: Path) -> Path:
    save_agent(data.parent, "one", Agent(turns=1, finds=lambda _turn: RECORDS))
    return data.parent


@pytest.mark.slow
async def test_the_smallest_variation_that_breaks_is_a_fixture_that_replays(home: Path, python: str) -> None:
    write_agent(home, more="\nprint('first', found['records'][0]['id'])\n")
    line = ["perturb", "one.jsonl", "-n", "10", "--seed", "1", "--vary", "tools", "--vary", "chunks", "--json"]
    done = await run_playhead(home, *line, "--", python, "agent.py")
    assert done.code == 1, done.err
    answer = json.loads(done.out)
    assert len(answer["variations"]) == 10
    (smallest,) = answer["smallest"]
    assert [edit["kind"] for edit in smallest["edits"]] == ["empty list"]
    assert "IndexError: list index out of range" in smallest["reasons"][0]
    row = next(row for row in answer["table"] if row["kind"] == "empty list")
    assert (row["broke"], row["what_broke"]) == (row["tried"], ["exit 1"])
    assert answer["counts"]["broke"] + answer["counts"]["held"] == 10

    again = await run_playhead(
        home, "replay", smallest["recording"], "--override", smallest["override"], "--", python, "agent.py"
    )
    assert (again.code, "IndexError" in again.err) == (1, True), again.err
    # The broken run is a recording of its own: it needs no override, and no model.
    again = await run_playhead(home, "replay", smallest["run"], "--", python, "agent.py")
    assert (again.code, "was right" in again.err) == (1, True), again.err


@pytest.mark.slow
async def test_nothing_goes_out_without_a_model(home: Path, python: str) -> None:
    more = (
        "\npost('https://api.openai.com/v1/chat/completions', {'model': 'gpt-5', 'messages': [*messages, message]})\n"
    )
    write_agent(home, more=more)
    done = await run_playhead(home, "perturb", "one.jsonl", "-n", "2", "--", python, "agent.py")
    assert done.code == 125
    assert (
        "it cannot go on without any variation: POST https://api.openai.com/v1/chat/completions was not recorded"
        in done.err
    )


@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.integers(0, 1 << 40))
def test_patches_do_what_the_edits_do(values: list[Any], seed: int) -> None:
    answers = answers_of(*values)
    for variation in choose_variations(propose_edits(answers, [], GROUPS, seed), answers, 3, seed):
        applied = apply_edits(answers, variation.edits)
        for answer in answers:
            if answer.step in applied.operations:
                patched = apply_patch(copy_mutable(answer.value), applied.operations[answer.step])
                assert plain_json(patched) == plain_json(applied.documents[answer.step])


SPEC = parse_spec('[[rule]]\nkind = "require"\ntools = ["answer"]\n[[rule]]\nkind = "forbid"\ntools = ["drop_*"]\n')


def check_result(*broken: int) -> CheckResult:
    finding = (RuleFinding("it is so", 3),)
    rules = tuple(RuleResult(rule, finding if number in broken else ()) for number, rule in enumerate(SPEC))
    return CheckResult("run", 3, rules)


MISSED: Mapping[str, Any] = {**REPORT, "missed": 1, "first_divergence": {"asked": "POST https://api.example/v1"}}


@pytest.mark.parametrize(
    ("report", "code", "check", "effect", "signature"),
    [
        (REPORT, 0, check_result(), "held", ""),
        (REPORT, 0, check_result(0), "broke", "require"),
        (REPORT, 3, check_result(), "broke", "exit 3"),
        # A run that was cut short may still have done what a rule requires, but what is forbidden is done.
        (MISSED, 1, check_result(0), "could not go on", ""),
        (MISSED, 1, check_result(0, 1), "broke", "forbid"),
        (REPORT, 125, None, "cannot tell", ""),
        (None, 0, None, "cannot tell", ""),
        ({**REPORT, "served": 0}, 1, None, "cannot tell", ""),
    ],
)
def test_what_came_of_a_variation(
    report: Mapping[str, Any] | None, code: int, check: CheckResult | None, effect: str, signature: str
) -> None:
    found = trial_finding(result(report, code=code), check, 9)
    assert (found.effect, found.signature) == (effect, signature)


def test_a_command_that_does_not_end_breaks() -> None:
    found = trial_finding(result(is_timed_out=True), None, 9)
    assert (found.effect, found.reasons) == ("broke", ("it did not end within 9 s",))


def test_a_command_that_crashes_before_its_first_call_says_so() -> None:
    found = trial_finding(result({**REPORT, "served": 0}, code=134, output="Aborted\n"), None, 9)
    assert (found.effect, found.reasons) == ("cannot tell", ("it ended with 134 before its first call: Aborted",))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["last", "-n", "0", "--", "true"], 2, "'-n'"),
        (["last"], 2, "there is no command to run"),
        (["last", "--spec", "wrong.toml", "--", "true"], 125, "wrong.toml: line 1: unknown kind of rule 'forbidden'"),
        (["last", "--schema", "x.json", "--", "true"], 2, "names no tool: write TOOL=FILE"),
        (["last", "--schema", "GET x=x.json", "--", "true"], 125, "x.json: unknown type 'text'"),
        (["last", "--model-url", "here", "--", "true"], 125, "--model-url 'here' is not the address of a server"),
        (["absent.jsonl", "--", "true"], 125, "there is no bundle absent.jsonl"),
        (["last", "--", "no-such-command"], 125, "cannot run no-such-command"),
    ],
)
def test_bad_input_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.toml").write_text('[[rule]]\nkind = "forbidden"\n')
    (tmp_path / "x.json").write_text('{"type": "text"}')
    done = CliRunner().invoke(playhead, ["perturb", "--data", str(tmp_path / "d"), *words])
    message = str(done.exception) if code == 125 else done.output
    assert said in message
    assert code == 125 or done.exit_code == code
