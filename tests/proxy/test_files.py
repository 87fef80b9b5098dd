"""Recordings of other programs, as a person brings them: imported, replayed to real clients, taken out again."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.proxy.test_cli import Desk, EndedCommand, bundle_file
from tests.store.exchanges import exchange
from tests.support.service import command, running

CHAT = "https://api.openai.com/v1/chat/completions"
QUESTION = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What is 1 + 2?"}]}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-mini-2024-07-18",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "It is 3."}}],
}
STREAM = "".join(
    f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', 'choices': [{'index': 0, 'delta': delta}]})}\n\n"
    for delta in ({"role": "assistant", "content": "Still"}, {"content": " 3."})
)

AGENT = """\
import httpx, openai
client = openai.OpenAI(api_key="none", max_retries=0)
asked = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What is 1 + 2?"}]}
print(client.chat.completions.create(**asked).choices[0].message.content)
print("".join(chunk.choices[0].delta.content for chunk in client.chat.completions.create(**asked, stream=True)))
print(httpx.get("https://tools.example.com/v1/time?zone=utc", timeout=60).json())
"""


def cassette(place: Path, secret: str = "DUMMY") -> Path:
    """As VCR.py left it: one answer, one stream, one call of a tool that it unpacked, and one that nobody can read."""
    whole: dict[str, dict[str, object]] = {
        "request": {
            "method": "POST",
            "uri": CHAT,
            "headers": {"authorization": [f"Bearer {secret}"], "content-type": ["application/json"]},
            "body": json.dumps(QUESTION),
        },
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {"content-type": ["application/json"], "Transfer-Encoding": ["chunked"]},
            "body": {"string": json.dumps(ANSWER).encode()},
        },
    }
    stream = {
        "request": {**whole["request"], "body": json.dumps({**QUESTION, "stream": True})},
        "response": {
            **whole["response"],
            "headers": {"content-type": ["text/event-stream"]},
            "body": {"string": STREAM + "data: [DONE]\n\n"},
        },
    }
    tool = {
        "request": {"method": "GET", "uri": "https://tools.example.com/v1/time?zone=utc", "headers": {}, "body": None},
        "response": {
            "status": {"code": 200, "message": "OK"},
            "headers": {"content-type": ["application/json"], "content-encoding": ["gzip"], "content-length": ["7"]},
            "body": {"string": '{"now": "noon"}'},
        },
    }
    broken = {"request": {"method": "GET", "uri": "nowhere"}, "response": {"status": {"code": 200}}}
    place.write_text(yaml.safe_dump({"interactions": [whole, broken, stream, tool], "version": 1}))
    return place


def archive(place: Path) -> Path:
    """As a browser would have saved the tool's call."""
    entry = {
        "startedDateTime": "2026-07-24T12:00:00.000Z",
        "time": 12.5,
        "request": {
            "method": "GET",
            "url": "https://tools.example.com/v1/time?zone=utc",
            "httpVersion": "h2",
            "headers": [{"name": ":method", "value": "GET"}],
        },
        "response": {
            "status": 200,
            "statusText": "",
            "httpVersion": "h2",
            "headers": [{"name": "content-type", "value": "application/json"}],
            "content": {"size": 15, "mimeType": "application/json", "text": '{"now": "noon"}'},
        },
        "timings": {"send": 0, "wait": 10, "receive": 2.5},
    }
    place.write_text(json.dumps({"log": {"version": "1.2", "entries": [entry]}}))
    return place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(module_data: Path, module_database_url: str) -> AsyncIterator[Desk]:
    """A service for all: each test names its runs for itself."""
    async with running(module_data, "--database-url", module_database_url):
        yield Desk(data=module_data)


async def playhead(data: Path, *arguments: str | Path) -> EndedCommand:
    return await Desk(data=data)(str(arguments[0]), *arguments[1:])


@pytest.fixture
def agent(tmp_path: Path, programs: Path) -> list[str]:
    (tmp_path / "agent.py").write_text(AGENT)
    return [str(programs / "python"), str(tmp_path / "agent.py")]


SAID = ["It is 3.", "Still 3.", "{'now': 'noon'}"]


async def test_a_cassette_answers_real_clients_as_it_lies(tmp_path: Path, data: Path, agent: list[str]) -> None:
    done = await playhead(data, "replay", cassette(tmp_path / "talk.yaml"), "--", *agent)
    assert (done.out.splitlines(), done.code) == (SAID, 0), done.err
    assert "3 served, 0 missed" in done.err


async def test_a_fixture_of_llm_fixture_replay_answers_the_sdk_whose_call_it_is(
    tmp_path: Path, data: Path, agent: list[str]
) -> None:
    result = {"hash": "0" * 64, "args_repr": "()", "kwargs_repr": repr(QUESTION), "response_json": ANSWER}
    (tmp_path / "llm.jsonl").write_text(json.dumps(result) + "\n")
    (tmp_path / "agent.py").write_text("\n".join(AGENT.splitlines()[:4]))
    done = await playhead(data, "replay", tmp_path / "llm.jsonl", "--", *agent)
    assert (done.out.splitlines(), done.code) == (SAID[:1], 0), done.err


@pytest.mark.slow
async def test_an_imported_cassette_is_a_run_like_any_other(tmp_path: Path, desk: Desk, agent: list[str]) -> None:
    file = cassette(tmp_path / "talk.yaml", secret="sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")

    command = await desk("import", file)
    assert command.out.strip() == f"{file}: run talk, 3 exchanges imported"
    assert "skipped interaction 2: 'nowhere' is not the URL of an HTTP request" in command.err
    assert "no chunk boundaries" in command.err
    assert (await desk("import", file)).out.strip() == f"{file}: run talk, was here already"

    [run] = json.loads((await desk("import", "--json", "--run", "other", file)).out)
    assert (run["id"], run["imported"], run["format"]) == ("other", 3, "vcr")
    assert [one["place"] for one in run["skipped"]] == ["interaction 2"]

    shown = json.loads((await desk("show", "talk", "--json")).out)
    first = shown["items"][0]
    assert (shown["complete"], first["text"], first["first_byte_ms"], first["duration_ms"]) == (
        True,
        "It is 3.",
        None,
        None,
    )
    assert [call["streamed"] for call in shown["items"]] == [False, True, False]

    out = tmp_path / "talk.jsonl"
    assert (await desk("export", "talk", "-o", out)).code == 0
    assert b"sk-proj" not in out.read_bytes()
    done = await desk("replay", "talk", "--", *agent)
    assert (done.out.splitlines(), done.code) == (SAID, 0), done.err


@pytest.mark.slow
async def test_what_goes_out_in_another_form_comes_in_and_answers_the_same(
    tmp_path: Path, desk: Desk, agent: list[str]
) -> None:
    await desk("import", cassette(tmp_path / "talk2.yaml"))
    for form, file in (("vcr", tmp_path / "again.yaml"), ("har", tmp_path / "again2.har")):
        answer = json.loads((await desk("export", "talk2", "--format", form, "-o", file, "--json")).out)
        assert (answer["exchanges"], answer["skipped"], answer["format"]) == (3, [], form)
        done = await desk("replay", file, "--", *agent)
        assert (done.out.splitlines(), done.code) == (SAID, 0), done.err
    refused = await desk("import", file, "--run", "talk2")
    assert refused.code == 125
    assert "import it under another id: --run ID" in refused.err


@pytest.mark.slow
async def test_several_files_are_several_runs_and_one_bad_file_does_not_stop_the_others(
    tmp_path: Path, desk: Desk
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    bad = tmp_path / "bad.yaml"
    bad.write_text("nonsense\n")
    done = await desk("import", cassette(tmp_path / "a" / "x.yaml"), bad, archive(tmp_path / "b" / "x.har"))
    assert done.code == 125
    assert [line.split("run ")[1] for line in done.out.splitlines()] == [
        "a.x, 3 exchanges imported",
        "b.x, 1 exchange imported",
    ]
    assert "2 of 3 files were imported" in done.err
    [call] = json.loads((await desk("show", "b.x", "--json")).out)["items"]
    assert (call["first_byte_ms"], call["duration_ms"]) == (10.0, 12.5)


@pytest.mark.slow
async def test_a_secret_that_only_the_rules_of_today_know_keeps_a_run_in_the_store(tmp_path: Path, desk: Desk) -> None:
    await desk("import", bundle_file(tmp_path / "run.jsonl", [exchange(b'{"badge": "0815-4711-abc"}', b"{}")]))
    out = tmp_path / "out"
    rules = tmp_path / "playhead.toml"
    rules.write_text(
        '[[profile]]\nname = "badges/1"\nmatch = { host = "api.example.com" }\nkey = ["$.x"]\nsecret = ["$.badge"]\n'
    )
    today = ("run-1", "--config", rules)
    for form in ("bundle", "vcr", "har"):
        refused = await desk("export", *today, "--format", form, "-o", out)
        assert refused.code == 125
        assert "1/request/body/badge (a value that is secret by its name or a profile)" in refused.err
        assert "0815" not in refused.err + refused.out
        assert not out.exists()
        assert not out.with_name(".out.part").exists()
    to_stdout = await desk("export", *today)
    assert (to_stdout.code, to_stdout.out) == (125, "")
    for consent in (["--allow-secret", "1/request/body/*"], ["--allow-secret", "*"]):
        assert (await desk("export", *today, "-o", out, *consent)).code == 0
        out.unlink()


@pytest.mark.slow
async def test_headers_that_a_recorder_left_out_can_be_given(tmp_path: Path, desk: Desk, agent: list[str]) -> None:
    (tmp_path / "agent.py").write_text(
        'import httpx; print(httpx.post("https://api.anthropic.com/v1/messages", json={"model": "m", "messages": []},'
        ' headers={"anthropic-version": "2023-06-01"}).status_code)'
    )
    answer: dict[str, dict[str, object]] = {
        "request": {"method": "POST", "uri": "https://api.anthropic.com/v1/messages", "headers": {}},
        "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": "{}"}},
    }
    answer["request"]["body"] = '{"model": "m", "messages": []}'
    file = tmp_path / "bare.yaml"
    file.write_text(yaml.safe_dump({"interactions": [answer]}))
    await desk("import", file)
    missed = await desk("replay", "bare", "--", *agent)
    assert (missed.out.strip(), missed.code) == ("424", 1)
    assert "anthropic-version" in missed.err
    assert (await desk("import", file, "--run", "given", "--header", "anthropic-version: 2023-06-01")).code == 0
    hit = await desk("replay", "given", "--", *agent)
    assert (hit.out.strip(), hit.code) == ("200", 0)


@pytest.mark.parametrize(
    "arguments", [["import", "--run", "x", "a", "b"], ["import", "--header", "x", "a"], ["export", "x", "--json"]]
)
async def test_a_wrong_command_line_exits_with_2(tmp_path: Path, data: Path, arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command(*arguments), cwd=tmp_path, stderr=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 2
