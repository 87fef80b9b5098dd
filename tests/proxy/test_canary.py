"""The canary as a person uses it: a model behind HTTP that begins to answer otherwise, shots by hand, verdicts, a webhook."""

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from calls.model import Body, Request
from proxy.canary.ask import ask_all
from proxy.canary.canary_settings import CanarySettings, read_model_url
from proxy.canary.credentials import with_credentials
from proxy.canary.pinned_calls import PinnedCall, require_one_origin
from proxy.canary.schedule import repeat_canaries
from proxy.canary.traffic import look_at_traffic
from proxy.demo.servers import Handler
from proxy.errors import Failure
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
        [result] = json.loads(first.out)["canaries"]
        assert (result["verdict"], result["asked"], result["reference_answers"].popitem()[1]) == ("cannot tell", 41, 1)
        assert model.keys == {f"Bearer {KEY}"}

        second = await run_playhead(home, *line, "--times", "60")
        assert second.code == 0, second.out
        model.is_down = True
        third = await run_playhead(home, *line)
        assert third.code == 3
        [result] = json.loads(third.out)["canaries"]
        assert (result["reason"], result["not_run"]) == ("nobody answered in this shot", 38)
        assert "was answered with 503" in result["problem"]

        model.is_down, model.says = False, "Lyon"
        budget = await run_playhead(home, *line, "--budget", "0.0005USD")
        [result] = json.loads(budget.out)["canaries"]
        assert result["not_run"] > 20
        assert result["problem"] == "the budget of 0.0005 USD was used up"
        assert (budget.code, result["verdict"], result["stage"]) == (1, "changed", "answers")
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


def pinned_call(url: str, number: int = 1, *, has_key: bool = True) -> PinnedCall:
    key = "PLAYHEAD_" + "A" * 26
    headers = (("Authorization", f"Bearer {key}"),) if has_key else (("x-other", "1"),)
    request = Request(method="POST", url=url, headers=headers, body=Body(data=b"{}", size=2))
    return PinnedCall(name=f"ticket-904#{number}", key="sha256:0", model="m", request=request)


@pytest.mark.parametrize(
    "other",
    [
        "https://api.openai.com.evil.example/v1/chat/completions",
        "https://api.openai.com:8443/v1/chat/completions",
        "http://api.openai.com/v1/chat/completions",
    ],
)
def test_the_key_goes_to_no_host_that_somebody_added_to_a_pinned_run(other: str) -> None:
    own = "https://api.openai.com/v1/chat/completions"
    with pytest.raises(Failure, match=r"nothing was asked: .*ticket-904#1.*ticket-904#2"):
        require_one_origin([pinned_call(own), pinned_call(other, 2)])
    require_one_origin([pinned_call(own), pinned_call("https://api.openai.com/v1/responses", 2)])
    require_one_origin([pinned_call(own), pinned_call(other, 2, has_key=False)])


@pytest.mark.parametrize("fails", [False, True])
def test_a_key_that_a_provider_repeats_is_not_reported(fails: bool) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        told = f"Incorrect API key provided: {request.headers['authorization']}"
        if fails:
            raise httpx2.RemoteProtocolError(told)
        return httpx2.Response(401, text=told)

    question = {
        "pin": "p",
        "method": "POST",
        "url": "https://api.openai.com/v1/chat/completions",
        "headers": [["authorization", "Bearer PLAYHEAD_" + "A" * 26]],
        "body": base64.b64encode(b"{}").decode(),
    }
    content = {"questions": [question], "profiles": None, "budget_usd": 1, "key_variable": "K"}
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        answers = ask_all(content, client, {"K": KEY})
    assert "Incorrect API key provided" in answers["problem"]
    assert KEY not in json.dumps(answers)


def test_embeddings_and_a_judge_give_distances_within_the_budget() -> None:
    said = iter(["It is Paris.", "Paris", *["Lyon"] * 5])
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(f"{request.url.path} {request.headers.get('authorization')}")
        body = json.loads(request.content)
        if request.url.path == "/v1/embeddings":
            vectors = [[0.0, 1.0] if text == "Lyon" else [1.0, len(text) / 100] for text in body["input"]]
            data = [{"index": place, "embedding": one} for place, one in enumerate(vectors)]
            return httpx2.Response(200, json={"data": data, "model": "e", "usage": {"prompt_tokens": 5}})
        text = next(said)
        if body["model"] == "judge":
            text = json.dumps({"verdict": "fail", "reason": "another city", "quote": "Lyon"})
        return httpx2.Response(200, json=json.loads(FakeModel(says=text).completion()))

    question: dict[str, Any] = {"pin": "p", "method": "POST", "headers": []}
    question["url"] = "https://api.openai.com/v1/chat/completions"
    question["body"] = base64.b64encode(b'{"model": "m", "messages": []}').decode()
    embedding = {"url": "https://e.example/v1", "model": "text-embedding-3-small", "key_variable": "E"}
    judged = {"url": "https://j.example/v1", "model": "judge", "key_variable": "K"}
    content: dict[str, Any] = {
        "profiles": None,
        "key_variable": "K",
        "budget_usd": 1,
        "embedding": embedding,
        "judged": None,
    }
    content["questions"] = [question | {"references": ["It is Paris."]}] * 3
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        found = ask_all(content, client, {"E": "key-e"})
        distances = [one["answer"]["embedding"] for one in found["answers"]]
        # The same words need no embedding, and the reference is embedded once.
        assert (distances[0], distances[2], found["sent"]) == (0.0, 1.0, 5)
        assert 0 < distances[1] < 0.1
        assert [one["number"] for one in found["answers"]] == [1, 2, 4]
        assert asked.count("/v1/embeddings Bearer key-e") == 2
        content |= {"judged": judged, "embedding": None, "questions": content["questions"][:1]}
        found = ask_all(content, client, {})
        assert found["answers"][0]["answer"]["judged"] == 1.0
        content["embedding"], content["judged"] = {**embedding, "url": "https://j.example"}, None
        content["questions"][0] |= {"references": ["Rome"]}
        assert "gave no distance" in ask_all(content, client, {})["problem"]


class FakeTraffic:
    """The part of the store's REST interface that says what ordinary traffic shows."""

    def __init__(self, items: list[dict[str, Any]], before: int, since: int) -> None:
        self.items, self.before, self.since = items, before, since

    def get(self, path: str, **query: Any) -> Any:
        assert (path, query.pop("model")) == ("/drift", "m")
        differing = self.since if "since" in query else self.before
        return {"items": self.items, "answers": [{"asked_again": 100, "answered_otherwise": differing}]}


def change(kind: str, *, replaced: bool = True) -> dict[str, Any]:
    sides = [{"model_returned": f"m-{n}", "system_fingerprint": f"fp-{n}"} for n in (1, 2)]
    return {
        "kind": kind,
        "replaced": replaced,
        "from": sides[0],
        "to": sides[1],
        "first_at": "2026-11-01T10:00:00Z",
        "examples": {"after": ["x"]},
    }


@pytest.mark.parametrize(
    ("traffic", "reason", "hints"),
    [
        (FakeTraffic([], 1, 1), None, []),
        (FakeTraffic([change("model")], 0, 0), "m-2 answers to m since", []),
        (
            FakeTraffic([change("fingerprint"), change("model", replaced=False)], 0, 0),
            None,
            ["the fingerprint fp-2 of m"],
        ),
        (FakeTraffic([], 2, 40), None, ["40.0% of 100 repeated requests to m were answered otherwise, where 2.0%"]),
    ],
)
def test_ordinary_traffic_shows_a_change_or_hints_at_one(
    traffic: FakeTraffic, reason: str | None, hints: list[str]
) -> None:
    known = {"verdict": "unchanged", "began_at": "2026-10-01T00:00:00Z", "rules": {"false_alarm": 0.05}}
    found, said = look_at_traffic(traffic, ["m", ""], known)  # type: ignore[arg-type] # the part of Api that is used
    assert (found["reason"] if found else "").find(reason or "") >= 0
    assert (found is None) == (reason is None)
    assert len(said) == len(hints)
    assert all(words in one for words, one in zip(hints, said, strict=True))
    assert look_at_traffic(traffic, ["m"], None) == (None, [])  # type: ignore[arg-type]


class Over(Exception):
    """The time that a test looks at is over."""


async def test_up_asks_each_canary_when_its_time_has_come() -> None:
    canaries = [CanarySettings(name=name, every=every) for name, every in (("a", "2h"), ("b", None), ("c", "1d"))]
    slept: dict[float, int] = {}
    said: list[str] = []
    ran: list[str] = []

    async def sleep(seconds: float) -> None:
        slept[seconds] = slept.get(seconds, 0) + 1
        if slept[seconds] > 2:
            raise Over

    async def run(command: Sequence[str]) -> tuple[int, str]:
        ran.append(command[-1])
        return (1, "a: changed") if len(ran) == 1 else (0, "unchanged")

    with pytest.raises(ExceptionGroup):
        await repeat_canaries(canaries, lambda name: ["canary", name], said.append, sleep, run)
    # Each shot comes after its interval, and one without an interval never.
    assert set(slept) == {2 * 3600, 24 * 3600}
    assert ran.count("a") == 2
    assert "b" not in ran
    assert said == ["canary a: a: changed"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://api.openai.com/v1/text-embedding-3-small", ("https://api.openai.com/v1", "text-embedding-3-small")),
        ("http://127.0.0.1:8000/v1/BAAI/bge-small", ("http://127.0.0.1:8000/v1", "BAAI/bge-small")),
        ("http://127.0.0.1:8000/api/bge", ("http://127.0.0.1:8000/api", "bge")),
        ("text-embedding-3-small", None),
        ("https://api.openai.com/v1/", None),
    ],
)
def test_a_model_is_named_with_its_url(text: str, expected: tuple[str, str] | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="is not URL/MODEL"):
            read_model_url(text)
    else:
        assert (read_model_url(text).url, read_model_url(text).model) == expected


@pytest.mark.parametrize(
    "base", ["http://host:port", "http://host:99999", "http://ho\nst", "http://host\0", "http://[::1"]
)
def test_a_url_that_no_client_takes_is_refused_at_the_start(base: str) -> None:
    """Else the first change of a model would end in an error of the client, and nobody would be told."""
    with pytest.raises(ValueError, match="is not a URL of an API or a webhook"):
        read_model_url(f"{base}/v1/model")


def test_calls_without_an_answer_end_a_shot() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    question = {"pin": "p", "method": "POST", "url": "https://api.openai.com/v1/chat/completions", "headers": []}
    question["body"] = base64.b64encode(b'{"model": "m", "messages": []}').decode()
    content = {"profiles": None, "key_variable": "K", "budget_usd": 1, "questions": [question] * 9}
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        found = ask_all(content, client, {})
    assert (found["answers"], found["failed"], found["not_run"]) == ([], 3, 6)
    assert found["problem"] == "p was not answered: ConnectError: refused"
