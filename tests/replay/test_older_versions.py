"""Files that older versions exported still replay: the same requests, whatever rules for keys and secrets have changed since.

Each file in `older_versions` has the date of the version that recorded and exported it. The exchanges are invented. To add one,
record `REQUESTS` with that version and export the run.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from calls.model import Exchange, Request
from calls.redaction.redactor import Redactor
from replay.replay_options import ReplayOptions
from replay.replays import Replays, ReplaySource
from store.bundle.bundle import load_bundle
from tests.replay.strategies import PROFILES, body

FILES = sorted((Path(__file__).parent / "older_versions").glob("*.jsonl"))
ORIGIN = "http://api.openai.com"
JSON = ("Content-Type", "application/json")
COMMAND = "docker login -u me -p hX7qP2vKmZ9rTw4b && npm config set _auth bWU6aHVudGVyMi1sb25nZXI="
"""Both secrets were not redacted by any of these versions."""


def sent_request(method: str, path: str, content: Any, *headers: tuple[str, str]) -> Request:
    """A request as its client sends it: nothing is redacted."""
    data = json.dumps(content).encode() if content else b""
    common = (("Accept-Encoding", "identity"), ("Content-Length", str(len(data))), ("Host", "api.openai.com"))
    return Request(method=method, url=ORIGIN + path, headers=(*(common if data else ()), *headers), body=body(data))


TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": json.dumps({"cmd": COMMAND})}}
REQUESTS = (
    sent_request(
        "POST",
        "/v1/chat/completions",
        {
            "model": "gpt-4o",
            "stream": True,
            "messages": [
                {"role": "user", "content": "log in"},
                {"role": "assistant", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
            ],
        },
        JSON,
        ("Authorization", "Bearer sk-live-0123456789abcdef"),
    ),
    sent_request(
        "POST",
        "/mcp",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": "put",
                "arguments": {"secret_access_key": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12"},
            },
        },
        JSON,
        ("Accept", "application/json, text/event-stream"),
    ),
    sent_request("GET", "/items?token=hX7qP2vKmZ9rTw4bcc&page=2", None, ("Cookie", "sid=0123456789abcdef0123")),
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_file_of_an_older_version_answers_the_requests_that_it_was_recorded_with(file: Path) -> None:
    bundle = load_bundle(file)
    replays = Replays(
        redactor=Redactor(key=b"another machine's" * 2),
        profiles=PROFILES,
        options=ReplayOptions(),
        on_change=lambda _: None,
    )
    await replays.start([ReplaySource(replay="replay-1", bundle=bundle)])
    for request, recorded in zip(REQUESTS, sorted(bundle.exchanges, key=_start), strict=True):
        answer = await replays.answer(request, run=None, owner="127.0.0.1:1")
        assert answer is not None
        assert answer.status == 200, answer.body
        assert recorded.response is not None
        assert answer.body == recorded.response.body.data
    report: Any = replays.report("replay-1")
    assert (report["served"], report["missed"], report["unused"]) == (3, 0, 0)
    assert report["verdict"] == "right"


def _start(exchange: Exchange) -> int:
    return exchange.started_at


def test_there_is_a_file_of_each_format_that_was_exported() -> None:
    assert [file.stem for file in FILES] == ["2026-11-21", "2026-11-22", "2026-11-24", "2026-11-26"]
