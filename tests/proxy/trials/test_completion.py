"""Diverged runs are completed live: by a stand-in for a model whose calls have a price, and judged against the old ones."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proxy.cli import playhead
from proxy.demo.servers import Handler
from tests.proxy.test_compare import run_playhead, save_agent
from tests.proxy.trials.agent_script import write_agent
from tests.store.agents import Agent
from tests.support.service import keeping

RUBRIC = """
[[criterion]]
name = "no worse"
question = "Is the answer as good?"
"""

SPEC = """
[[rule]]
kind = "forbid"
tools = ["drop_*"]
"""


@dataclass(slots=True)
class LiveModel:
    """A model with a price, which is also the judge."""

    url: str = ""
    tokens: int = 1_000
    preferred: str = "same"
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def content(self, body: dict[str, Any]) -> str:
        if body["model"] == "judge":
            return json.dumps({"verdict": self.preferred, "reason": "It is as good.", "quote": "Find out."})
        return "Nothing was found."


@pytest.fixture
def model() -> Iterator[LiveModel]:
    live = LiveModel()

    class Answers(Handler):
        def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
            body = self.read_json()
            live.asked.append(body)
            live.paths.append(self.path)
            message = {"role": "assistant", "content": live.content(body)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": live.tokens, "completion_tokens": 1, "total_tokens": live.tokens + 1}
            answer = {"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}
            self.answer(200, json.dumps(answer).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    live.url = f"http://127.0.0.1:{server.server_port}"
    yield live
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def home(data: Path) -> Path:
    home = data.parent
    for name in ("one", "two"):
        save_agent(home, name, Agent(turns=1))
    (home / "rubric.toml").write_text(RUBRIC)
    (home / "checks.toml").write_text(SPEC)
    return home


def upstream(model: LiveModel) -> str:
    return json.dumps({"api.openai.com": model.url})


@pytest.mark.slow
async def test_a_run_that_is_completed_and_judged_no_worse_passed(
    home: Path, data: Path, database_url: str, model: LiveModel, python: str
) -> None:
    write_agent(home, "Be kind.")
    line = ["regress", "one.jsonl", "--live-budget", "1.00USD", "--keep", "new", "--spec", "checks.toml", "--json"]
    judge = ["--rubric", "rubric.toml", "--judge-model", "judge", "--judge-url", f"{model.url}/v1"]
    async with keeping(data, database_url):
        done = await run_playhead(home, *line, *judge, "--", python, "agent.py", PLAYHEAD_UPSTREAMS=upstream(model))
    assert done.code == 0, done.err + done.out
    (run,) = json.loads(done.out)["runs"]
    assert (run["status"], run["completion"]["live_calls"], run["completion"]["finished"]) == ("passed", 1, True)
    assert run["completion"]["usd"] > 0
    assert [one["verdict"] for one in run["judgements"]] == ["pass"]
    assert run["completion"]["file"] == "new/one.jsonl"
    shown = await run_playhead(home, "check", "new/one.jsonl", "--spec", "checks.toml", "--json")
    assert json.loads(shown.out)["verdict"] == "pass"
    assert model.asked[0]["messages"][0]["content"] == "Be kind."


@pytest.mark.slow
async def test_the_budget_stops_a_run_in_the_middle_and_the_rest_is_not_run(
    home: Path, model: LiveModel, python: str
) -> None:
    model.tokens = 1_000_000
    more = "\nwhile True:\n    post('https://api.openai.com/v1/chat/completions', {'model': 'gpt-5', 'messages': messages})\n"
    write_agent(home, "Be kind.", more)
    line = ["regress", "one.jsonl", "two.jsonl", "--live-budget", "0.50USD", "--keep", "new", "--spec", "checks.toml"]
    done = await run_playhead(home, *line, "--json", "--", python, "agent.py", PLAYHEAD_UPSTREAMS=upstream(model))
    found = json.loads(done.out)
    first, second = found["runs"]
    assert (first["status"], first["reason"]) == (
        "cannot tell",
        "the budget of $0.500000 was used up in the middle of it",
    )
    assert (second["status"], second["reason"]) == ("not run", "the budget was used up before it")
    assert (done.code, found["budget"]["usd"]) == (125, 0.5)
    assert found["budget"]["spent_usd"] >= 0.5
    # What was done is kept, and nothing was asked for the second run.
    assert (home / first["completion"]["file"]).exists()


@pytest.mark.slow
async def test_only_what_the_policy_allows_goes_out(home: Path, model: LiveModel, python: str) -> None:
    more = "\npost('https://mail.example.com/send', {'to': 'x'})\n"
    write_agent(home, "Be kind.", more)
    upstreams = json.dumps({"mail.example.com": model.url})
    line = ["regress", "one.jsonl", "--live-budget", "1USD", "--keep", "new", "--model-url", model.url]
    done = await run_playhead(home, *line, "--", python, "agent.py", PLAYHEAD_UPSTREAMS=upstreams)
    assert done.code == 125, done.err
    assert "after POST https://mail.example.com/send was blocked; see --side-effects" in done.out
    assert model.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--live-budget", "much"], "'much' is not an amount of money: write 2.00USD"),
        (["--live-budget", "0"], "is not an amount of money"),
        (["--side-effects", "allow"], "--side-effects is about runs that are completed live: give a --live-budget"),
        (["--live-budget", "1", "--side-effects", "maybe"], "unknown policy"),
        (["--live-budget", "1", "--rubric", "x.toml"], "--rubric needs a judge"),
        (["--judge-model", "x"], "give a --rubric as well"),
    ],
)
def test_what_is_wrong_about_live_options_is_said(words: list[str], said: str) -> None:
    done = CliRunner().invoke(playhead, ["regress", "last", *words, "--", "true"])
    assert (done.exit_code, said in done.output) == (2, True), done.output
