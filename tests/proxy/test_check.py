"""check as a person uses it: runs, files, exit codes, and what CI reads."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from calls.model import Json
from calls.redaction.redactor import Redactor
from proxy.commands.check import build_checked_run
from store.active_profiles import load_profiles
from store.diff.steps import StepReader
from tests.calls.secrets import KEY
from tests.proxy.test_compare import run_playhead, save_agent
from tests.store.agents import Agent

READER = StepReader(profiles=load_profiles(), clean=Redactor(key=KEY).redact_text)

SPEC = """
[[rule]]
kind = "tools"
tools = ["search", "search"]

[[rule]]
name = "searches for subjects"
kind = "argument"
tool = "search"
at = "$.q"
is = { pattern = "subject-[0-9] .*" }
"""


async def test_a_spec_from_a_run_accepts_it_and_names_what_another_run_breaks(tmp_path: Path) -> None:
    good = save_agent(tmp_path, "good", Agent(turns=2))
    bad = save_agent(tmp_path, "bad", Agent(turns=2, asks=lambda turn: f"subject-{turn} \x1b[31m".upper()))
    made = await run_playhead(tmp_path, "check", "--init", good, "-o", "made.toml")
    assert (made.code, made.err) == (0, "wrote 6 rules into made.toml\n")
    assert (await run_playhead(tmp_path, "check", good, "--spec", "made.toml")).code == 0
    again = await run_playhead(tmp_path, "check", "--init", good, "-o", "made.toml")
    assert (again.code, again.err) == (
        125,
        "playhead: made.toml exists already: name another file with -o, or remove it first\n",
    )

    (tmp_path / "checks.toml").write_text(SPEC)
    checked = await run_playhead(tmp_path, "check", good, bad, "--junit", "out.xml")
    assert checked.code == 1
    assert checked.out.splitlines()[:3] == [
        f"{good}: 2 of 2 rules hold (4 steps)",
        f"{bad}: 1 of 2 rules hold, 1 broken (4 steps)",
        "  checks.toml:6 searches for subjects: step 1: search/q is "
        "\"SUBJECT-0 \\u001b[31M\", which does not match 'subject-[0-9] .*'",
    ]
    suites = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert [suite.get("failures") for suite in suites] == ["0", "1"]
    assert [case.get("line") for case in suites.iter("testcase") if case.find("failure") is not None] == ["6"]
    report = json.loads((await run_playhead(tmp_path, "check", bad, "--json")).out)
    assert report["verdict"] == "fail"
    assert not (tmp_path / "d").exists(), "to check files leaves nothing behind"
    assert report["runs"][0]["rules"][1]["findings"][0]["step"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent.jsonl"], 125, "there is no"),
        (["good.jsonl", "--spec", "absent.toml"], 125, "there is no spec absent.toml: make one from a good run"),
        (
            ["good.jsonl", "--spec", "wrong.toml"],
            125,
            "wrong.toml: line 2: unknown kind of rule 'tols'; did you mean 'tools'?",
        ),
        (["--init", "good.jsonl", "--junit", "x.xml"], 2, "--init makes no check"),
        (["good.jsonl", "-o", "x.toml"], 2, "-o is for --init"),
        (["good.jsonl", "--spec", "price.toml"], 3, ""),
    ],
)
async def test_what_cannot_be_checked_says_why(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    save_agent(tmp_path, "good", Agent(turns=1, model="no-price", extra={"model": "no-price"}))
    (tmp_path / "wrong.toml").write_text('\n[[rule]]\nkind = "tols"\n')
    (tmp_path / "price.toml").write_text('[[rule]]\nkind = "budget"\nmax_cost_usd = 1\n')
    ended = await run_playhead(tmp_path, "check", *arguments)
    assert (ended.code, words in ended.err) == (code, True), ended.err


def test_steps_are_those_of_the_run_and_know_what_they_may_change() -> None:
    exchanges = Agent(turns=2, status=lambda turn: 500 if turn == 0 else 200).run("r")
    run = build_checked_run("r", exchanges, READER)
    assert [step.number for step in run.steps] == [1, 2, 3, 4]
    assert [step.is_unsafe for step in run.steps] == [False, True, False, True]
    assert [step.can_cost for step in run.steps] == [False, False, True, False]
    assert run.user_texts == ("Find out.",)


def results_of(tool: str, result: Json) -> Json:
    """The result of a tool call, as the run has it."""
    run = build_checked_run("r", Agent(turns=2, finds=lambda turn: result).run("r"), READER)
    found = run.tool_result(run.tools[0])
    assert run.tools[0].name == tool
    return found[1] if found else None


def test_the_result_of_a_tool_call_is_in_the_next_prompt() -> None:
    assert results_of("search", {"items": [{"id": 1}]}) == {"items": [{"id": 1}]}
