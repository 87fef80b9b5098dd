"""JSON-RPC of a service that nothing is known of: ids are new each time, and the answers have those of the requests."""

import json
from typing import Any

import pytest

from calls.codec.json import dumps
from calls.model import Json, Request
from calls.route import route_request
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.strategies import CHAT, JSON, PROFILES, exchange, ok, post, run_of

URL = "https://node.example.com/v1"
IDS: list[tuple[Json, Json]] = [(1, 7), ("0198c1d2-0000-7000-8000-000000000001", "b"), (1, "b")]


def call(id_: Json, method: str = "eth_getBalance", param: str = "0xab") -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": [param, {"id": "kept"}]}


def answer(id_: Json, result: str) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": id_, "result": {"id": "kept", "value": result}}


def replay_of(request: Json, response: Json) -> Session:
    bundle = run_of(exchange(post(URL, dumps(request)), ok(dumps(response))))
    return Session("replay-1", build_recording(bundle, PROFILES), ReplayOptions(), lambda _: None)


async def reply(session: Session, request: Json) -> Any:
    found = await session.answer(post(URL, dumps(request)))
    assert found is not None
    assert found.status == 200
    return json.loads(found.body or b"".join(piece.data for piece in found.pieces))


@pytest.mark.parametrize(("then", "now"), IDS)
async def test_a_request_with_another_id_gets_the_answer_with_that_id(then: Json, now: Json) -> None:
    session = replay_of(call(then), answer(then, "0x1"))
    assert await reply(session, call(now)) == answer(now, "0x1")
    assert session.report()["verdict"] == "right"


async def test_the_answers_of_a_batch_have_the_ids_of_its_requests() -> None:
    session = replay_of([call(1), call(2, param="0xcd")], [answer(2, "0x2"), answer(1, "0x1")])
    assert await reply(session, [call(8), call(9, param="0xcd")]) == [answer(9, "0x2"), answer(8, "0x1")]


@pytest.mark.parametrize("change", [{"method": "eth_call"}, {"params": ["0xab", {"id": "other"}]}, {"jsonrpc": "1.0"}])
async def test_what_else_a_request_says_counts(change: dict[str, Json]) -> None:
    session = replay_of(call(1), answer(1, "0x1"))
    found = await session.answer(post(URL, dumps(call(7) | change)))
    assert found is not None
    assert found.status == 424


@pytest.mark.parametrize(
    ("request_", "dialect", "operation"),
    [
        (post(URL, dumps(call(1))), "generic", "json_rpc"),
        (post(URL, dumps([call(1), call(2)])), "generic", "json_rpc_batch"),
        (post(URL, dumps(answer(1, "0x1"))), "generic", "request"),
        (post(URL, dumps({"id": 1, "method": "x"})), "generic", "request"),
        (post(URL, dumps(call(1, "tools/call"))), "mcp", "execute_tool"),
        (post(URL, dumps(call(1, "message/send"))), "a2a", "invoke_agent"),
        (post(CHAT, dumps(call(1)), JSON), "openai_chat", "chat"),
    ],
)
def test_what_is_known_of_a_service_comes_first(request_: Request, dialect: str, operation: str) -> None:
    route = route_request(request_)
    assert (route.dialect, route.operation) == (dialect, operation)
