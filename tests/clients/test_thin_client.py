"""The thin client: the queries of a run, and what a failed one shows."""

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import playhead
import pytest
from playhead.calls import read_calls, value_shape
from playhead.rest import fetch_calls

from tests.clients.suite_directory import PLAYHEAD, SuiteDirectory
from tests.support.service import running


def model(step: int, *tools: tuple[str, Any], **members: Any) -> dict[str, Any]:
    """A model call that requests these tools."""
    return {
        **other_call(step, "api.openai.com", "POST", "/v1/chat/completions", kind="model", status=200),
        "operation": "chat",
        "model_requested": "large",
        "tool_calls": [{"id": f"t{step}{n}", "name": name, "arguments": what} for n, (name, what) in enumerate(tools)],
        "usage": {"input_tokens": 100, "output_tokens": 20, "cached_tokens": None, "reasoning_tokens": None},
        "cost_usd": 0.01,
        **members,
    }


def other_call(step: int, host: str, method: str = "GET", path: str = "/", **members: Any) -> dict[str, Any]:
    """A call of an API that is not a model."""
    return {
        "id": f"call-{step}",
        "step": step,
        "kind": "other",
        "host": host,
        "method": method,
        "path": path,
        **members,
    }


TICKET = {"ticket": "T-1042", "text": "on it"}
RUN = playhead.Run(
    "ticket-904",
    lambda: [
        model(1, ("search_tickets", {"query": "refund", "limit": 3})),
        other_call(2, "tickets.example.com", path="/v2/tickets"),
        model(3, ("add_note", TICKET)),
        other_call(
            4, "mcp.example", "POST", kind="tool", tool_calls=[{"id": None, "name": "add_note", "arguments": TICKET}]
        ),
        other_call(5, "api.bank.example", "POST", "/v1/transfers"),
        model(6, text="The oldest is T-1042."),
    ],
)


def test_a_run_is_asked_what_a_person_would_ask() -> None:
    assert RUN.calls.tools == ["search_tickets", "add_note"]
    assert RUN.calls.path == [
        *("large", "GET tickets.example.com/v2/tickets", "large", "add_note", "POST api.bank.example/v1/transfers"),
        "large",
    ]
    assert RUN.calls.tool("add_note").arguments == TICKET
    assert RUN.calls.tool("add_note").shape == {"ticket": str, "text": str}
    assert [call.path for call in RUN.calls.to("*.bank.example", method="POST")] == ["/v1/transfers"]
    assert RUN.calls.to("*.bank.example", method="DELETE") == []
    assert RUN.calls.to("tickets.example.com", path="/v2/*") == [RUN.calls[1]]
    assert RUN.calls.count("add_*") == 1
    assert RUN.calls.texts == ["The oldest is T-1042."]
    assert RUN.calls.models == ["large", "large", "large"]
    assert len(RUN.calls.of("model")) == 3
    assert RUN.cost_usd <= 0.0301
    assert RUN.tokens.output == 60
    assert RUN.tokens.input == 300
    RUN.calls.forbid("delete_*")


def test_what_a_model_asks_for_and_an_agent_does_counts_once_however_often_it_is_asked() -> None:
    done = other_call(2, "mcp.example", kind="tool", tool_calls=[{"id": None, "name": "add_note", "arguments": TICKET}])
    twice = read_calls([model(1, ("add_note", TICKET)), done, model(3, ("add_note", TICKET)), done, done])
    assert twice.tools == ["add_note"] * 3


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        (lambda run: run.calls.tool("delete_ticket"), r"these were: \['search_tickets', 'add_note'\]"),
        (lambda run: run.calls.tool("add_note", 1), "it was requested 1 times"),
        (lambda run: run.calls.forbid("add_*"), r"add_\* is forbidden but was requested: \[add_note\(ticket='T-1042'"),
    ],
)
def test_a_question_that_has_no_answer_says_what_there_is(question: Any, shown: str) -> None:
    with pytest.raises(AssertionError, match=shown):
        question(RUN)


def test_which_of_several_has_to_be_said() -> None:
    several = read_calls([model(1, ("look", {"n": 1}), ("look", {"n": 2}))])
    with pytest.raises(AssertionError, match=r"look was requested 2 times; select one"):
        several.tool("look")
    assert several.tool("look", -1).arguments == {"n": 2}


def test_a_sum_that_lacks_a_part_holds_for_no_budget() -> None:
    run = playhead.Run("r", lambda: [model(1), model(2, cost_usd=None, usage={"input_tokens": 1})])
    with pytest.raises(playhead.Unknown, match="the cost of 1 of 2 model calls is not known"):
        assert run.cost_usd <= 1
    with pytest.raises(playhead.Unknown, match="1 of 2 model calls do not state their output_tokens"):
        assert run.tokens.output < 500
    assert run.tokens.input == 101


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2], "b": [{"c": None}, {"c": True}]}, {"a": [int], "b": [{"c": None}, {"c": bool}]}),
        ([], []),
        ("text", str),
    ],
)
def test_a_shape_has_types_for_values(value: Any, expected: Any) -> None:
    assert value_shape(value) == expected


def test_a_test_asks_its_own_run_recorded_and_replayed(suite: SuiteDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write("checks.toml", '[[rule]]\nkind = "tools"\ntools = ["search_tickets", "add_note"]\n')
    suite.write("wrong.toml", '[[rule]]\nkind = "forbid"\ntools = ["search_*"]\n')
    suite.write(
        "test_agent.py",
        """
        import openai, playhead, pytest, requests

        @pytest.mark.playhead
        def test_it(playhead_run):
            assert playhead_run.calls == []
            asked = [{"role": "user", "content": "any refunds?"}]
            openai.OpenAI().chat.completions.create(model="gpt-4o-mini", messages=asked)
            assert playhead_run.calls.tools == ["search_tickets", "add_note"]
            requests.get("https://tickets.example.com/v2/tickets", timeout=60)
            assert playhead_run.calls.path == ["gpt-4o-mini", "GET tickets.example.com/v2/tickets"]
            assert playhead_run.calls.tool("search_tickets").shape["query"] == str
            assert playhead_run.calls.to("*.bank.example") == []
            assert 0 < playhead_run.tokens.output < 500
            assert 0 < playhead_run.cost_usd < 0.02
            playhead_run.check("checks.toml")
            with pytest.raises(playhead.CheckFailed, match=r"wrong.toml:1 forbid: step 1: search_tickets is forbidden"):
                playhead_run.check("wrong.toml")
        """,
    )
    assert (ran := suite.pytest("--record-mode=once")).counts == {"passed": 1}, ran.out
    assert (ran := suite.pytest()).counts == {"passed": 1}, ran.out
    loaded = playhead.load(suite.directory / "recordings/test_agent/test_it.jsonl")
    assert loaded.calls.path == ["gpt-4o-mini", "GET tickets.example.com/v2/tickets"]
    assert loaded.calls.tools == ["search_tickets", "add_note"]
    assert loaded.calls[0].status == 200
    monkeypatch.setenv("PLAYHEAD_COMMAND", PLAYHEAD)
    monkeypatch.setenv("PLAYHEAD_DATA", str(suite.directory / "data"))
    loaded.check(suite.directory / "checks.toml")
    with pytest.raises(
        playhead.CheckFailed, match=r"wrong.toml:1 forbid: step 1: search_tickets is forbidden by search_\*"
    ):
        loaded.check(suite.directory / "wrong.toml")
    with pytest.raises(RuntimeError, match="there is no spec"):
        loaded.check(suite.directory / "absent.toml")


def test_a_run_named_within_a_test_is_the_one_of_the_test(suite: SuiteDirectory) -> None:
    suite.write(
        "test_named.py",
        """
        import playhead, pytest, requests

        def get(n):
            requests.get(f"https://tickets.example.com/v2/{n}", timeout=60)

        @pytest.mark.playhead
        def test_it(playhead_run):
            get(1)
            with playhead.run("ticket-904") as run:
                get(2)
            assert [call.path for call in run.calls] == ["/v2/2"]
            assert len(playhead_run.calls) == 2
        """,
    )
    assert (ran := suite.pytest("--record-mode=once", CI="true")).counts == {"passed": 1}, ran.out
    assert "playhead: CI is set, and unrecorded requests of marked tests go live (--record-mode=once)" in ran
    assert (ran := suite.pytest()).counts == {"passed": 1}, ran.out
    assert "go live" not in ran


def test_new_calls_stand_where_they_were_made_among_recorded_ones(suite: SuiteDirectory) -> None:
    module = """
        import pytest, requests

        def get(n):
            requests.get(f"https://tickets.example.com/v2/{n}", timeout=60)

        @pytest.mark.playhead
        def test_it(playhead_run):
            for n in NUMBERS:
                get(n)
            assert [call.path for call in playhead_run.calls] == [f"/v2/{n}" for n in NUMBERS]
        """
    suite.write("test_order.py", module.replace("NUMBERS", "(2, 4)"))
    assert (ran := suite.pytest("--record-mode=once")).counts == {"passed": 1}, ran.out
    suite.write("test_order.py", module.replace("NUMBERS", "(1, 2, 3, 4, 5)"))
    assert (ran := suite.pytest("--record-mode=new_episodes")).counts == {"passed": 1}, ran.out
    assert len(suite.upstream_requests) == 5


def test_a_file_that_is_no_bundle_or_was_altered_is_refused(tmp_path: Path, suite: SuiteDirectory) -> None:
    suite.write("test_one.py", "import pytest\n@pytest.mark.playhead\ndef test_it(): pass\n")
    assert suite.pytest("--record-mode=once").code == 0
    made = suite.directory / "recordings/test_one/test_it.jsonl"
    assert playhead.load(made).calls == []
    lines = made.read_bytes().splitlines(keepends=True)
    for content, words in (
        (b"", "is not a Playhead bundle"),
        (b'{"a": 1}\n', "line 1 of"),
        (lines[0], "is truncated"),
        (lines[0].replace(b"test_one", b"test_two") + lines[1], "line 1 of"),
    ):
        made.write_bytes(content)
        with pytest.raises(playhead.BadBundle, match=words):
            playhead.load(made)


PROGRAM = """
import os, subprocess, playhead, requests
with playhead.run("ticket-904") as run:
    requests.get("https://tickets.example.com/v2/tickets?n=1", timeout=60)
    subprocess.run(["curl", "-sSo", "/dev/null", "https://tickets.example.com/v2/tickets?n=2"], check=True)
with playhead.run("ticket-905"):
    requests.get("https://tickets.example.com/v2/tickets?n=3", timeout=60)
assert run.calls.path == ["GET tickets.example.com/v2/tickets"] * 2, run.calls
print(os.environ.get("HTTPS_PROXY"), os.environ.get("PLAYHEAD_RUN"))
"""


async def test_a_run_is_named_for_what_is_called_inside(data: Path, suite: SuiteDirectory, database_url: str) -> None:
    config = (suite.directory / "playhead.toml").read_text()
    async with running(data, "--database-url", database_url, config=config) as service:
        api = {"PLAYHEAD_API": service.api, "PLAYHEAD_COMMAND": PLAYHEAD, "PLAYHEAD_DATA": str(data)}
        words = [sys.executable, "-c", PROGRAM]
        ran = partial(subprocess.run, words, env=suite.environment(**api), capture_output=True, text=True, check=False)
        done = await asyncio.to_thread(ran)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "None None"


def test_who_cannot_be_asked_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAYHEAD_RUN", raising=False)
    monkeypatch.delenv("PLAYHEAD_PROXY", raising=False)
    monkeypatch.setenv("PLAYHEAD_API", "http://127.0.0.1:1")
    monkeypatch.setenv("PLAYHEAD_COMMAND", "no-such-playhead")
    with pytest.raises(playhead.Unreachable, match=r"cannot reach Playhead at http://127\.0\.0\.1:1"):
        _ = playhead.Run("r", lambda: fetch_calls("r")).calls
    with pytest.raises(playhead.Unreachable, match="cannot run no-such-playhead"), playhead.run("r"):
        pass
    with pytest.raises(ValueError, match="invalid run id"):
        playhead.run("two words")
    with pytest.raises(playhead.Unreachable, match=r"call playhead\.install\(\)"):
        playhead.proxy("r")
