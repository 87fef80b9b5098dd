"""Answers without a recording: which request gets which, what a failed test says, and what official SDKs make of the bytes."""

import json
import subprocess
from pathlib import Path

import pytest

from proxy.errors import Failure
from proxy.fixtures.prompt_text import PromptText, last_message_text, prompt_text, read_condition
from tests.clients.suite_directory import SuiteDirectory
from tests.frameworks.environments import MISTRAL, python

SDKS = Path(__file__).with_name("programs") / "stand_in_sdks.py"

ASKING = """
import json, time
import playhead, pytest, requests

CHAT = "https://api.openai.com/v1/chat/completions"

def ask(text, model="gpt-5", url=CHAT, **more):
    said = requests.post(url, json={"model": model, "messages": [{"role": "user", "content": text}], **more}, timeout=60)
    if said.status_code != 200:
        return said.status_code
    return said.json()["choices"][0]["message"]["content"] if "completions" in url else said.json()

without_recording = pytest.mark.playhead(recording=False)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_official_sdks_read_the_answers(suite: SuiteDirectory) -> None:
    suite.write("test_sdks.py", SDKS.read_text())
    # While all SDKs are imported, the collector would look again and again at what stays.
    suite.write("conftest.py", "import gc\ngc.disable()\n")
    ran = suite.pytest("-q", AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none")
    assert ran.code == 0, ran.out
    assert ran.counts["passed"] > 100
    assert not suite.upstream_requests


@pytest.mark.slow
def test_mistral_s_sdk_reads_them_in_an_environment_of_its_own(suite: SuiteDirectory) -> None:
    interpreter = python(*MISTRAL)
    suite.write(
        "test_mistral.py",
        """
        import json
        import playhead, pytest
        from mistralai.client import Mistral
        from mistralai.client.errors import SDKError

        USER = [{"role": "user", "content": "any?"}]
        CALLS = [{"name": "search", "arguments": {"q": "ü"}}, {"name": "note", "arguments": {}}]

        @pytest.mark.playhead(recording=False)
        @pytest.mark.parametrize("stream", [False, True])
        @pytest.mark.parametrize("said", [{"text": "Three."}, {"tool_calls": CALLS}])
        def test_said(said, stream):
            playhead.answer(**said)
            sdk = Mistral(api_key="none")
            asked = {"model": "mistral-large-latest", "messages": USER}
            if stream:
                choices = [event.data.choices[0].delta for event in sdk.chat.stream(**asked)]
            else:
                choices = [sdk.chat.complete(**asked).choices[0].message]
            text = "".join(one.content or "" for one in choices)
            calls = [(c.function.name, json.loads(c.function.arguments)) for one in choices for c in one.tool_calls or ()]
            assert text == said.get("text", "")
            assert calls == [(c["name"], c["arguments"]) for c in said.get("tool_calls", ())]

        @pytest.mark.playhead(recording=False)
        @pytest.mark.parametrize("stream", [False, True])
        @pytest.mark.parametrize("said", [{"text": "Three."}, {"tool_calls": CALLS}])
        def test_a_conversation(said, stream):
            playhead.answer(**said)
            conversations = Mistral(api_key="none").beta.conversations
            asked = {"model": "mistral-large-latest", "inputs": "any?"}
            if stream:
                events = [event.data for event in conversations.start_stream(**asked)]
                assert events[-1].type == "conversation.response.done"
                outputs = [one for one in events if one.type in ("message.output.delta", "function.call.delta")]
            else:
                outputs = conversations.start(**asked).outputs
            text = "".join(one.content for one in outputs if one.type.startswith("message"))
            calls = [(c.name, json.loads(c.arguments)) for c in outputs if c.type.startswith("function")]
            assert text == said.get("text", "")
            assert calls == [(c["name"], c["arguments"]) for c in said.get("tool_calls", ())]

        @pytest.mark.playhead(recording=False)
        def test_error():
            playhead.answer(error=429, message="Not today.")
            with pytest.raises(SDKError) as raised:
                Mistral(api_key="none").chat.complete(model="mistral-large-latest", messages=USER)
            assert raised.value.status_code == 429 and "Not today." in str(raised.value)
        """,
    )
    command = [str(interpreter), "-m", "pytest", "-q", "-p", "pytest_playhead", "-p", "no:cacheprovider"]
    # What is imported here alone would be compiled each time.
    environment = suite.environment(PYTHONDONTWRITEBYTECODE="", PLAYHEAD_COMMAND=suite.forked_playhead)
    ran = subprocess.run(command, cwd=suite.directory, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "9 passed" in ran.stdout


def test_answers_come_in_their_order_or_by_what_they_expect(suite: SuiteDirectory) -> None:
    suite.write(
        "test_order.py",
        ASKING
        + """
@without_recording
def test_in_order(playhead_run):
    for text in ("one", "two"):
        playhead.answer(text=text)
    assert [ask("a"), ask("b")] == ["one", "two"]
    assert playhead_run.calls.path == ["gpt-5", "gpt-5"]
    assert playhead_run.tokens.output == 2

@without_recording
def test_by_what_they_expect():
    playhead.answer(text="large", model="gpt-5*")
    playhead.answer(text="note", prompt={"contains": "note", "lacks": "draft"}, times=2)
    playhead.answer(text="number", prompt={"matches": r"T-\\d+$"})
    playhead.answer(body={"total": 3}, path="/v2/tickets", host="tickets.*", method="get", times=None)
    playhead.answer(text="other", times=None)
    assert ask("a note", model="small") == "note"
    assert ask("a draft note", model="small") == "other"
    assert ask("about T-12", model="small") == "number"
    assert requests.get("https://tickets.example.com/v2/tickets?q=1", timeout=60).json() == {"total": 3}
    assert requests.get("https://tickets.example.com/v2/tickets?q=2", timeout=60).json() == {"total": 3}
    assert ask("a note", model="small") == "note"
    assert ask("a note", model="gpt-5-mini") == "large"

@without_recording
def test_a_conversation_by_its_last_message():
    playhead.answer(text="second", last_message="then?")
    playhead.answer(text="first", last_message="now?")
    assert ask("now?") == "first"
    more = [{"role": "user", "content": "now?"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "then?"}]
    assert ask("", messages=more) == "second"

@pytest.fixture
def expected_answer():
    playhead.answer(text="from a fixture")

@without_recording
def test_a_fixture_gives_them(expected_answer):
    assert ask("a") == "from a fixture"

@without_recording
def test_in_a_block_of_a_run():
    playhead.answer(tool_calls=[{"name": "search", "arguments": {"q": 1}}])
    with playhead.run("any") as run:
        assert ask("a") is None
    assert run.calls.tool("search").arguments == {"q": 1}

@without_recording
def test_a_delay_and_a_pace():
    playhead.answer(text="late", delay=0.4)
    playhead.answer(text="slow", pace=0.1)
    started = time.monotonic()
    assert ask("a") == "late"
    assert 0.4 <= time.monotonic() - started < 60
    started = time.monotonic()
    with requests.post(CHAT, json={"model": "m", "messages": [], "stream": True}, stream=True, timeout=60) as said:
        lines = [line for line in said.iter_lines() if line]
    assert time.monotonic() - started >= 0.1 * len(lines)
    assert lines[-1] == b"data: [DONE]"

@without_recording
def test_broken_answers():
    playhead.answer(text="x" * 999, error="cut")
    playhead.answer(text="x", error="malformed")
    playhead.answer(error="timeout")
    playhead.answer(text="teapot", status=418, headers={"x-kind": "pot"})
    playhead.answer(error=503, message="busy", retry_after=7)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        ask("a")
    with pytest.raises(requests.exceptions.JSONDecodeError):
        ask("a")
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(CHAT, json={"model": "m", "messages": []}, timeout=(60, 0.3))
    said = requests.post(CHAT, json={"model": "m", "messages": []}, timeout=60)
    assert (said.status_code, said.headers["x-kind"], said.headers["playhead"].split(";")[0]) == (418, "pot", "stand-in")
    said = requests.post(CHAT, json={"model": "m", "messages": []}, timeout=60)
    assert (said.status_code, said.headers["retry-after"], said.json()["error"]["message"]) == (503, "7", "busy")

@pytest.mark.playhead(recording=False, allow_unused=True)
def test_one_that_is_not_needed():
    playhead.answer(text="never")
""",
    )
    ran = suite.pytest("-q", "--record-mode=all")
    assert ran.counts == {"passed": 8}, ran.out
    assert not suite.upstream_requests
    assert not (suite.directory / "recordings").exists()


def test_what_nobody_expects_is_missed_and_what_nobody_asks_for_is_named(suite: SuiteDirectory) -> None:
    suite.write(
        "test_wrong.py",
        ASKING
        + """
@without_recording
def test_unexpected():
    playhead.answer(text="a", model="claude-*")
    playhead.answer(text="b", prompt={"contains": "refund", "lacks": "x"})
    assert ask("parcel") == 424

@without_recording
def test_too_many():
    playhead.answer(text="a")
    ask("a"), ask("b")

@without_recording
def test_none_given():
    ask("a")

@without_recording
def test_no_form():
    playhead.answer(text="a")
    ask("x", url="https://api.openai.com/v1/embeddings")

@without_recording
def test_no_calls_in_a_completion():
    playhead.answer(tool_calls=[{"name": "f"}])
    ask("x", url="https://api.openai.com/v1/completions")

@pytest.mark.parametrize("wrong", [
    {}, {"text": "a", "body": {}}, {"error": 200}, {"error": 500, "text": "a"}, {"error": "slow"}, {"text": "a", "times": 0},
    {"text": "a", "prompt": {"matches": "("}}, {"text": "a", "prompt": {}}, {"text": "a", "delay": -1},
    {"tool_calls": [{"arguments": {}}]}, {"body": 1, "status": 99}, {"body": 1, "headers": {"a b": "c"}},
])
@without_recording
def test_invalid(wrong):
    playhead.answer(**wrong)

@pytest.mark.playhead(recording=False, file="x.jsonl")
def test_both():
    pass

def test_unmarked():
    playhead.answer(text="a")
""",
    )
    ran = suite.pytest()
    assert ran.counts == {"failed": 18, "error": 1}, ran.out
    for words in (
        "0 answered, 1 missed, 2 unused; the test gives 2 answers",
        "request 1, unexpected: POST https://api.openai.com/v1/chat/completions",
        "no answer that is left expects it: answer 1 (test_wrong.py:17) expects model claude-*, not gpt-5; answer 2"
        " (test_wrong.py:18) expects a prompt that contains 'refund' and lacks 'x'.",
        "  answer 2 (test_wrong.py:18), for a prompt that contains 'refund' and lacks 'x'",
        "every answer of the test was already given (1).",
        "the test has given no answer.",
        "answer 1 (test_wrong.py:32) expects it and cannot answer it: Playhead has no form for an answer with a text to"
        " embeddings of openai_embeddings; give results=[[0.1, 0.2]], a vector for each input or its body instead.",
        "Playhead has no form for an answer with tool calls to text_completion of openai_completions; give a text or its body"
        " instead.",
        "it says nothing: give text, tool_calls, results, body or error",
        "error=200 is not an HTTP status from 400 to 599",
        "Object missing required field `name`",
        "its mark has a file and recording=False; leave one of them out",
        "no test with @pytest.mark.playhead(recording=False) is running",
        "error='slow' is not a status, 'timeout', 'cut' or 'malformed'",
        "prompt has an invalid regular expression '('",
    ):
        assert words in ran, f"{words}\n\n{ran.out[-9000:]}"
    assert not suite.upstream_requests


def test_a_test_with_a_recording_gives_no_answers(suite: SuiteDirectory) -> None:
    suite.write("test_both.py", ASKING + "@pytest.mark.playhead\ndef test_it():\n    playhead.answer(text='a')\n")
    ran = suite.pytest("--record-mode=once")
    assert ran.counts == {"failed": 1}
    assert "this test is answered from its recording: to give its answers yourself" in ran
    ran = suite.pytest()
    assert "or give its answers in the test: @pytest.mark.playhead(recording=False), docs/pytest.md" in ran


@pytest.mark.parametrize(
    ("request_body", "whole", "last"),
    [
        (
            {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
            "s\nu",
            "u",
        ),
        ({"instructions": "s", "input": "u", "text": {"format": {"type": "json"}}}, "s\nu", "u"),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]}]}, "u", "u"),
        ({"system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]}]}, "s\nu", "u"),
        ({"contents": [{"parts": [{"text": "u"}]}], "tools": [{"name": "t"}]}, "u", "u"),
        ({"request": {"contents": [{"parts": [{"text": "u"}]}]}}, "u", "u"),
        ({"chat_history": [{"message": "h"}], "message": "u"}, "h\nu", "u"),
        ({"prompt": "u", "max_tokens": 3}, "u", "u"),
        ("plain", "plain", "plain"),
        (None, "", ""),
        ([[["deep"]]], "deep", "deep"),
    ],
)
def test_the_text_of_a_prompt(request_body: object, whole: str, last: str) -> None:
    body = json.loads(json.dumps(request_body))
    assert prompt_text(body) == whole
    assert last_message_text(body) == last


def test_conditions_on_a_text() -> None:
    every = PromptText(contains=("a", "b"), lacks=("c",), matches="^a")
    assert [text for text in ("ab", "ba", "abc", "a") if every.is_met(text)] == ["ab"]
    assert read_condition("a", "prompt").is_met("cab")
    with pytest.raises(Failure, match="has no condition"):
        read_condition(PromptText(), "prompt")
