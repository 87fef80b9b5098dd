"""judge as a person uses it: a judge behind HTTP, recorded and asked only once."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.servers import Handler
from tests.proxy.test_compare import run_playhead, save_agent
from tests.store.agents import Agent
from tests.support.service import running

RUBRIC = """
[[criterion]]
name = "searched"
question = "Did the agent search before it answered?"

[[criterion]]
name = "brief"
question = "Was it brief?"
"""


@dataclass(slots=True)
class FakeJudge:
    """A judge that says what it is set to, and what it was asked."""

    url: str = ""
    says: dict[str, Any] = field(default_factory=dict)
    """By the name of a criterion's question, the answer: a verdict with evidence, or any text."""

    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer_to(self, question: str) -> str:
        said = next(answer for words, answer in self.says.items() if words in question)
        if said in ("pass", "fail"):
            return json.dumps({"verdict": said, "reason": f"it is {said}", "quote": "Find out."})
        return str(said)


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    fake = FakeJudge()

    class Answers(Handler):
        def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
            body = self.read_json()
            fake.asked.append(body)
            message = {"role": "assistant", "content": fake.answer_to(body["messages"][1]["content"].split("\n")[0])}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.answer(200, json.dumps({"object": "chat.completion", "model": "judge", "choices": [choice]}).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_judgement_is_recorded_and_costs_nothing_the_second_time(
    data: Path, database_url: str, judge: FakeJudge
) -> None:
    home = data.parent
    save_agent(home, "good", Agent(turns=1))
    (home / "rubric.toml").write_text(RUBRIC)
    (home / "labels.csv").write_text("run,criterion,verdict\ngood.jsonl,searched,pass\ngood.jsonl,brief,pass\n")
    line = ["judge", "good.jsonl", "--rubric", "rubric.toml", "--model", "judge", "--url", judge.url, "--json"]
    judge.says = {"search": "pass", "brief": "It was brief."}
    async with running(data, "--database-url", database_url):
        first = await run_playhead(home, *line, "--labels", "labels.csv")
        assert first.code == 3, first.err
        answer = json.loads(first.out)
        assert [(one["criterion"], one["verdict"]) for one in answer["judgements"]] == [
            ("searched", "pass"),
            ("brief", "cannot tell"),
        ]
        assert "did not answer with a JSON object" in answer["judgements"][1]["reason"]
        assert (answer["agreement"]["count"], answer["agreement"]["agreeing"]) == (2, 1)
        assert len(judge.asked) == 2
        assert judge.asked[0]["seed"] == 1

        judge.says = {"": "fail"}
        again = await run_playhead(home, *line)
        assert (again.code, json.loads(again.out)["judgements"], len(judge.asked)) == (3, answer["judgements"], 2), (
            again.err
        )

        more = await run_playhead(home, *line, "--votes", "2")
        assert more.code == 3, more.err
        assert "the votes disagree: 1 pass, 1 fail" in more.out
        assert [body["seed"] for body in judge.asked[2:]] == [2, 2]

        judge.says = {"": "pass"}
        compared = await run_playhead(home, *line, "--against", "good.jsonl")
        assert compared.code == 3
        assert "is none of those it was offered" in compared.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--rubric", "absent.toml"],
            125,
            "cannot read the rubric absent.toml: No such file or directory; name a file with [[criterion]] tables",
        ),
        (["--rubric", "wrong.toml"], 125, "wrong.toml: line 1: Object missing required field `question`"),
        (["--rubric", "rubric.toml", "--url", "here"], 2, "is not a URL"),
        (["--rubric", "rubric.toml", "--labels", "rubric.toml"], 125, "write run,criterion,verdict"),
        (["--rubric", "rubric.toml", "--votes", "0"], 2, "--votes"),
    ],
)
async def test_what_cannot_be_judged_says_why(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    save_agent(tmp_path, "good", Agent(turns=1))
    (tmp_path / "rubric.toml").write_text(RUBRIC)
    (tmp_path / "wrong.toml").write_text("[[criterion]]\nname = 'a'\n")
    given = ["judge", "good.jsonl", "--model", "judge", "--url", "http://127.0.0.1:9/v1", *arguments]
    ended = await run_playhead(tmp_path, *given)
    assert (ended.code, words in ended.err) == (code, True), ended.err
