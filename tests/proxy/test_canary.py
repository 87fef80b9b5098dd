"""The canary as a person uses it: a model behind HTTP that begins to answer otherwise, shots by hand, verdicts, a webhook."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.canary.ask import ask_all
from proxy.canary.pinned_calls import with_credentials
from proxy.demo.servers import Handler
from tests.proxy.test_compare import run_playhead
from tests.support.service import running

KEY = "sk-a-secret-of-the-canary-0123456789"


@dataclass(slots=True)
class FakeModel:
    """A model that says what it is set to."""

    port: int = 0
    says: str = "Paris"
    model: str = "m-1"
    is_down: bool = False
    keys: set[str | None] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)

    def completion(self) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": self.says}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return json.dumps(
            {"object": "chat.completion", "model": self.model, "choices": [choice], "usage": usage}
        ).encode()


@pytest.fixture
def model() -> Iterator[FakeModel]:
    fake = FakeModel()

    class Answers(Handler):
        def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
            body = self.read_json()
            if self.path == "/hook":
                fake.events.append(body)
                return self.answer(200, b"{}")
            fake.keys.add(self.headers.get("authorization"))
            return self.answer(503, b'{"error": {}}') if fake.is_down else self.answer(200, fake.completion())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    fake.port = server.server_port
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


CONFIG = """
allow_private = true
[upstreams]
"api.openai.com" = "http://127.0.0.1:{port}"
[[canary]]
name = "capital"
calls = ["pinned.har"]
key_env = "CANARY_KEY"
references = 1
baseline = 40
times = 41
webhook = "http://127.0.0.1:{port}/hook"
[[canary]]
name = "empty"
"""


def pinned_file(home: Path) -> None:
    """A recording of another program with one call, whose key is its own."""
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "capital of France?"}]}
    answer = FakeModel().completion().decode()
    request = {
        "method": "POST",
        "url": "https://api.openai.com/v1/chat/completions",
        "httpVersion": "HTTP/1.1",
        "headers": [
            {"name": "Authorization", "value": "Bearer sk-of-whoever-recorded-it-0123456789"},
            {"name": "Content-Type", "value": "application/json"},
        ],
        "postData": {"mimeType": "application/json", "text": json.dumps(body)},
    }
    response = {
        "status": 200,
        "statusText": "OK",
        "httpVersion": "HTTP/1.1",
        "headers": [{"name": "Content-Type", "value": "application/json"}],
        "content": {"size": len(answer), "mimeType": "application/json", "text": answer},
    }
    entry = {"startedDateTime": "2026-11-01T10:00:00Z", "time": 5, "request": request, "response": response}
    (home / "pinned.har").write_text(json.dumps({"log": {"version": "1.2", "entries": [entry]}}))


def files_with_key(data: Path) -> list[Path]:
    """The files in which the key is."""
    return [file for file in data.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_model_that_begins_to_answer_otherwise_is_found(
    data: Path, database_url: str, model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = data.parent
    monkeypatch.setenv("CANARY_KEY", KEY)
    (home / "playhead.toml").write_text(CONFIG.format(port=model.port))
    pinned_file(home)
    line = ["canary", "capital", "--json"]
    async with running(data, "--database-url", database_url, "--config", str(home / "playhead.toml")):
        first = await run_playhead(home, *line)
        assert first.code == 3, first.err
        [told] = json.loads(first.out)["canaries"]
        assert (told["verdict"], told["asked"], told["reference_answers"].popitem()[1]) == ("cannot tell", 41, 1)
        assert model.keys == {f"Bearer {KEY}"}

        second = await run_playhead(home, *line, "--times", "60")
        assert second.code == 0, second.out
        model.is_down = True
        third = await run_playhead(home, *line)
        assert third.code == 3
        [told] = json.loads(third.out)["canaries"]
        assert (told["reason"], told["not_run"]) == ("nobody answered in this shot", 38)
        assert "was answered with 503" in told["problem"]

        model.is_down, model.says = False, "Lyon"
        budget = await run_playhead(home, *line, "--budget", "0.0005USD")
        [told] = json.loads(budget.out)["canaries"]
        assert told["not_run"] > 20
        assert told["problem"] == "the budget of 0.0005 USD was used up"
        assert (budget.code, told["verdict"], told["stage"]) == (1, "changed", "answers")
        [event] = model.events
        assert (event["event"], event["canary"]["name"]) == ("canary.changed", "capital")

        listed = await run_playhead(home, "canary", "--list")
        assert listed.code == 1
        assert "capital: changed: " in listed.out
        assert (await run_playhead(home, "canary", "capital", "--reset")).code == 0
        assert "no canary has asked anything yet" in (await run_playhead(home, "canary", "--list")).out
        empty = await run_playhead(home, "canary", "empty")
        assert empty.code == 125
        assert "there are no pinned calls: name recordings" in empty.err
        assert (await run_playhead(home, "canary", "nobody")).code == 125
        drift = await run_playhead(home, "drift", "--json")
        assert json.loads(drift.out)["variants"] == []
        runs = await run_playhead(home, "ls", "--label", "canary=capital", "--json")
        assert "canary-capital-" in runs.out
    assert not files_with_key(data)


def test_the_key_takes_the_place_of_the_redacted_one() -> None:
    redacted = "PLAYHEAD_" + "A" * 26
    headers = [["Authorization", f"Bearer {redacted}"], ["x-api-key", redacted], ["x-other", "1"]]
    sent, url = with_credentials(headers, f"https://x.example/v1?key={redacted}", "KEY")
    assert sent == [("Authorization", "Bearer KEY"), ("x-api-key", "KEY"), ("x-other", "1")]
    assert url == "https://x.example/v1?key=KEY"
    assert with_credentials(headers, "https://x.example/", None)[0] == [("x-other", "1")]


def test_calls_without_an_answer_end_a_shot() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    question = {"pin": "p", "method": "POST", "url": "https://api.openai.com/v1/chat/completions", "headers": []}
    question["body"] = base64.b64encode(b'{"model": "m", "messages": []}').decode()
    content = {"profiles": None, "budget_usd": 1, "questions": [question] * 9}
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        found = ask_all(content, client, None)
    assert (found["answers"], found["failed"], found["not_run"]) == ([], 3, 6)
    assert found["problem"] == "p was not answered: ConnectError: refused"
