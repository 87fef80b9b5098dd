"""The form of a refusal: that of the client's protocol where it reads no other, else a problem."""

import json
from typing import Any

import pytest

from calls.codec.json import dumps
from calls.model import Request
from replay.answer import Answer
from replay.forks.fork import blocked_answer
from tests.replay.sessions import answer_request, session_of
from tests.replay.strategies import exchange, ok, post

MCP = "https://mcp.example.com/mcp"


def _tool_call(amount: int, rpc_id: object = 7, **more: object) -> Request:
    params = {"name": "refund", "arguments": {"amount": amount}}
    message: Any = {"jsonrpc": "2.0", "id": rpc_id, "method": "tools/call", "params": params, **more}
    return post(MCP, dumps(message))


async def _miss_answer(request: Request) -> Answer:
    answer = await answer_request(session_of(exchange(_tool_call(1), ok(b"{}"))), request)
    assert answer.status == 424
    return answer


def _media_type(answer: Answer) -> str:
    return dict(answer.headers)["Content-Type"]


@pytest.mark.parametrize("rpc_id", [7, "a-7", 0])
async def test_a_client_of_json_rpc_gets_an_error_to_its_own_call(rpc_id: object) -> None:
    answer = await _miss_answer(_tool_call(2, rpc_id))
    body = json.loads(answer.body)
    assert _media_type(answer) == "application/json"
    assert (body["jsonrpc"], body["id"]) == ("2.0", rpc_id)
    error = body["error"]
    assert isinstance(error["code"], int)
    assert "it differs at /body/params/arguments/amount (recorded 1, now 2)" in error["message"]
    assert error["data"]["code"] == "no_match"
    # And all that other programs look for.
    assert error["type"] == "replay_miss"
    assert body["playhead"]["nearest"]["step"] == 1
    assert (body["status"], body["type"]) == (424, "urn:playhead:miss:no_match")
    assert dict(answer.headers)["Content-Length"] == str(len(answer.body))


@pytest.mark.parametrize(
    "request_",
    [
        _tool_call(2, None),  # a notification has no answer
        _tool_call(2, 1.5),
        _tool_call(2, True, jsonrpc="1.0"),
        post(MCP, b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]'),
        post(MCP, b'{"jsonrpc": "2.0", "id": 1, "result": {}}'),
        post(MCP, b'{"jsonrpc": "2.0", "id": 1, "method": "ping"'),
        post(MCP, b""),
    ],
)
async def test_all_others_get_a_problem(request_: Request) -> None:
    answer = await _miss_answer(request_)
    assert _media_type(answer) == "application/problem+json"
    assert json.loads(answer.body)["error"]["code"] == "no_match"


def test_a_tool_that_a_fork_blocks_says_so_to_its_caller() -> None:
    answer = blocked_answer(_tool_call(2), run="run-1", fork="fork-1")
    body = json.loads(answer.body)
    assert (answer.status, body["id"], body["error"]["type"]) == (403, 7, "fork_blocked")
    assert "so it was not sent" in body["error"]["message"]


async def test_head_has_the_length_of_what_it_does_not_get() -> None:
    answer = await _miss_answer(Request(method="HEAD", url=MCP))
    assert answer.body == b""
    assert int(dict(answer.headers)["Content-Length"]) > 0
